"""Statistics of data files, the JSON text that an add action of Delta's log has.

Bounds are for skipping files only, so they may be wider than the values. What a reader could take
as too narrow is left out: floats with NaN or infinity, booleans and bytes. Keys of the JSON are the
columns' names in Parquet files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from penstock.engines.lake.format import ColumnStatistics, LakeColumn

INDEXED_COLUMNS = 32
"""Number of first columns that have statistics, as in other writers; those of the key as well."""

TEXT_CHARACTERS = 32
_LAST_CHARACTER = "\U0010ffff"
_MILLISECOND = timedelta(milliseconds=1)
_INTEGERS = frozenset({"int32", "int64"})
_FLOATS = frozenset({"float32", "float64"})


def make_statistics(
    row_count: int,
    found: Mapping[str, ColumnStatistics],
    columns: Sequence[LakeColumn],
    key: Iterable[str] = (),
) -> str:
    """Return the text for a new file.

    Args:
        row_count: Rows of the file.
        found: By the columns' present names.
        columns: All columns of the table.
        key: Names of columns that have statistics wherever they stand.
    """
    wanted = {column.name for column in columns[:INDEXED_COLUMNS]} | set(key)
    low: dict[str, str] = {}
    high: dict[str, str] = {}
    nulls: dict[str, str] = {}
    for column in columns:
        one = found.get(column.name)
        if one is None or column.name not in wanted:
            continue
        name = column.file_name
        nulls[name] = str(one.null_count)
        if one.nan_count == 0 and (text := low_text(column.type, one.low)):
            low[name] = text
        if one.nan_count == 0 and (text := high_text(column.type, one.high)):
            high[name] = text
    parts = {"numRecords": str(row_count)}
    for title, values in (("minValues", low), ("maxValues", high), ("nullCount", nulls)):
        if values:
            parts[title] = _object(values)
    return _object(parts)


def widen_bounds(text: str, row_count: int) -> str:
    """Return a file's statistics for when some of its rows are deleted."""
    found = _load(text)
    if not isinstance(found, dict) or not isinstance(found.get("numRecords"), int):
        return _object({"numRecords": str(row_count), "tightBounds": "false"})
    if found.get("tightBounds") is False:
        return text
    body = text.strip()
    if "tightBounds" in found:
        return re.sub(r'"tightBounds"\s*:\s*true', '"tightBounds":false', body)
    return f'{body[:-1].rstrip()},"tightBounds":false}}'


def low_text(kind: str, value: Any) -> str:
    """Return the JSON of a lower bound; empty if the type has none."""
    if value is None:
        return ""
    if kind == "string":
        return json.dumps(str(value)[:TEXT_CHARACTERS])
    if kind in ("timestamp", "timestamptz"):
        cut = value - timedelta(microseconds=value.microsecond % 1000)
        return _moment(kind, cut)
    return _plain(kind, value)


def high_text(kind: str, value: Any) -> str:
    """Return the JSON of an upper bound; empty if the type has none."""
    if value is None:
        return ""
    if kind == "string":
        text = str(value)
        if len(text) <= TEXT_CHARACTERS:
            return json.dumps(text)
        if text[TEXT_CHARACTERS] == _LAST_CHARACTER:
            return ""
        return json.dumps(text[:TEXT_CHARACTERS] + _LAST_CHARACTER)
    if kind in ("timestamp", "timestamptz"):
        rest = value.microsecond % 1000
        try:
            return _moment(kind, value + timedelta(microseconds=(1000 - rest) % 1000))
        except OverflowError:
            return ""
    return _plain(kind, value)


def _plain(kind: str, value: Any) -> str:
    if kind in _INTEGERS:
        return str(int(value))
    if kind in _FLOATS:
        return json.dumps(float(value)) if math.isfinite(value) else ""
    if kind == "date":
        return json.dumps(value.isoformat())
    if kind.startswith("decimal"):
        return format(Decimal(value), "f")
    return ""


def _moment(kind: str, value: datetime) -> str:
    zone = "Z" if kind == "timestamptz" else ""
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return json.dumps(value.isoformat(timespec="milliseconds") + zone)


def _object(values: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in values.items()) + "}"


def read_row_count(text: str | None) -> int | None:
    """Return the number of rows that statistics name; None if they do not."""
    found = _load(text or "")
    number = found.get("numRecords") if isinstance(found, dict) else None
    return number if isinstance(number, int) else None


def read_bounds(text: str | None, columns: Iterable[LakeColumn]) -> dict[str, tuple[Any, Any]]:
    """Return the bounds by the columns' present names, of those that have both.

    Statistics that another writer wrote and that cannot be read are as if there were none.
    """
    found = _load(text or "")
    if not isinstance(found, dict):
        return {}
    lows, highs = found.get("minValues"), found.get("maxValues")
    if not isinstance(lows, dict) or not isinstance(highs, dict):
        return {}
    bounds: dict[str, tuple[Any, Any]] = {}
    for column in columns:
        low, high = lows.get(column.file_name), highs.get(column.file_name)
        if low is None or high is None:
            continue
        try:
            both = _value(column.type, low), _value(column.type, high)
            if column.type in ("timestamp", "timestamptz"):
                both = both[0], both[1] + _MILLISECOND  # other writers cut them
        except (ValueError, ArithmeticError, TypeError, AttributeError):
            continue
        if None not in both:
            bounds[column.name] = both
    return bounds


def _value(kind: str, found: Any) -> Any:
    if kind in _INTEGERS:
        return int(found)
    if kind in _FLOATS:
        return float(found)
    if kind.startswith("decimal"):
        return Decimal(found)
    if kind == "date":
        return date.fromisoformat(found)
    if kind == "string":
        return str(found)
    if kind in ("timestamp", "timestamptz"):
        moment = datetime.fromisoformat(found)
        if kind == "timestamp":
            return moment.replace(tzinfo=None)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return None


def _load(text: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal) if text else None
    except ValueError:
        return None
