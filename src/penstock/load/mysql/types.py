"""Source types as types of MySQL and MariaDB, for columns that a change of shape brings.

Pure. Not here: making tables (`schema.py`).
"""

from __future__ import annotations

import re

from penstock.codec.mysql_types import parse_type
from penstock.host.mysql.connect import literal
from penstock.model import Column

MYSQL_SOURCES = ("mysql", "mariadb")
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
_PRECISION = re.compile(r"\((\d)\)")
_LENGTH = re.compile(r"(?:character varying|varchar|character|char|bpchar)\((\d+)\)")
_BY_NEUTRAL = {
    "bool": "tinyint(1)",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint32": "int unsigned",
    "uint64": "bigint unsigned",
    "float32": "float",
    "float64": "double",
    "date": "date",
    "uuid": "char(36)",
    "binary": "longblob",
    "string": "longtext",
}
_TIMES = {"time": "time", "timestamp": "datetime", "timestamptz": "timestamp"}
CHARSET = "character set utf8mb4 collate utf8mb4_bin"
VARCHAR_MAX = 16_000  # characters: four bytes each, and a row holds 65,535


def mysql_type(column: Column, source_engine: str) -> str:
    """The type that a column of the source has in the target."""
    if source_engine in MYSQL_SOURCES:
        return column.source_type
    return _from_postgres(column)


def _from_postgres(column: Column) -> str:
    neutral, source = column.neutral, column.base_type or column.source_type
    if neutral in _TIMES:
        digits = _PRECISION.search(source)
        return f"{_TIMES[neutral]}({digits[1] if digits else 6})"
    if neutral.startswith("decimal"):
        return neutral
    if neutral == "string":
        length = _LENGTH.match(source)
        if length and int(length[1]) <= VARCHAR_MAX:
            return f"varchar({length[1]})"
        if source in ("json", "jsonb"):
            return "json"
    return _BY_NEUTRAL[neutral]


def same_type(left: str, right: str) -> bool:
    """Whether two printed types are one: display widths and spellings do not count."""
    a, b = parse_type(left), parse_type(right)
    if a is None or b is None:
        return left.lower() == right.lower()
    if a.base in _INTEGERS and a.base == b.base:
        return a.unsigned == b.unsigned
    if {a.base, b.base} == {"json", "longtext"}:
        return True  # MariaDB's JSON
    if a.base == b.base == "decimal":
        return (*a.arguments, 0)[:2] == (*b.arguments, 0)[:2] and a.unsigned == b.unsigned
    if a.base == b.base == "bit":
        return (a.arguments or (1,)) == (b.arguments or (1,))
    return (a.base, a.arguments or (0,), a.labels, a.unsigned) == (
        b.base,
        b.arguments or (0,),
        b.labels,
        b.unsigned,
    )


def default_of(column: Column) -> str:
    """The value that old rows have in a new column, as SQL for DEFAULT."""
    text = column.missing
    if text is None:
        return "null"
    if column.neutral == "bool":
        return "1" if text.lower() in ("t", "true", "1") else "0"
    if column.neutral == "binary" and text.startswith("\\x"):
        return f"x'{text[2:]}'"
    if column.neutral == "timestamptz":
        text = re.sub(r"[+-]00(:00)?\Z|Z\Z", "", text)
    return literal(text)
