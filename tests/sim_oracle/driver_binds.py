"""Types of binds: what the driver takes, and as which type of the database it sends it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sim_oracle.cells import Lob, Months
from sim_oracle.columns import NanoTime
from sim_oracle.driver_errors import raise_driver

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "DB_TYPE_BOOLEAN"),
    (int, "DB_TYPE_NUMBER"),
    (float, "DB_TYPE_NUMBER"),
    (Decimal, "DB_TYPE_NUMBER"),
    (str, "DB_TYPE_VARCHAR"),
    (bytes, "DB_TYPE_RAW"),
    (bytearray, "DB_TYPE_RAW"),
    (datetime, "DB_TYPE_DATE"),
    (date, "DB_TYPE_DATE"),
    (timedelta, "DB_TYPE_INTERVAL_DS"),
    (Lob, "DB_TYPE_CLOB"),
    (Months, "DB_TYPE_INTERVAL_YM"),
    (NanoTime, "DB_TYPE_TIMESTAMP"),
)


def kind_of(value: Any) -> str:
    """Return the name of the type as which a value is bound; raises DPY-3002."""
    for python, name in _KINDS:
        if isinstance(value, python):
            return name
    raise_driver(3002, type(value).__name__)


def to_bind(value: Any, kind: str = "") -> Any:
    """Return what the server gets for a value.

    Args:
        value: Value of Python; LOB objects as `Lob`.
        kind: Name of the type that setinputsizes() or Arrow chose; empty if the value decides.
            Without it a datetime is a DATE, which has no fraction of a second, and a float is a
            NUMBER, which has no NaN.
    """
    if value is None:
        return None
    kind_of(value)
    if isinstance(value, str | bytes) and not value:
        return None  # an empty text is NULL
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, float) and not math.isfinite(value) and "BINARY" not in kind:
        raise_driver(4004)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise_driver(4004)
        return int(value) if value == value.to_integral_value() else value
    if isinstance(value, str) and kind in ("DB_TYPE_CLOB", "DB_TYPE_NCLOB"):
        return Lob(kind.removeprefix("DB_TYPE_"), value)
    if isinstance(value, bytes) and kind == "DB_TYPE_BLOB":
        return Lob("BLOB", value)
    return _to_time(value, kind) if isinstance(value, date) else value


def _to_time(value: date, kind: str) -> datetime:
    if not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001 - DATE has no zone
    plain = value.replace(tzinfo=None)  # the driver sends the time as it is written
    if "TIMESTAMP" not in kind:
        return plain.replace(microsecond=0)
    return plain.replace(tzinfo=UTC) if kind.endswith("_TZ") else plain


def check_columns(rows: Sequence[Sequence[Any]]) -> None:
    """Raise DPY-3013 if the values of a column are bound as different types."""
    if not rows or not isinstance(rows[0], list | tuple):
        return
    chosen: list[str | None] = [None] * len(rows[0])
    for row in rows:
        for place, value in enumerate(row[: len(chosen)]):
            if value is None or type(value).__name__ == "LOB":
                continue
            kind = kind_of(value)
            if chosen[place] is None:
                chosen[place] = kind
            elif chosen[place] != kind:
                raise_driver(3013, type(value).__name__, chosen[place])


def rows_of_frame(data: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of an object with an Arrow stream, as the driver binds them.

    Raises DPY-3032 of a type that the driver does not convert.
    """
    table = pa.table(data)
    for field in table.schema:
        _check_type(field.type)
    for batch in table.to_batches(max_chunksize=1024):
        yield from zip(*(_values(column) for column in batch.columns), strict=True)


def _check_type(kind: pa.DataType) -> None:
    checks = pa.types
    if (
        checks.is_integer(kind)
        or checks.is_float32(kind)
        or checks.is_float64(kind)
        or checks.is_decimal128(kind)
        or checks.is_string(kind)
        or checks.is_large_string(kind)
        or checks.is_binary(kind)
        or checks.is_large_binary(kind)
        or checks.is_fixed_size_binary(kind)
        or checks.is_date(kind)
        or checks.is_boolean(kind)
        or checks.is_null(kind)
        or (checks.is_timestamp(kind) and kind.tz is None)
        or kind == pa.month_day_nano_interval()
    ):
        return
    raise_driver(3032, str(kind))


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return [_time_of(one) for one in column.cast(pa.int64()).to_pylist()]
    if kind == pa.month_day_nano_interval():
        return [_interval_of(one) for one in column.to_pylist()]
    name = ""
    if pa.types.is_floating(kind):
        name = "DB_TYPE_BINARY_DOUBLE"
    elif pa.types.is_timestamp(kind):
        name = "DB_TYPE_TIMESTAMP"
    return [to_bind(one, name) for one in column.to_pylist()]


def _time_of(nanos: int | None) -> Any:
    if nanos is None:
        return None
    micros, rest = divmod(nanos, 1000)
    time = datetime(1970, 1, 1) + timedelta(microseconds=micros)  # noqa: DTZ001
    return NanoTime(time, rest)


def _interval_of(value: Any) -> Any:
    if value is None:
        return None
    if value.months and (value.days or value.nanoseconds):
        raise_driver(3042)
    if value.months:
        return Months(value.months)
    return timedelta(days=value.days, microseconds=value.nanoseconds // 1000)
