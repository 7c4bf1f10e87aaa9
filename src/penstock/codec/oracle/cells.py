"""Plan for the values of a relation's columns: the way in which each is read. Pure.

A plan is made once for a relation; twin and kernel read by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from penstock.codec.columns import arrow_type
from penstock.codec.oracle.types import parse_type
from penstock.model import Column, Relation


class How(IntEnum):
    """Way to read a value. The kernel has the same numbers."""

    INTEGER = 1
    DECIMAL = 2
    NUMBER_TEXT = 3
    FLOAT = 4
    FLOAT_TEXT = 5
    TEXT = 6
    BYTES = 7
    DATE = 8
    TIMESTAMP = 9
    ZONED = 10
    LOCAL = 11
    MONTHS = 12
    SECONDS = 13
    UNREAD = 14


@dataclass(frozen=True, slots=True)
class Plan:
    """Way to read a column.

    Attributes:
        how: way to read a value.
        neutral: type of the column in the log.
        precision: digits of a decimal; 0 for another type.
        scale: digits after its point.
        may_be_large: whether the type has values that statements lack, which follow in other rows.
        is_long: whether the type is LONG, of which statements have LONG_DATA in place of a text
            that is too large for them.
    """

    how: How
    neutral: str
    precision: int = 0
    scale: int = 0
    may_be_large: bool = False
    is_long: bool = False


LONG_DATA = b"LONG DATA"
_BY_BASE = {
    "BINARY_FLOAT": How.FLOAT,
    "BINARY_DOUBLE": How.FLOAT,
    "DATE": How.DATE,
    "TIMESTAMP": How.TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": How.ZONED,
    "TIMESTAMP WITH LOCAL TIME ZONE": How.LOCAL,
    "INTERVAL YEAR TO MONTH": How.MONTHS,
    "INTERVAL DAY TO SECOND": How.SECONDS,
    "RAW": How.BYTES,
    "LONG RAW": How.BYTES,
    "BLOB": How.BYTES,
    **dict.fromkeys(
        ("CHAR", "VARCHAR2", "NCHAR", "NVARCHAR2", "CLOB", "NCLOB", "LONG", "ROWID", "UROWID"),
        How.TEXT,
    ),
}
_NEUTRALS: dict[How, frozenset[str]] = {
    How.FLOAT: frozenset(("float32", "float64")),
    How.TEXT: frozenset(("string",)),
    How.BYTES: frozenset(("binary",)),
    How.DATE: frozenset(("timestamp", "string")),
    How.TIMESTAMP: frozenset(("timestamp", "string")),
    How.ZONED: frozenset(("string",)),
    How.LOCAL: frozenset(("timestamptz", "string")),
    How.MONTHS: frozenset(("string",)),
    How.SECONDS: frozenset(("string",)),
}


def plan_column(column: Column) -> Plan:
    """Return the way to read a column. Raises ValueError for a neutral type that its type cannot
    have.
    """
    kind, neutral = parse_type(column.base_type or column.source_type), column.neutral
    if kind.is_number:
        return _plan_number(neutral, column)
    how = _BY_BASE.get(kind.base, How.UNREAD)
    if how is How.FLOAT and neutral == "string":
        return Plan(How.FLOAT_TEXT, neutral)
    if how is not How.UNREAD and neutral not in _NEUTRALS[how]:
        raise _unfit(column)
    return Plan(
        how, neutral, may_be_large=kind.may_be_large, is_long=kind.base in ("LONG", "LONG RAW")
    )


def _plan_number(neutral: str, column: Column) -> Plan:
    if neutral == "string":
        return Plan(How.NUMBER_TEXT, neutral)
    if neutral in ("int16", "int32", "int64"):
        return Plan(How.INTEGER, neutral)
    if neutral.startswith("decimal("):
        decimal = arrow_type(neutral)
        return Plan(How.DECIMAL, neutral, decimal.precision, decimal.scale)
    raise _unfit(column)


def _unfit(column: Column) -> ValueError:
    return ValueError(f"{column.name}: {column.source_type} is not read as {column.neutral}")


def plan_columns(relation: Relation) -> Sequence[Plan]:
    """Return the way to read each column of a relation."""
    return tuple(map(plan_column, relation.columns))
