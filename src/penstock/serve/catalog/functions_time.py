"""Functions of times: differences, parts and truncation, in UTC like all times here."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from penstock.codec.exact_text import timestamp_text
from penstock.codec.postgres import pgtext
from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.functions import Context, function

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
