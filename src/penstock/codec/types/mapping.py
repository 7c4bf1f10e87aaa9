"""Mapping of a column to the target: the result of a rule, and of the user's choices.

Losses between engines have a name for people and possible choices; `[target.types]` chooses one.
Nothing lossy happens without a choice.

Forms are comparable texts of values, which each server computes for itself. Two values of different
engines are equal if these texts are. Templates have `{}` in the place of the quoted column. They
return text in UTF-8, or NULL for NULL, with our sessions' settings: EXACT_TEXT_SETTINGS on
PostgreSQL, time_zone '+00:00' on MySQL and MariaDB. Those of lakes, SQL Server and Oracle name the
kind, because penstock computes these texts itself.

Not here: the rules (`to_postgres`, `to_mysql`, `among_mysql`, `from_sqlserver`, `to_sqlserver`,
`to_oracle` and their like).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from penstock.codec.types.source_type import ALIASES, Engine, SourceType, builtin_types
from penstock.model import PenstockError, TableName

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
    MONTHS = "years and months, as `P12Y3M`"
    SECONDS = "days, hours, minutes and seconds, as `P1DT2H3M4.5S`"
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
        if engine.is_lake or engine in (Engine.SQLSERVER, Engine.ORACLE):
            return f"{self.kind.name} {VALUE}"  # printed by penstock itself
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
    Kind.MONTHS: "'P' || extract(year from {})::int || 'Y' || extract(month from {})::int || 'M'",
    Kind.SECONDS: "'P' || extract(day from {})::int || 'DT' || extract(hour from {})::int || 'H' "
    "|| extract(minute from {})::int || 'M' || trim_scale(extract(second from {})::numeric) || 'S'",
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


EVERYTHING = "*"
ERROR, NULL, TEXT, ROUND, REMOVE, SHORTEN = "error", "null", "text", "round", "remove", "shorten"
UTC, ZERO = "utc", "zero"
_ERROR_MEANS = "stop at the first such value, before it is written"
_NULL_MEANS = "NULL in place of such a value"
_TEXT_MEANS = "the column is text in the target and holds what the source prints"


class TypeChoiceUnknown(PenstockError):
    """A key of [target.types] names no known loss, type or column."""

    code = "CF30"


class TypeChoiceInvalid(PenstockError):
    """A value of [target.types] is not a choice for that loss."""

    code = "CF31"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Values that the target cannot hold.

    Attributes:
        name: as in [target.types].
        what: the values.
        choices: possible choices, each with its meaning.
    """

    name: str
    what: str
    choices: AbstractMapping[str, str]


def _loss(name: str, what: str, **choices: str) -> Loss:
    return Loss(name=name, what=what, choices=choices)


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        _loss(
            "zero dates",
            "0000-00-00, and days that no calendar has, such as 2024-00-10 and 2024-02-31",
            error=_ERROR_MEANS,
            null=_NULL_MEANS,
            text=_TEXT_MEANS,
        ),
        _loss(
            "dates out of range",
            "infinity and -infinity, and what the target's calendar does not reach: years before 1 "
            "and after 9999, in a TIMESTAMP those outside 1970 to 2038; and 24:00:00 in SQL Server",
            error=_ERROR_MEANS,
            null=_NULL_MEANS,
            text=_TEXT_MEANS,
        ),
        _loss(
            "not a number",
            "NaN, Infinity and -Infinity",
            error=_ERROR_MEANS,
            null=_NULL_MEANS,
            text=_TEXT_MEANS,
        ),
        _loss(
            "subnormal numbers",
            "floating-point numbers other than 0 between -2.2250738585072014e-308 and "
            "2.2250738585072014e-308, in a real between -1.17549435e-38 and 1.17549435e-38",
            error=_ERROR_MEANS,
            zero="0 in place of such a value",
            text=_TEXT_MEANS,
        ),
        _loss(
            "digits",
            "numbers with more digits than the target's decimal has before or after the point",
            error=_ERROR_MEANS,
            round="round after the point; before the point it is an error nevertheless",
            text=_TEXT_MEANS,
        ),
        _loss(
            "nanoseconds",
            "times with digits after the microsecond",
            error=_ERROR_MEANS,
            round="round to the microsecond",
            text=_TEXT_MEANS,
        ),
        _loss(
            "offsets",
            "the offset from UTC of a moment (datetimeoffset), if it is not +00:00",
            error=_ERROR_MEANS,
            utc="the same moment in UTC",
            text=_TEXT_MEANS,
        ),
        _loss(
            "nul characters",
            "the character U+0000 in text",
            error=_ERROR_MEANS,
            remove="the text without that character",
        ),
        _loss(
            "loose json",
            'text that only MariaDB accepts as JSON, such as `1.` and `"\\x41"`',
            error=_ERROR_MEANS,
            text=_TEXT_MEANS,
        ),
        _loss(
            "long keys",
            "values in a key that are longer than an index of the target can hold",
            error=_ERROR_MEANS,
        ),
        _loss(
            "blanks in keys",
            "keys that differ in blanks at their end alone, and in SQL Server keys of bytes that "
            "differ in zeros at their end alone",
            error=_ERROR_MEANS,
        ),
        _loss(
            "empty values",
            "texts and bytes of length 0, which Oracle stores as NULL",
            error=_ERROR_MEANS,
            null=_NULL_MEANS,
        ),
        _loss(
            "long names",
            "names of tables and columns that are longer than the target allows",
            shorten="cut, with a number made from the whole name at the end",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Contents of `[target.types]`.

    A scope is empty, a type's name, or `schema.table.column`; the narrowest that fits counts.

    Attributes:
        by_scope: (loss, scope) to choice.
        everything: the choice of `"*"`, or empty.
    """

    by_scope: AbstractMapping[tuple[str, str], str] = field(default_factory=dict)
    everything: str = ""

    def get(self, loss: str, kind: SourceType | None = None, column: str = "") -> str:
        """Return the choice for a loss; empty if there is none. column: `schema.table.column`."""
        for scope in (column, kind.base if kind is not None else "", ""):
            if found := self.by_scope.get((loss, scope)):
                return found
        return self.everything if self.everything in LOSSES[loss].choices else ""

    def columns(self) -> Iterator[str]:
        """Yield the named columns, so that missing ones can be reported."""
        for _, scope in self.by_scope:
            if "." in scope:
                yield scope


NO_CHOICES = Choices()


def parse_choices(given: AbstractMapping[str, str], source: Engine) -> Choices:
    """Read `[target.types]`: `"zero dates" = "null"`, `"datetime zero dates" = "text"`.

    A key is a loss, or a type or column followed by a loss; `mysql:` may precede a type. `"*" =
    "error"` is for all losses that have this choice. source: engine whose types may be named; MySQL
    includes MariaDB. Raises TypeChoiceUnknown, TypeChoiceInvalid.
    """
    by_scope: dict[tuple[str, str], str] = {}
    everything = ""
    for key, choice in given.items():
        if key.strip() == EVERYTHING:
            if choice != ERROR:
                raise _invalid(key, choice, (ERROR,))
            everything = choice
            continue
        loss, scope = _split(key, source)
        if choice not in loss.choices:
            raise _invalid(key, choice, tuple(loss.choices))
        by_scope[loss.name, scope] = choice
    return Choices(by_scope=by_scope, everything=everything)


def _split(key: str, source: Engine) -> tuple[Loss, str]:
    words = " ".join(key.split())
    for loss in LOSSES.values():
        if words == loss.name:
            return loss, ""
        if words.endswith(f" {loss.name}"):
            scope = words.removesuffix(loss.name).strip()
            return loss, scope if "." in scope else _type_scope(key, scope, source)
    raise _unknown(key, words, tuple(LOSSES), "names no loss")


def _type_scope(key: str, scope: str, source: Engine) -> str:
    engine, colon, name = scope.rpartition(":")
    if colon and not _is_source(engine, source):
        raise TypeChoiceUnknown(
            f"{key!r} in [target.types] speaks of {engine}, and this source is {source.label}",
            hint=f"Remove {engine}: or the whole entry.",
            key=key,
        )
    name = ALIASES.get(name.lower(), name.lower())
    both = builtin_types(source)
    if source.is_mysql:
        both |= builtin_types(Engine.MARIADB)
    if name not in both:
        raise _unknown(key, name, tuple(both), f"names no type of {source.label}")
    return name


def _is_source(engine: str, source: Engine) -> bool:
    known = {"postgres": Engine.POSTGRESQL, **{e.value: e for e in Engine}}
    found = known.get(engine.lower())
    return found is not None and found.is_mysql == source.is_mysql


def _unknown(key: str, word: str, known: tuple[str, ...], reason: str) -> TypeChoiceUnknown:
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    hint = f'Did you mean "{near[0]}"?' if near else f"Known are: {', '.join(sorted(known))}."
    return TypeChoiceUnknown(f"{key!r} in [target.types] {reason}", hint=hint, key=key)


def _invalid(key: str, choice: str, allowed: tuple[str, ...]) -> TypeChoiceInvalid:
    return TypeChoiceInvalid(
        f"{key!r} in [target.types] cannot be {choice!r}, expected {' or '.join(allowed)}",
        hint=f'Write "{key}" = "{allowed[0]}".',
        key=key,
    )


def column_scope(table: TableName | None, column: str) -> str:
    """Return the name of a column in [target.types]."""
    return f"{table}.{column}" if table is not None else ""


AS_IS = "as is"
PREPARE_SEPARATOR = "; "  # between several changes of one column
AS_TEXT = "as text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Conversion of a value for the target's column.

    Attributes:
        sql: template over the staged value, used where it is written to the column. On PostgreSQL
            the staged value has its neutral type (text for `string`, `uint32` and `uint64`). On
            MySQL and MariaDB it is text in utf8mb4, or bytes for `binary`: `1` and `0` for bool,
            times as `2024-02-29 12:34:56.789` (UTC, without an offset, for timestamptz), others as
            usual. On SQL Server it has its neutral type: nvarchar(max) for `string`, bigint for
            `uint32`, decimal(20,0) for `uint64`, datetime2(6) and datetimeoffset(6) for timestamps.
            On Oracle it is a number for bool, TIMESTAMP(6) in UTC for timestamps, RAW, BLOB,
            VARCHAR2 or CLOB for others, after `prepare`.
        prepare: changes and checks that our own process makes before values are sent, or empty: see
            `prepare_values`. On SQL Server and Oracle all values that a type cannot hold are found
            there.
        needs_text: on MySQL, MariaDB, SQL Server and Oracle the value must be staged as text,
            because its staging type does not hold all of the source's values either. On SQL Server
            and Oracle `prepare` returns this text.
    """

    name: str = AS_IS
    sql: str = VALUE
    prepare: str = ""
    needs_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """Texts to compare. name: kind of the text. source, target: templates."""

    name: str
    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """Mapping of one column to the target.

    Attributes:
        target_type: as in CREATE TABLE, with character set and collation; empty if refused.
        losses: values that may not arrive, whatever was chosen.
        chosen: loss to choice.
        missing: losses without a choice: a pipeline with one does not start.
        refused: reason why no mapping is possible.
        note: for the reader of a plan.
    """

    source_type: str
    target_type: str = ""
    losses: tuple[Loss, ...] = ()
    chosen: AbstractMapping[str, str] = field(default_factory=dict)
    refused: str = ""
    note: str = ""
    write: Write = field(default_factory=Write)
    equal: Equality = field(default_factory=lambda: Equality(name="", source="", target=""))

    @property
    def exact(self) -> bool:
        """Return whether every value of the source's type arrives unchanged."""
        return not self.losses and not self.refused

    @property
    def missing(self) -> tuple[Loss, ...]:
        """Losses without a choice."""
        return tuple(loss for loss in self.losses if loss.name not in self.chosen)

    @property
    def may_be_null(self) -> bool:
        """Return whether a value that is not NULL in the source may be NULL in the target."""
        return NULL in self.chosen.values()

    @property
    def may_run(self) -> bool:
        """Return whether a pipeline with this column may start."""
        return not self.refused and not self.missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Values that a rule cannot hold.

    Attributes:
        waiting: condition over the staged value; empty if such a value is never staged, or if the
            target refuses it anyway.
        stored: condition over the source's column.
        refusal: text that the target's type refuses, to stop with.
        instead: choice to (write, source's form).
        prepare: choice to the change that our process makes.
    """

    loss: str
    waiting: str = ""
    stored: str = ""
    refusal: str = ""
    instead: AbstractMapping[str, tuple[str, str]] = field(default_factory=dict)
    prepare: AbstractMapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Result of a rule for a type. `cast` follows the whole expression. `text` is the mapping as
    text.
    """

    target_type: str
    source_form: Form
    target_form: Form
    write: Write = field(default_factory=Write)
    cast: str = ""
    cases: tuple[Case, ...] = ()
    note: str = ""
    text: Held | None = None


def refuse(kind: SourceType, reason: str) -> Mapping:
    """Return the mapping of a type that the target cannot hold."""
    return Mapping(source_type=kind.text, refused=reason)


def resolve(
    held: Held, kind: SourceType, target: Engine, choices: Choices, column: str = ""
) -> Mapping:
    """Return a rule's mapping with the user's choices. column: `schema.table.column`, or empty."""
    losses = tuple(_offer(LOSSES[case.loss], held) for case in held.cases)
    chosen = {
        loss.name: choice
        for loss in losses
        if (choice := choices.get(loss.name, kind, column)) in loss.choices
    }
    shown = held.text if TEXT in chosen.values() and held.text is not None else held
    if shown is not held:
        inner = resolve(shown, kind, target, choices, column)
        extra = tuple(loss for loss in losses if chosen.get(loss.name) == TEXT)
        return Mapping(
            source_type=kind.text,
            target_type=inner.target_type,
            losses=inner.losses,
            chosen={**{loss.name: TEXT for loss in extra}, **inner.chosen},
            note=shown.note or "kept as text",
            write=inner.write,
            equal=inner.equal,
        )
    write, source = _expressions(held, kind, chosen)
    return Mapping(
        source_type=kind.text,
        target_type=held.target_type,
        losses=losses,
        chosen=chosen,
        note=held.note,
        write=write,
        equal=Equality(
            name=held.target_form.kind.value, source=source, target=held.target_form.sql(target)
        ),
    )


def _offer(loss: Loss, held: Held) -> Loss:
    """Return a loss with the choices that this type allows: only some types can be held as text."""
    if held.text is not None:
        return loss
    return replace(loss, choices={k: v for k, v in loss.choices.items() if k != TEXT})


def _expressions(
    held: Held, kind: SourceType, chosen: AbstractMapping[str, str]
) -> tuple[Write, str]:
    """Return the conversion of values, and the source's text of them, with the choices."""
    sql, source = held.write.sql, held.source_form.sql(kind.engine)
    prepare = [held.write.prepare]
    for case in held.cases:
        choice = chosen.get(case.loss, ERROR)
        prepare.append(case.prepare.get(choice, ""))
        if choice in case.instead:
            instead = case.instead[choice]
            sql = _guard(case.waiting, instead[0], sql)
            source = _guard(case.stored, instead[1], source)
        elif choice == NULL:
            sql, source = _guard(case.waiting, "null", sql), _guard(case.stored, "null", source)
        elif case.refusal and choice == ERROR:
            sql = _guard(case.waiting, f"'{case.refusal}'", sql)
    if held.cast:
        sql = f"({sql}){held.cast}"
    needs_text = held.write.needs_text or any(case.waiting for case in held.cases)
    prepared = PREPARE_SEPARATOR.join(filter(None, prepare))
    return replace(held.write, sql=sql, prepare=prepared, needs_text=needs_text), source


def _guard(condition: str, then: str, otherwise: str) -> str:
    if not condition:
        return otherwise
    return f"case when {condition} then {then} else {otherwise} end"
