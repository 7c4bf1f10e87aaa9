"""Implicit conversions: what a column stores for a value of another type."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from sim_oracle.cells import Lob, Months
from sim_oracle.columns import FLOATS, NUMBERS, TEXTS, Column, NanoTime, Value
from sim_oracle.errors import OraError
from sim_oracle.literals import Nls, format_time, number_text


def convert_value(column: Column, value: Any, nls: Nls) -> Value:
    """Return a value in the form that the model has for a column.

    Raises:
        OraError: 932 of types that do not fit, 1722, 1465 or 1861 of a text that does not.
    """
    if isinstance(value, Lob):
        value = value.data
    if isinstance(value, Months):
        value = value.count if column.kind == "INTERVAL YEAR TO MONTH" else value
    if value is None:
        return None
    kind = column.kind
    if kind in FLOATS:
        return _to_float(kind, value)
    if kind in NUMBERS:
        return _to_number(value)
    if kind in TEXTS or kind in ("CLOB", "NCLOB"):
        return _to_text(kind, value, nls)
    if kind in ("RAW", "LONG RAW", "BLOB"):
        return _to_bytes(kind, value)
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return _to_time(column, value, nls)
    if kind == "INTERVAL DAY TO SECOND" and not isinstance(value, timedelta):
        raise OraError(932, kind, type(value).__name__)
    if kind == "INTERVAL YEAR TO MONTH" and not isinstance(value, int):
        raise OraError(932, kind, type(value).__name__)
    if kind == "BOOLEAN":
        return int(bool(value))
    plain: Value = value
    return plain


def _to_float(kind: str, value: Any) -> float:
    if isinstance(value, bytes | datetime | timedelta):
        raise OraError(932, kind, type(value).__name__)
    try:
        number = float(value)
    except ValueError:
        raise OraError(1722) from None
    if kind == "BINARY_FLOAT" and abs(number) < 3.4e38:
        number = struct.unpack("f", struct.pack("f", number))[0]
    return number


def _to_number(value: Any) -> Value:
    if isinstance(value, bytes | datetime | timedelta):
        raise OraError(932, "NUMBER", type(value).__name__)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise OraError(1426, text="numeric overflow")
        value = Decimal(repr(value))
    number: Value = value
    return number


def _to_text(kind: str, value: Any, nls: Nls) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        if kind in ("CLOB", "NCLOB"):
            raise OraError(932, kind, "BLOB")
        return value.hex().upper()
    if isinstance(value, int | Decimal | float):
        return number_text(value, nls.numeric[0])
    if isinstance(value, datetime | NanoTime):
        return format_time(nls.date, value)
    raise OraError(932, kind, type(value).__name__)


def _to_bytes(kind: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise OraError(1465, text="invalid hex number") from None
    raise OraError(932, kind, type(value).__name__)


def _to_time(column: Column, value: Any, nls: Nls) -> Value:
    nanos = 0
    if isinstance(value, NanoTime):
        value, nanos = value.time, value.nanos
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 - DATE has no zone
    if isinstance(value, str):
        raise OraError(1861, text="the simulator does not convert texts to times by NLS settings")
    if not isinstance(value, datetime):
        raise OraError(932, column.kind, type(value).__name__)
    if column.kind in ("DATE", "TIMESTAMP"):
        value = value.replace(tzinfo=None)
    elif value.tzinfo is None:
        value = value.replace(tzinfo=timezone(timedelta(minutes=nls.zone_minutes)))
    if column.kind == "DATE":
        day: datetime = value.replace(microsecond=0)
        return day
    if column.kind == "TIMESTAMP WITH LOCAL TIME ZONE":
        value = value.astimezone(UTC)
    value, nanos = _round(value, nanos, 6 if column.scale is None else column.scale)
    return NanoTime(value, nanos) if nanos else value


def _round(time: datetime, nanos: int, digits: int) -> tuple[datetime, int]:
    """Return a time rounded to digits of a second, and its nanoseconds below microseconds."""
    unit = 10 ** (9 - digits)
    total = time.microsecond * 1000 + nanos
    rounded = (total + unit // 2) // unit * unit
    moved = time.replace(microsecond=0) + timedelta(microseconds=rounded // 1000)
    return moved, rounded % 1000
