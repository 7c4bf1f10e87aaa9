"""Columns of the model and the values that they have.

A value is int or Decimal (NUMBER, FLOAT), float (BINARY_*), str, bytes, datetime (aware for both
types with a time zone), NanoTime, int (months of an interval) or timedelta. '' is stored as None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any, NamedTuple

from sim_oracle.errors import OraError

LOBS = frozenset({"CLOB", "NCLOB", "BLOB"})
TEXTS = frozenset({"CHAR", "VARCHAR2", "NCHAR", "NVARCHAR2", "LONG"})
NATIONAL = frozenset({"NCHAR", "NVARCHAR2", "NCLOB"})
NUMBERS = frozenset({"NUMBER", "FLOAT"})
FLOATS = frozenset({"BINARY_FLOAT", "BINARY_DOUBLE"})
TIMES = frozenset(
    {"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP WITH LOCAL TIME ZONE"}
)
WHOLE_ROW_UNSUPPORTED = frozenset({"BOOLEAN", "VECTOR"})
INLINE_MAX = 4000  # bytes of a VARCHAR2 that LogMiner shows in the statement

_TYPE = re.compile(
    r"(?P<name>[A-Z_][A-Z0-9_]*(?: RAW)?)"
    r"(?:\s*\(\s*(?P<a>\d+|\*)\s*(?P<unit>CHAR|BYTE)?\s*(?:,\s*(?P<b>-?\d+)\s*)?\))?"
    r"(?P<rest>.*)\Z"
)
_FRACTION = re.compile(r"SECOND\s*\(\s*(\d)\s*\)")


class NanoTime(NamedTuple):
    """A point in time with nanoseconds below the microsecond.

    Attributes:
        time: The time up to microseconds.
        nanos: 0 to 999 nanoseconds more.
    """

    time: datetime
    nanos: int


Value = int | Decimal | float | str | bytes | datetime | NanoTime | timedelta | None
Row = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Name as in the dictionary.
        type: Declaration, e.g. `NUMBER(12,2)`.
        kind: Type's name without lengths, e.g. `TIMESTAMP WITH TIME ZONE`.
        length: Declared length of texts and RAW.
        precision: Digits of numbers, of the leading field of intervals.
        scale: Digits after the point of numbers; fractional digits of times and intervals.
        is_in_chars: Whether the length counts characters.
        is_hidden: Whether the dictionary hides it.
        is_virtual: Whether it is computed, so that redo does not have it.
        is_nullable: Whether NULL may be stored.
        is_invisible: Whether `SELECT *` and inserts without names leave it out.
        default: Expression of its default; None without one.
        identity: ALWAYS, BY DEFAULT or BY DEFAULT ON NULL; None if it has no generator.
    """

    name: str
    type: str
    kind: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    is_in_chars: bool = False
    is_hidden: bool = False
    is_virtual: bool = False
    is_nullable: bool = True
    is_invisible: bool = False
    default: str | None = None
    identity: str | None = None

    @property
    def is_lob(self) -> bool:
        """Return whether the value is stored as a LOB."""
        return self.kind in LOBS

    @property
    def is_logged(self) -> bool:
        """Return whether supplemental logging may have it."""
        is_extended = self.kind == "VARCHAR2" and (self.length or 0) > INLINE_MAX
        is_unlogged = self.is_lob or self.kind in ("XMLTYPE", "JSON", "LONG")
        return not (is_unlogged or is_extended or self.is_virtual)


def parse_column(name: str, declaration: str, **flags: Any) -> Column:
    """Return the column of a declaration such as `TIMESTAMP(6) WITH TIME ZONE`."""
    text = " ".join(declaration.upper().split())
    match = _TYPE.match(text)
    if match is None:
        raise OraError(902, text=f"invalid datatype {declaration}")
    kind, rest = match["name"], match["rest"].strip()
    first = int(match["a"]) if match["a"] not in (None, "*") else None
    second = int(match["b"]) if match["b"] is not None else None
    kind = {"VARCHAR": "VARCHAR2", "DECIMAL": "NUMBER", "NUMERIC": "NUMBER"}.get(kind, kind)
    if kind in ("INTEGER", "INT", "SMALLINT"):
        return Column(name, text, "NUMBER", None, 38, 0, **flags)
    if kind == "TIMESTAMP":
        scale = 6 if first is None else first
        return Column(name, text, f"TIMESTAMP {rest}".strip(), None, None, scale, **flags)
    if kind == "INTERVAL":
        words = "YEAR TO MONTH" if "YEAR" in rest else "DAY TO SECOND"
        leading = re.search(r"(?:YEAR|DAY)\s*\(\s*(\d)\s*\)", rest)
        fraction = _FRACTION.search(rest)
        digits = int(leading[1]) if leading else 2
        scale = int(fraction[1]) if fraction else 6
        return Column(name, text, f"INTERVAL {words}", None, digits, scale, **flags)
    if kind in NUMBERS:
        scale_of = 0 if first is not None and second is None and kind == "NUMBER" else second
        return Column(name, text, kind, None, first, scale_of, **flags)
    in_chars = match["unit"] == "CHAR" or kind in ("NCHAR", "NVARCHAR2")
    return Column(name, text, kind, first, None, None, in_chars, **flags)


def fit_value(column: Column, value: Value) -> Value:
    """Return what the database stores for a value; raises OraError if it does not fit."""
    if value is None or value in ("", b""):
        if value is not None and column.is_lob:
            return value  # an empty LOB is not NULL
        if not column.is_nullable:
            raise OraError(1400, f'"{column.name}"')
        return None
    if column.kind in NUMBERS:
        return _fit_number(column, value)
    if column.kind in ("CHAR", "NCHAR") and isinstance(value, str):
        value = value.ljust(column.length or 1)
    if isinstance(value, str) and column.length is not None and column.kind in TEXTS:
        size = len(value) if column.is_in_chars else len(value.encode())
        if size > column.length:
            raise OraError(12899, f'"{column.name}"', size, column.length)
    if column.kind == "RAW" and isinstance(value, bytes) and len(value) > (column.length or 2000):
        raise OraError(12899, f'"{column.name}"', len(value), column.length)
    if column.kind == "DATE" and isinstance(value, datetime):
        return value.replace(microsecond=0)
    return value


def _fit_number(column: Column, value: Value) -> Value:
    if not isinstance(value, int | Decimal | float):
        try:
            value = Decimal(str(value).strip())
        except InvalidOperation:
            raise OraError(1722) from None
    number = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
    if column.kind == "NUMBER" and column.scale is not None and column.precision is not None:
        with localcontext(prec=120):
            number = number.quantize(Decimal(1).scaleb(-column.scale), ROUND_HALF_UP)
        if number.copy_abs() >= Decimal(10) ** (column.precision - column.scale):
            raise OraError(1438)
    if number == number.to_integral_value() and number.copy_abs() < Decimal(10) ** 40:
        return int(number)
    with localcontext(prec=80):  # the default of 28 digits would round
        return number.normalize()
