"""Functions of texts, numbers, times and arrays. Arrays are JSON texts here, as in `types.py`.

Times are in UTC like all times here.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock.codec.exact_text import timestamp_text
from penstock.codec.postgres import pgtext
from penstock.codec.postgres.names import quote_ident
from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.functions import Context, function
from penstock.serve.catalog.patterns import first_match, replace_matches
from penstock.serve.catalog.types import json_of

_FLAGS_KNOWN = "gi"
LETTERS_MAX = 1 << 22
_SERIES_MAX = 100_000


@function("lower(text) -> text")
def _lower(_: Context, text: str) -> str:
    return text.lower()


@function("upper(text) -> text")
def _upper(_: Context, text: str) -> str:
    return text.upper()


@function("length(text) -> int4")
@function("char_length(text) -> int4")
@function("character_length(text) -> int4")
def _length(_: Context, text: str) -> int:
    return len(text)


@function("octet_length(text) -> int4")
def _octets(_: Context, text: str) -> int:
    return len(text.encode())


@function("left(text, int4) -> text")
def _take_left(_: Context, text: str, count: int) -> str:
    return text[:count] if count >= 0 else text[: max(0, len(text) + count)]


@function("right(text, int4) -> text")
def _right(_: Context, text: str, count: int) -> str:
    return text[max(0, len(text) - count) :] if count >= 0 else text[-count:]


@function("substr(text, int4, int4?) -> text")
@function("substring(text, int4, int4?) -> text")
def _substring(_: Context, text: str, start: int, length: int | None = None) -> str:
    if length is None:
        return text[max(0, start - 1) :]
    if length < 0:
        raise Refused("22011", "negative substring length not allowed")
    return text[max(0, start - 1) : max(0, start - 1 + length)]


@function("substring(text, text) -> text")
def _substring_of(_: Context, text: str, pattern: str) -> str | None:
    return first_match(text, pattern)


@function("replace(text, text, text) -> text")
def _replace(_: Context, text: str, old: str, new: str) -> str:
    _check_growth(text, text.count(old) if old else 0, new)
    return text.replace(old, new) if old else text


@function("strpos(text, text) -> int4")
@function("position(text, text) -> int4")
def _position(_: Context, text: str, part: str) -> int:
    return text.find(part) + 1


@function("starts_with(text, text) -> bool")
def _starts(_: Context, text: str, start: str) -> int:
    return int(text.startswith(start))


@function("split_part(text, text, int4) -> text")
def _split(_: Context, text: str, separator: str, number: int) -> str:
    parts = text.split(separator) if separator else [text]
    if number == 0:
        raise Refused("22023", "field position must not be zero")
    place = number - 1 if number > 0 else len(parts) + number
    return parts[place] if 0 <= place < len(parts) else ""


@function("btrim(text, text?) -> text")
def _trim(_: Context, text: str, characters: str = " ") -> str:
    return text.strip(characters)


@function("ltrim(text, text?) -> text")
def _trim_left(_: Context, text: str, characters: str = " ") -> str:
    return text.lstrip(characters)


@function("rtrim(text, text?) -> text")
def _trim_right(_: Context, text: str, characters: str = " ") -> str:
    return text.rstrip(characters)


@function("quote_ident(text) -> text")
def _quote_name(_: Context, text: str) -> str:
    return quote_ident(text)


@function("quote_literal(text) -> text")
def _quote_text(_: Context, text: str) -> str:
    doubled = text.replace("'", "''")
    return f" E'{doubled}'".replace("\\", "\\\\") if "\\" in text else f"'{doubled}'"


@function("regexp_replace(text, text, text, text?) -> text")
def _replace_pattern(_: Context, text: str, pattern: str, new: str, flags: str = "") -> str:
    if set(flags) - set(_FLAGS_KNOWN):
        raise Refused("0A000", f"flags of regular expressions are not supported: {flags}")
    _check_growth(text, len(text) + 1, new)
    return replace_matches(text, pattern, new, ignore_case="i" in flags, every="g" in flags)


def _check_growth(text: str, places: int, new: str) -> None:
    """Refuse a result with too many letters before it is made."""
    if len(text) + places * len(new) > LETTERS_MAX:
        raise Refused("54000", f"a text would have more than {LETTERS_MAX} letters")


# -- numbers ----------------------------------------------------------------------------------


@function("abs(int4) -> int4")
@function("abs(int8) -> int8")
def _abs(_: Context, number: int) -> int:
    return abs(number)


@function("pg_size_pretty(int8) -> text")
@function("pg_size_pretty(numeric) -> text")
def _size(context: Context, size: int) -> str:
    if abs(size) < 10 * 1024:
        return f"{size} bytes"
    sign, doubled = (-1 if size < 0 else 1), abs(size) >> 9
    units = ["kB", "MB", "GB", "TB", *(["PB"] if context.facts.version >= 15 else [])]
    for unit in units[:-1]:
        if doubled < 20 * 1024 - 1:
            return f"{sign * ((doubled + 1) // 2)} {unit}"
        doubled >>= 10
    return f"{sign * ((doubled + 1) // 2)} {units[-1]}"


# -- arrays -----------------------------------------------------------------------------------


@function("array_length(anyarray, int4) -> int4")
def _array_length(_: Context, array: str, dimension: int) -> int | None:
    return len(json.loads(array)) or None if dimension == 1 else None


@function("cardinality(anyarray) -> int4")
def _cardinality(_: Context, array: str) -> int:
    return len(json.loads(array))


@function("array_ndims(anyarray) -> int4")
def _dimensions(_: Context, array: str) -> int | None:
    return 1 if json.loads(array) else None


@function("array_position(anyarray, anyelement) -> int4", strict=False)
def _place(_: Context, array: str | None, wanted: Any) -> int | None:
    elements = [] if array is None else json.loads(array)
    return elements.index(wanted) + 1 if wanted in elements else None


@function("array_append(anyarray, anyelement) -> anyarray", strict=False)
def _append(_: Context, array: str | None, element: Any) -> str:
    return json_of([*([] if array is None else json.loads(array)), element])


@function("array_cat(anyarray, anyarray) -> anyarray", strict=False)
def _concatenate(_: Context, one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return one if other is None else other
    return json_of(json.loads(one) + json.loads(other))


@function("string_to_array(text, text, text?) -> text[]", strict=False)
def _text_to_array(
    _: Context, text: str | None, separator: str | None, null: str | None = None
) -> str | None:
    if text is None:
        return None
    if separator is None:
        parts = list(text)
    else:
        parts = [] if text == "" else text.split(separator) if separator else [text]
    return json_of([None if null is not None and part == null else part for part in parts])


@function("unnest(anyarray) -> setof anyelement")
def _unnest(_: Context, array: str) -> list[list[Any]]:
    return [[element] for element in json.loads(array)]


@function("generate_series(int4, int4, int4?) -> setof int4")
@function("generate_series(int8, int8, int8?) -> setof int8")
def _series(_: Context, start: int, stop: int, step: int = 1) -> list[list[int]]:
    if step == 0:
        raise Refused("22023", "step size cannot equal zero")
    found = range(start, stop + (1 if step > 0 else -1), step)
    if len(found) > _SERIES_MAX:
        raise Refused("54000", f"generate_series of more than {_SERIES_MAX} rows")
    return [[number] for number in found]


@function("information_schema._pg_expandarray(anyarray) -> setof (x anyelement, n int4)")
def _expand(_: Context, array: str) -> list[list[Any]]:
    return [[element, number] for number, element in enumerate(json.loads(array), 1)]


_INTERVAL = re.compile(
    r"(?:(-?[0-9]{1,9}) days? ?)?(?:(-?)([0-9]{2,12}):([0-9]{2}):([0-9.]{2,9}))?"
)
_DAY_US = 86_400_000_000
_FIELDS = ("year", "month", "day", "hour", "minute")
_TRUNCATED = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_time(text: str) -> int:
    """Return microseconds since 1970 of a timestamp or a date. Raises Refused: 22007."""
    data = text.encode()
    try:
        if len(text) == len("2024-01-01"):
            return pgtext.read_date(data) * _DAY_US
        if text.endswith(("+00", "+00 BC")):
            return pgtext.read_timestamptz(data)
        return pgtext.read_timestamp(data)
    except ValueError:
        raise Refused("22007", f'invalid input syntax for type timestamp: "{text}"') from None


def time_difference(later: str, earlier: str) -> str:
    """Return an interval in days and hours, as the server prints it."""
    found = read_time(later) - read_time(earlier)
    sign, rest = ("-", -found) if found < 0 else ("", found)
    days, rest = divmod(rest, _DAY_US)
    clock = timestamp_text(rest).partition(" ")[2]
    if not days:
        return f"{sign}{clock}"
    shown = f"{sign}{days} day{'' if (sign, days) == ('', 1) else 's'}"
    return shown if not rest else f"{shown} {sign}{clock}"


@function("extract(text, interval) -> numeric")
@function("date_part(text, interval) -> float8")
def _part_of_interval(_: Context, name: str, interval: str) -> float:
    match = _INTERVAL.fullmatch(interval)
    if match is None or name.lower() != "epoch":
        raise Refused("0A000", f"{name} of the interval {interval} is not supported")
    found = float(match[1] or 0) * 86_400
    if match[3] is not None:
        seconds = int(match[3]) * 3600 + int(match[4]) * 60 + float(match[5])
        found += -seconds if match[2] else seconds
    return found


@function("extract(text, timestamptz) -> numeric")
@function("extract(text, timestamp) -> numeric")
@function("extract(text, date) -> numeric")
@function("date_part(text, timestamptz) -> float8")
@function("date_part(text, timestamp) -> float8")
def _part_of_time(_: Context, name: str, text: str) -> float:
    field, microseconds = name.lower(), read_time(text)
    if field == "epoch":
        return microseconds / 1e6
    moment = _moment(microseconds)
    if field in _FIELDS:
        return int(getattr(moment, field))
    if field in ("second", "seconds"):
        return moment.second + moment.microsecond / 1e6
    raise Refused("0A000", f"extract({name}) is not supported")


@function("date_trunc(text, timestamptz) -> timestamptz")
def _truncated_zoned(_: Context, name: str, text: str) -> str:
    return timestamp_text(_truncate(name, text), "+00")


@function("date_trunc(text, timestamp) -> timestamp")
def _truncated_plain(_: Context, name: str, text: str) -> str:
    return timestamp_text(_truncate(name, text))


def _truncate(name: str, text: str) -> int:
    field = name.lower()
    if field not in _TRUNCATED:
        raise Refused("0A000", f"date_trunc of {name} is not supported")
    moment = _moment(read_time(text))
    day = moment.date()
    if field in ("hour", "minute", "second"):
        found = moment.replace(microsecond=0)
        if field != "second":
            found = found.replace(second=0)
        if field == "hour":
            found = found.replace(minute=0)
        return round((found - _EPOCH) / timedelta(microseconds=1))
    if field == "week":
        day -= timedelta(days=day.weekday())
    elif field == "quarter":
        day = date(day.year, (day.month - 1) // 3 * 3 + 1, 1)
    elif field == "month":
        day = day.replace(day=1)
    elif field == "year":
        day = date(day.year, 1, 1)
    return (day - date(1970, 1, 1)).days * _DAY_US


def _moment(microseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise Refused("0A000", "parts of such a time are not supported") from None
