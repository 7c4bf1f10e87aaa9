"""Convert Arrow columns to exact text as PostgreSQL prints it (ISO dates, UTC). Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import cast_exactly

_DAY_US = 86_400_000_000
_HEX = np.frombuffer(b"".join(b"%02x" % number for number in range(256)), np.uint8).reshape(-1, 2)
_UUID_DIGITS = np.array([n for n in range(36) if n not in (8, 13, 18, 23)])


def exact_texts(values: Any, neutral: str) -> list[str | None]:
    """Return values of a neutral type as exact text, not escaped; None for NULL."""
    kind = neutral.partition("(")[0]
    if kind in _STORED_AS:
        values = cast_exactly(values, _STORED_AS[kind])
    elif kind in ("float32", "float64"):
        values = pc.cast(values, pa.string())  # the shortest text that reads back as the same
    text = _TEXT_OF[kind]
    return [None if value is None else text(value) for value in values.to_pylist()]


def date_text(days: int) -> str:
    """Return a date as PostgreSQL prints it (ISO), of any year. days: since 1970-01-01."""
    # Civil date from a day number, proleptic Gregorian, in eras of 400 years from March on.
    era, day_of_era = divmod(days + 719_468, 146_097)
    leap_days = day_of_era // 1_460 - day_of_era // 36_524 + day_of_era // 146_096
    year_of_era = (day_of_era - leap_days) // 365
    day = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day + 2) // 153
    day_of_month = day - (153 * month + 2) // 5 + 1
    year = year_of_era + era * 400 + (month >= 10)
    month = month + 3 if month < 10 else month - 9
    if year <= 0:
        return f"{1 - year:04}-{month:02}-{day_of_month:02} BC"
    return f"{year:04}-{month:02}-{day_of_month:02}"


def time_text(microseconds: int) -> str:
    """Return a time of day as PostgreSQL prints it: no zeros at the end of the fraction."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{hour:02}:{minute:02}:{second:02}"
    return text + f".{fraction:06}".rstrip("0") if fraction else text


def timestamp_text(microseconds: int, zone: str = "") -> str:
    """Return a timestamp as PostgreSQL prints it. microseconds: since 1970 UTC. zone: `+00`, or
    empty for none.
    """
    days, rest = divmod(microseconds, _DAY_US)
    day, space, era = date_text(days).partition(" ")
    return f"{day} {time_text(rest)}{zone}{space}{era}"


def uuid_texts(values: pa.Array) -> pa.Array:
    """Return UUIDs of 16 bytes as text, as an Arrow column."""
    size = len(values)
    raw = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * 16 :][: size * 16]
    digits = _HEX[raw].reshape(size, 32)
    texts = np.full((size, 36), ord("-"), np.uint8)
    texts[:, _UUID_DIGITS] = digits
    offsets = pa.py_buffer(np.arange(size + 1, dtype=np.int32) * 36)
    found = pa.StringArray.from_buffers(size, offsets, pa.py_buffer(texts))
    if not values.null_count:
        return found
    return pc.if_else(values.is_valid(), found, pa.scalar(None, pa.string()))


def _uuid_text(value: bytes) -> str:
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


_FLOAT_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_STORED_AS = {
    "date": pa.int32(),
    "time": pa.int64(),
    "timestamp": pa.int64(),
    "timestamptz": pa.int64(),
}
_TEXT_OF: dict[str, Callable[[Any], str]] = {
    "bool": lambda value: "t" if value else "f",
    "int16": str,
    "int32": str,
    "int64": str,
    "uint32": str,
    "uint64": str,
    "float32": lambda value: _FLOAT_NAMES.get(value, value),
    "float64": lambda value: _FLOAT_NAMES.get(value, value),
    "decimal": lambda value: f"{value:f}",
    "date": date_text,
    "time": time_text,
    "timestamp": timestamp_text,
    "timestamptz": lambda value: timestamp_text(value, "+00"),
    "uuid": _uuid_text,
    "binary": bytes.hex,
    "string": str,
}
