"""Column types of Oracle: as the catalogue has them, as texts, and as neutral types.

A type's text is that of SQL: `NUMBER(12,2)`, `VARCHAR2(60)`, `TIMESTAMP(6) WITH TIME ZONE`,
`INTERVAL DAY(2) TO SECOND(6)`. Numbers:

    NUMBER(p,s), s >= 0  at most p digits, s of them after the point; s may be above p
    NUMBER(p,-s)         at most p digits and s zeros
    NUMBER               up to 40 digits and any exponent: kept as exact text
    NUMBER(*,s), INTEGER at most 38 digits, as a rule; a longer one moves the column to text
    FLOAT(b)             a NUMBER with b binary digits: kept as exact text

Follows the reference, sections 6 and 1b.12. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

PRECISION_MAX = 38
FRACTION_DEFAULT = 6
FRACTION_MAX = 9
FLOAT_BITS_DEFAULT = 126

_SIZED = frozenset(("CHAR", "VARCHAR2", "NCHAR", "NVARCHAR2", "RAW", "UROWID"))
# Lengths up to which values are in the row; longer ones are of extended types (of 32 KB), and the
# server stores them as large objects.
_INLINE = {"VARCHAR2": 4000, "NVARCHAR2": 2000, "RAW": 2000}
_CHARACTER_BYTES = 4
_TIMESTAMPS = frozenset(("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP WITH LOCAL TIME ZONE"))
_INTERVALS = frozenset(("INTERVAL YEAR TO MONTH", "INTERVAL DAY TO SECOND"))
REFUSED: dict[str, str] = {
    "BFILE": "its contents are files outside of the database, which are not in the log",
    "BOOLEAN": "LogMiner does not support rows with it",
    "JSON": "LogMiner has its values in a binary form that is not public",
    "VECTOR": "LogMiner does not support rows with it",
    "XMLTYPE": "LogMiner has parts of documents that cannot be put together",
}
"""Types that are refused by name, with the reason. Every unknown type is refused too: types of
objects and collections."""

BUILTIN = frozenset(
    (
        "NUMBER", "FLOAT", "BINARY_FLOAT", "BINARY_DOUBLE", "DATE", "LONG", "LONG RAW", "CLOB",
        "NCLOB", "BLOB", "ROWID", *_SIZED, *_TIMESTAMPS, *_INTERVALS, *REFUSED,
    )
)  # fmt: skip

_NAMES = {"TIMESTAMP WITH TIME ZONE": "timestamptz"}
BUILTIN_NAMES = frozenset(_NAMES.get(name, name.lower()) for name in BUILTIN)
"""Names of Oracle's types as [target.types] has them."""

_SYNONYMS = {
    "INTEGER": "NUMBER(*,0)",
    "INT": "NUMBER(*,0)",
    "SMALLINT": "NUMBER(*,0)",
    "REAL": "FLOAT(63)",
    "DOUBLE PRECISION": "FLOAT(126)",
}
_BASES = {
    "DECIMAL": "NUMBER",
    "NUMERIC": "NUMBER",
    "DEC": "NUMBER",
    "VARCHAR": "VARCHAR2",
    "CHARACTER": "CHAR",
    "NATIONAL CHAR": "NCHAR",
    "NVARCHAR": "NVARCHAR2",
}
_TYPE = re.compile(r"(?P<base>[A-Z_0-9 ]+?)(?: ?\((?P<inside>[-*0-9, A-Z]+)\))?")
_TIMESTAMP = re.compile(r"TIMESTAMP(?: ?\(([0-9])\))?(?P<zone> WITH (?:LOCAL )?TIME ZONE)?")
_MONTHS = re.compile(r"INTERVAL YEAR(?: ?\(([0-9])\))? TO MONTH")
_SECONDS = re.compile(r"INTERVAL DAY(?: ?\(([0-9])\))? TO SECOND(?: ?\(([0-9])\))?")
_NEUTRALS = {
    "BINARY_FLOAT": "float32",
    "BINARY_DOUBLE": "float64",
    "DATE": "timestamp",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP WITH LOCAL TIME ZONE": "timestamptz",
    "RAW": "binary",
    "LONG RAW": "binary",
    "BLOB": "binary",
}


@dataclass(frozen=True, slots=True)
class OracleType:
    """A type with its numbers.

    Attributes:
        base: name without numbers, in upper case and without synonyms.
        length: characters or bytes of a sized type; None for another one.
        precision: digits of a NUMBER, binary ones of a FLOAT, digits of years or days of an
            interval; None for `NUMBER` and `NUMBER(*,s)`.
        scale: digits after the point of a NUMBER, or after the second; None for `NUMBER`.
        is_in_characters: whether the length counts characters (`VARCHAR2(60 CHAR)`).
    """

    base: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    is_in_characters: bool = False

    @property
    def text(self) -> str:
        """Text of SQL."""
        if self.length is not None:
            return f"{self.base}({self.length}{' CHAR' if self.is_in_characters else ''})"
        if self.base == "NUMBER" and self.scale is not None:
            shown = "*" if self.precision is None else self.precision
            return f"NUMBER({shown},{self.scale})"
        if self.base == "FLOAT":
            return f"FLOAT({self.precision})"
        if self.base == "INTERVAL YEAR TO MONTH":
            return f"INTERVAL YEAR({self.precision}) TO MONTH"
        if self.base == "INTERVAL DAY TO SECOND":
            return f"INTERVAL DAY({self.precision}) TO SECOND({self.scale})"
        if self.base in _TIMESTAMPS:
            return f"TIMESTAMP({self.scale}){self.base.removeprefix('TIMESTAMP')}"
        return self.base

    @property
    def name(self) -> str:
        """Name without numbers as [target.types] has it, in lower case."""
        return _NAMES.get(self.base, self.base.lower())

    @property
    def arguments(self) -> tuple[int, ...]:
        """Length of a sized type, digits after the second of a date and time."""
        if self.length is not None:
            return (self.length,)
        return (self.scale,) if self.base in _TIMESTAMPS and self.scale is not None else ()

    @property
    def is_number(self) -> bool:
        """Return whether its values are NUMBERs."""
        return self.base in ("NUMBER", "FLOAT")

    @property
    def is_builtin(self) -> bool:
        """Return whether it is one of Oracle's own types."""
        return self.base in BUILTIN

    @property
    def is_large(self) -> bool:
        """Return whether images lack an unchanged value, because it is never logged."""
        is_extended = self.base in _INLINE and (self.length or 0) > _INLINE[self.base]
        return is_extended or self.base in ("CLOB", "NCLOB", "BLOB", "LONG", "LONG RAW")

    @property
    def may_be_large(self) -> bool:
        """Return whether `is_large`, or a text in characters that may be an extended one."""
        bytes_max = (self.length or 0) * (_CHARACTER_BYTES if self.is_in_characters else 1)
        return self.is_large or (self.base == "VARCHAR2" and bytes_max > _INLINE["VARCHAR2"])

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale that hold every value of a NUMBER; None if there are none."""
        if self.base != "NUMBER" or self.scale is None:
            return None
        digits, scale = self.precision or PRECISION_MAX, self.scale
        if scale < 0:
            digits, scale = digits - scale, 0
        digits = max(digits, scale)
        return (digits, scale) if digits <= PRECISION_MAX else None

    @property
    def neutral(self) -> str:
        """Type of the values in the log. A type without a counterpart is text."""
        if self.base != "NUMBER":
            return _NEUTRALS.get(self.base, "string")
        if self.decimal is None:
            return "string"
        precision, scale = self.decimal
        if scale == 0 and precision <= 18:
            return "int16" if precision <= 4 else "int32" if precision <= 9 else "int64"
        return f"decimal({precision},{scale})"


@lru_cache(maxsize=4096)
def parse_type(text: str) -> OracleType:
    """Return the type of a text of SQL. Any other text is its own name."""
    words = " ".join(text.upper().replace(" (", "(").split())
    words = _SYNONYMS.get(words, words)
    if match := _TIMESTAMP.fullmatch(words):
        scale = FRACTION_DEFAULT if match[1] is None else int(match[1])
        return OracleType(f"TIMESTAMP{match['zone'] or ''}", None, None, scale)
    if match := _MONTHS.fullmatch(words):
        return OracleType("INTERVAL YEAR TO MONTH", None, int(match[1] or 2))
    if match := _SECONDS.fullmatch(words):
        scale = FRACTION_DEFAULT if match[2] is None else int(match[2])
        days = 2 if match[1] is None else int(match[1])
        return OracleType("INTERVAL DAY TO SECOND", None, days, scale)
    match = _TYPE.fullmatch(words)
    base = _BASES.get(match["base"], match["base"]) if match is not None else ""
    if match is None or base not in BUILTIN:
        return OracleType(text)
    return _with_numbers(base, match["inside"], text)


def _with_numbers(base: str, inside: str | None, text: str) -> OracleType:
    """Return a type with the numbers in its parentheses."""
    if base == "NUMBER":
        if inside is None:
            return OracleType(base)
        precision, _, scale = inside.partition(",")
        digits = None if precision.strip() == "*" else int(precision)
        return OracleType(base, None, digits, int(scale or 0))
    if base == "FLOAT":
        return OracleType(base, None, int(inside or FLOAT_BITS_DEFAULT))
    if base in _SIZED:
        size, _, unit = (inside or "1").partition(" ")
        return OracleType(base, int(size), is_in_characters=unit == "CHAR")
    return OracleType(base) if inside is None else OracleType(text)


def catalogue_type(
    base: str,
    length: int,
    precision: int | None,
    scale: int | None,
    *,
    characters: int = 0,
    is_in_characters: bool = False,
) -> OracleType:
    """Return the type of a row of ALL_TAB_COLS.

    Args:
        base: DATA_TYPE, `TIMESTAMP(6) WITH TIME ZONE` for one.
        length: DATA_LENGTH, bytes.
        precision: DATA_PRECISION; None for `NUMBER` and `INTEGER`.
        scale: DATA_SCALE; None for `NUMBER`.
        characters: CHAR_LENGTH.
        is_in_characters: whether CHAR_USED is C.
    """
    kind = parse_type(base)
    if kind.base == "NUMBER":
        return OracleType("NUMBER", None, precision, scale)
    if kind.base == "FLOAT":
        return OracleType("FLOAT", None, precision or FLOAT_BITS_DEFAULT)
    if kind.base in ("NCHAR", "NVARCHAR2"):
        return OracleType(kind.base, characters or length // 2)
    if kind.base in _SIZED:
        size = characters if is_in_characters else length
        return OracleType(kind.base, size, is_in_characters=is_in_characters)
    return kind


def explain_refusal(kind: OracleType) -> str:
    """Return why the log does not show values of a type; empty if it does."""
    if not kind.is_builtin:
        return "it is a type of objects or collections"
    return REFUSED.get(kind.base, "")


def neutral_type(text: str) -> str:
    """Return the neutral type of a type's text; unknown types are text."""
    return parse_type(text).neutral
