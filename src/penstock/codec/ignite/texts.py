"""Convert values to text, for columns that hold several types and inside JSON. Nothing is cut.

Moments are UTC and end in `+00`. Not here: columns (`columns.py`).
"""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from typing import Any

from penstock.codec.ignite.values import (
    UUID,
    BinaryObject,
    Class,
    Date,
    Enum,
    JavaMap,
    Opaque,
    Time,
    Timestamp,
)

DAY_MS = 86_400_000
SCALE_SHOWN_MAX = 1000  # a number with more zeros is written with an exponent


def text_of(value: Any) -> str | None:
    """Return a value as text; None for null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, Timestamp):
        return moment_text(value.ms, value.nanos)
    if isinstance(value, Date):
        return moment_text(value.ms)
    if isinstance(value, Time):
        return time_text(value)
    if isinstance(value, Enum):
        return str(value.ordinal) if value.name is None else value.name
    if isinstance(value, Class):
        return value.type_name or str(value.type_id)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Opaque):
        return base64.b64encode(value.data).decode()
    if isinstance(value, int | float | UUID):
        return str(value)
    return json_of(value)


def decimal_text(value: Decimal) -> str:
    """Return all digits, without an exponent unless there would be too many zeros."""
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and abs(exponent) > SCALE_SHOWN_MAX:
        return str(value)
    return format(value, "f")


def moment_text(ms: int, nanos: int = 0) -> str:
    """Return `2024-02-29 12:34:56.789+00`; years before 1 end in BC. nanos: within the
    millisecond.
    """
    days, rest = divmod(ms, DAY_MS)
    return f"{_day(days, f' {_clock(rest, nanos)}+00')}"


def time_text(value: Time) -> str:
    """Return `12:34:56.789`; the whole moment if the day is not 1970-01-01."""
    days, rest = divmod(value.ms, DAY_MS)
    return moment_text(value.ms) if days else _clock(rest, 0)


def _clock(ms: int, nanos: int) -> str:
    seconds, ms = divmod(ms, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    fraction = f"{ms * 1_000_000 + nanos:09}".rstrip("0")
    return f"{hour:02}:{minute:02}:{second:02}{'.' + fraction if fraction else ''}"


def _day(days: int, behind: str) -> str:
    """Return year, month and day of a day since 1970-01-01, for any year."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = year_of_era + era * 400 + (month <= 2)
    if year < 1:
        return f"{1 - year:04}-{month:02}-{day:02}{behind} BC"
    return f"{year:04}-{month:02}-{day:02}{behind}"


# -- JSON --------------------------------------------------------------------------------------


def json_of(value: Any) -> str | None:
    """Return a value as JSON; None for null.

    An object becomes its fields by name, a map with a key that is not text a list of pairs, and
    bytes base64. A container within itself becomes `{"$up": levels}`.
    """
    return None if value is None else _json(value, [])


def _json(value: Any, above: list[int]) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else json.dumps(str(value))
    if isinstance(value, list | JavaMap | BinaryObject):
        return _container(value, above)
    return json.dumps(text_of(value), ensure_ascii=False)


def _container(value: Any, above: list[int]) -> str:
    if id(value) in above:
        return f'{{"$up":{len(above) - above.index(id(value))}}}'
    inner = [*above, id(value)]
    if isinstance(value, list):
        return f"[{','.join(_json(one, inner) for one in value)}]"
    pairs = value.pairs if isinstance(value, JavaMap) else list(value.fields.items())
    if all(isinstance(key, str) for key, _ in pairs):
        shown = (f"{json.dumps(k, ensure_ascii=False)}:{_json(v, inner)}" for k, v in pairs)
        return f"{{{','.join(shown)}}}"
    return f"[{','.join(f'[{_json(k, inner)},{_json(v, inner)}]' for k, v in pairs)}]"
