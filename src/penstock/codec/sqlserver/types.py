"""Column types of SQL Server: as the catalogue has them, as texts, and as neutral types.

Follows sections 2 and 7 of the reference. A type's text is that of T-SQL: `nvarchar(40)`,
`varchar(max)`, `decimal(12,2)`, `datetime2(7)`. The types `timestamp` and `numeric` have the texts
of their synonyms, `rowversion` and `decimal`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

MAX = -1
"""Length of `varchar(max)`, `nvarchar(max)` and `varbinary(max)`."""

_TYPE = re.compile(
    r"\s*(?P<base>[a-z_][a-z_0-9 ]*?)\s*(?:\(\s*(?P<inside>max|[0-9, ]+)\s*\))?\s*", re.IGNORECASE
)
_SYNONYMS = {
    "timestamp": "rowversion",
    "numeric": "decimal",
    "dec": "decimal",
    "integer": "int",
    "double precision": "float",
    "character": "char",
    "char varying": "varchar",
    "character varying": "varchar",
    "national character": "nchar",
    "national character varying": "nvarchar",
    "sysname": "nvarchar",
}
_NEUTRALS = {
    "bit": "bool",
    "tinyint": "int16",  # it has no sign: 0 to 255
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "money": "decimal(19,4)",
    "smallmoney": "decimal(10,4)",
    "real": "float32",
    "float": "float64",
    "date": "date",
    "time": "time",
    "datetime": "timestamp",
    "smalldatetime": "timestamp",
    "datetime2": "timestamp",
    "uniqueidentifier": "uuid",
    "binary": "binary",
    "varbinary": "binary",
    "image": "binary",
    "rowversion": "binary",
}
_SIZED = frozenset(("char", "varchar", "nchar", "nvarchar", "binary", "varbinary"))
_TWO_BYTES = frozenset(("nchar", "nvarchar"))
_FRACTIONS = frozenset(("time", "datetime2", "datetimeoffset"))
FRACTION_MAX = 7
"""Digits after the second of the types that have the most, and of those without a number."""
REAL_BITS = 24
GEOMETRIES = frozenset(("geometry", "geography"))
BUILTIN = frozenset(
    (
        *_NEUTRALS, "decimal", "char", "varchar", "text", "nchar", "nvarchar", "ntext", "xml",
        "datetimeoffset", "sql_variant", "hierarchyid", *GEOMETRIES, "json",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SqlServerType:
    """A type with its numbers.

    Attributes:
        base: name, in lower case, without synonyms.
        length: characters of `nchar` and `nvarchar` (pairs of bytes of UTF-16), bytes of the other
            sized types; MAX for `(max)`; None for a type without a length.
        precision: digits of a decimal; None for another type.
        scale: digits after the point of a decimal, or after the second of a time; None for a type
            without it.
    """

    base: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None

    @property
    def text(self) -> str:
        """Text of T-SQL."""
        if self.length is not None:
            return f"{self.base}({'max' if self.length == MAX else self.length})"
        if self.precision is not None:
            return f"{self.base}({self.precision},{self.scale or 0})"
        return self.base if self.scale is None else f"{self.base}({self.scale})"

    @property
    def arguments(self) -> tuple[int, ...]:
        """Numbers in parentheses; empty for `(max)`."""
        if self.length is not None:
            return () if self.length == MAX else (self.length,)
        if self.precision is not None:
            return (self.precision, self.scale or 0)
        return () if self.scale is None else (self.scale,)

    @property
    def neutral(self) -> str:
        """Type of the values in the log. A type without a counterpart is text."""
        if self.base == "decimal":
            return f"decimal({self.precision},{self.scale or 0})"
        return _NEUTRALS.get(self.base, "string")

    @property
    def is_builtin(self) -> bool:
        """Return whether it is one of SQL Server's own types."""
        return self.base in BUILTIN

    @property
    def is_large(self) -> bool:
        """Return whether a change table may lack an unchanged value (reference, section 2)."""
        return self.length == MAX or self.base in (
            "text", "ntext", "image", "xml", "json", "geometry", "geography",
        )  # fmt: skip


@lru_cache(maxsize=4096)
def parse_type(text: str) -> SqlServerType:
    """Return the type of a text of T-SQL. Any other text is its own name."""
    match = _TYPE.fullmatch(text)
    if match is None:
        return SqlServerType(text)
    words = " ".join(match["base"].lower().split())
    base, inside = _SYNONYMS.get(words, words), match["inside"]
    if base not in BUILTIN:
        return SqlServerType(text)
    if base in _SIZED:
        if inside is None:
            return SqlServerType(base, 128 if words == "sysname" else 1)
        return SqlServerType(base, MAX if inside.lower() == "max" else int(inside))
    numbers = [int(one) for one in (inside or "").split(",") if one.strip()]
    if base == "decimal":
        precision, scale = (*numbers, 0, 0)[:2] if numbers else (18, 0)
        return SqlServerType(base, None, precision, scale)
    if base in _FRACTIONS:
        return SqlServerType(base, None, None, numbers[0] if numbers else FRACTION_MAX)
    if base == "float" and numbers and numbers[0] <= REAL_BITS:
        return SqlServerType("real")
    return SqlServerType(base)


def catalogue_type(base: str, max_length: int, precision: int, scale: int) -> SqlServerType:
    """Return the type of a row of `sys.columns`.

    Args:
        base: name of the system type in `sys.types`.
        max_length: bytes; -1 for `(max)`.
        precision: digits.
        scale: digits after the point or the second.
    """
    base = _SYNONYMS.get(base.lower(), base.lower())
    if base in _SIZED:
        length = max_length // 2 if base in _TWO_BYTES and max_length != MAX else max_length
        return SqlServerType(base, length)
    if base == "decimal":
        return SqlServerType(base, None, precision, scale)
    if base in _FRACTIONS:
        return SqlServerType(base, None, None, scale)
    return SqlServerType(base)


def neutral_type(text: str) -> str:
    """Return the neutral type of a type's text; unknown types are text."""
    return parse_type(text).neutral
