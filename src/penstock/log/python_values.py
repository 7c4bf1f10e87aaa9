"""Columns of the log as plain Python values: int, Decimal, str, bytes, dates and times.

A uuid is its text. A date or time of a year that Python does not have is text, too. Pure.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa

from penstock.codec.exact_text import date_text, exact_texts, timestamp_text

EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - timestamps without a zone
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


def python_values(values: Any, neutral: str) -> list[Any]:
    """Return one value per row, None for NULL.

    Args:
        values: the column.
        neutral: type of the column, as in `Column.neutral`.
    """
    match neutral:
        case "uuid":
            return exact_texts(values, neutral)
        case "date":
            return _each(values.cast(pa.int32()), _date)
        case "timestamp":
            return _each(values.cast(pa.int64()), lambda n: _moment(n, _EPOCH, ""))
        case "timestamptz":
            return _each(values.cast(pa.int64()), lambda n: _moment(n, EPOCH_UTC, "+00"))
    return cast("list[Any]", values.to_pylist())


def _each(values: Any, function: Callable[[int], Any]) -> list[Any]:
    return [None if value is None else function(value) for value in values.to_pylist()]


def _date(days: int) -> datetime.date | str:
    try:
        return datetime.date.fromordinal(days + _EPOCH_DAY)
    except (ValueError, OverflowError):
        return date_text(days)


def _moment(microseconds: int, epoch: datetime.datetime, zone: str) -> datetime.datetime | str:
    try:
        return epoch + datetime.timedelta(microseconds=microseconds)
    except OverflowError:
        return timestamp_text(microseconds, zone)
