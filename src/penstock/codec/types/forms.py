"""Comparable texts of values, which each server computes for itself.

Two values of different engines are equal if these texts are. Templates have `{}` in the place of
the quoted column. They return text in UTF-8, or NULL for NULL, with our sessions' settings:
EXACT_TEXT_SETTINGS on PostgreSQL, time_zone '+00:00' on MySQL and MariaDB.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.codec.types.source_type import Engine

VALUE = "{}"  # where a template takes its operand
# Of YEAR(2), which prints two digits of them: 1900 means 0.
FULL_YEAR = "lpad(if(year({}) = 1900, 0, year({})), 4, '0')"


def fill_template(template: str, operand: str) -> str:
    """Return a template with its operand. Not str.format: patterns contain braces."""
    return template.replace(VALUE, operand)


class Kind(StrEnum):
    """Kind of a text, in the words of the documentation."""

    BOOLEAN = "1 or 0"
    INTEGER = "digits"
    YEAR = "digits of the whole year"
    DECIMAL = "digits, with as many after the point as the type has"
    NUMBER = "digits, without zeros at the end"
    FLOAT = "53 bits and an exponent of two, which leaves out the sign of a zero"
    FLOAT_TEXT = "the shortest digits that mean this number"
    TEXT = "the text"
    PADDED = "the text without blanks at its end"
    PRINTED = "what PostgreSQL prints"
    BYTES = "hexadecimal digits"
    RAW_TEXT = "the text's bytes in hexadecimal digits"
    DATE = "year, month, day"
    TIMESTAMP = "date and time"
    TIMESTAMPTZ = "date and time in UTC"
    TIME = "microseconds"
    BITS = "binary digits"
    ADDRESS = "the address's bytes in hexadecimal digits"
    GEOMETRY = "SRID and WKB in hexadecimal digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A kind with its details.

    fraction: digits after the second in MySQL's column. width: bits, or bytes of an address.
    """

    kind: Kind
    fraction: int = 0
    width: int = 0

    def sql(self, engine: Engine) -> str:
        """Return the template for an engine. Raises KeyError if the engine has no such type."""
        if engine is Engine.POSTGRESQL:
            return _POSTGRES[self.kind]
        if engine is Engine.IGNITE:
            return VALUE  # there is no server that prints it
        if self.kind is Kind.DATE:
            return _mysql_year_zero("cast({} as char)")
        if self.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
            return _mysql_year_zero(_without_zeros("cast({} as char)", self.fraction))
        if self.kind is Kind.BITS:
            return f"lpad(conv({{}} + 0, 10, 2), {self.width}, '0')"
        if self.kind is Kind.ADDRESS:
            return f"lower(hex(cast({{}} as binary({self.width}))))"
        return _MYSQL[self.kind]


# -- PostgreSQL ------------------------------------------------------------------------------------

# The logarithm may be off by a little, so the guess is one too high rather than one too low, and is
# compared with the powers themselves, which are exact.
_PG_GUESS = "least(greatest(floor(ln(abs({}::float8)) / ln(2::float8)) + 1, -1073), 1023)"
_PG_FOUND = (
    "(select case when abs({}::float8) >= power(2::float8, e) then e "
    "when abs({}::float8) >= power(2::float8, e - 1) then e - 1 else e - 2 end as e "
    f"from (select {_PG_GUESS} as e) as guess) as found"
)
_PG_FLOAT = (
    "case when {} = 0 then '0' when {}::text in ('NaN', 'Infinity', '-Infinity') then {}::text "
    "when {} is not null then (select ({}::float8 / power(2::float8, e) "
    f"* 4503599627370496)::bigint::text || 'e' || e::int::text from {_PG_FOUND}) end"
)
_POSTGRES = {
    Kind.BOOLEAN: "{}::int::text",
    Kind.INTEGER: "{}::text",
    Kind.DECIMAL: "{}::text",
    Kind.NUMBER: "trim_scale({})::text",
    Kind.FLOAT: _PG_FLOAT,
    Kind.TEXT: "{}::text",
    Kind.PADDED: "{}::text",  # the cast takes the blanks off
    # Some casts to text differ from what a type's output function prints.
    Kind.PRINTED: "case when {} is distinct from null then format('%s', {}) end",
    Kind.BYTES: "encode({}, 'hex')",
    Kind.RAW_TEXT: "encode(convert_to({}::text, 'SQL_ASCII'), 'hex')",
    Kind.DATE: "{}::text",
    Kind.TIMESTAMP: "{}::text",
    Kind.TIMESTAMPTZ: "({} at time zone 'UTC')::text",
    Kind.TIME: "(extract(epoch from {}) * 1000000)::bigint::text",
    Kind.BITS: "{}::text",
    Kind.ADDRESS: "encode(substr(inet_send({}), 5), 'hex')",
    # From EWKB to what MySQL stores: the SRID first, then WKB without it.
    Kind.GEOMETRY: "encode(case when get_byte({}, 4) & 32 = 32 then substr({}, 6, 4) || "
    "substr({}, 1, 4) || '\\x00'::bytea || substr({}, 10) "
    "else '\\x00000000'::bytea || {} end, 'hex')",
}

# -- MySQL and MariaDB -----------------------------------------------------------------------------

_MY_DOUBLE = "({} + 0e0)"
_MY_GUESS = f"least(greatest(floor(log2(abs({_MY_DOUBLE}))) + 1, -1073), 1023)"
_MY_EXPONENT = (
    f"({_MY_GUESS} - (abs({_MY_DOUBLE}) < pow(2, {_MY_GUESS}))"
    f" - (abs({_MY_DOUBLE}) < pow(2, {_MY_GUESS} - 1)))"
)
_MY_FLOAT = (
    "case when {} = 0 then '0' when {} is not null then concat("
    f"cast({_MY_DOUBLE} / pow(2, {_MY_EXPONENT}) * 4503599627370496 as signed), 'e', "
    f"cast({_MY_EXPONENT} as signed)) end"
)
_MY_MICROSECONDS = (
    "concat(if(left(cast({} as char), 1) = '-', '-', ''), "
    "(hour({}) * 3600 + minute({}) * 60 + second({})) * 1000000 + microsecond({}))"
)
_MY_TEXT = "convert({} using utf8mb4)"
_MYSQL = {
    Kind.BOOLEAN: "cast({} + 0 as char)",
    Kind.INTEGER: "cast({} + 0 as char)",  # without the zeros that zerofill shows
    Kind.YEAR: f"cast({FULL_YEAR} + 0 as char)",
    Kind.DECIMAL: "cast({} as char)",
    Kind.NUMBER: "trim(trailing '.' from trim(trailing '0' from cast({} as char)))",
    Kind.FLOAT: _MY_FLOAT,
    Kind.FLOAT_TEXT: f"cast({_MY_DOUBLE} as char)",
    Kind.TEXT: _MY_TEXT,
    Kind.PADDED: f"trim(trailing ' ' from {_MY_TEXT})",
    Kind.PRINTED: _MY_TEXT,
    Kind.BYTES: "lower(hex({}))",
    Kind.RAW_TEXT: "lower(hex({}))",
    Kind.TIME: _MY_MICROSECONDS,
    Kind.GEOMETRY: "lower(hex({}))",
}


def _without_zeros(text: str, fraction: int) -> str:
    """Return SQL that removes zeros at the end of a fraction, as PostgreSQL prints times."""
    if not fraction:
        return text
    return f"trim(trailing '.' from trim(trailing '0' from {text}))"


def _mysql_year_zero(text: str) -> str:
    """Return SQL that prints MySQL's year 0 as PostgreSQL does: 1 BC."""
    return (
        f"if(left(cast({{}} as char), 5) = '0000-', concat('0001', substr({text}, 5), ' BC'), "
        f"{text})"
    )
