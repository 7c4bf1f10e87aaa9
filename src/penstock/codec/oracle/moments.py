"""Dates and times of Oracle: the text that LogMiner prints, and the internal forms.

The text has the session's format: `2026-03-29 01:30:00.123456000 +05:30`, years before 1 with a
minus (`-0044` is 44 BC; there is no year 0). Oracle's calendar is the Julian one before 1582-10-15;
the fields are kept as they are printed. A value is Unfit for a number of microseconds if it has
digits after the microsecond, the year 0, or a leap day that only the Julian calendar has. Text has
the form that PostgreSQL reads: `0044-03-15 01:30:00.5+05:30 BC`. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.codec.oracle.values import FormatUnknown, Malformed, Unfit

DATE_MASKS = frozenset(f"{year}-MM-DD HH24:MI:SS".encode() for year in ("YYYY", "SYYYY"))
TIMESTAMP_MASKS = frozenset(
    mask + fraction for mask in DATE_MASKS for fraction in (b".FF", b".FF9")
)
ZONED_MASKS = frozenset(mask + zone for mask in TIMESTAMP_MASKS for zone in (b" TZH:TZM", b" TZR"))
OFFSET_HOURS_MAX = 15

_MOMENT = re.compile(
    rb"([ -]?)([0-9]{4})-([0-9]{2})-([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})"
    rb"(?:\.([0-9]{0,9}))?(?: ([+-])([0-9]{2}):([0-9]{2}))?"
)
_DAY_SECONDS = 86_400
_DAYS_TO_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)
_DAYS_TO_1970 = 719_528  # since 0000-01-01
_GREGORIAN_SINCE = (1582, 10, 15)


class Moment(NamedTuple):
    """A date and time as it is printed.

    Attributes:
        year: astronomical: 0 is 1 BC.
        has_year_zero: whether the text has the year 0, which no calendar of Oracle has.
        fraction: digits after the second.
        offset: minutes east of UTC; None without an offset.
    """

    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    fraction: bytes
    offset: int | None
    has_year_zero: bool


def parse_moment(text: bytes) -> Moment:
    """Return the moment of a text.

    Raises:
        FormatUnknown: The text has another format.
        Malformed: There is no such day or time.
    """
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise FormatUnknown
    year, month, day, hour, minute, second = map(int, match.groups()[1:7])
    offset = None
    if match[9]:
        offset = int(match[10]) * 60 + int(match[11])
        if int(match[10]) > OFFSET_HOURS_MAX or int(match[11]) > 59:
            raise Malformed
        offset = -offset if match[9] == b"-" else offset
    has_year_zero = not year
    if match[1] == b"-" and year:
        year = 1 - year
    if not 1 <= month <= 12 or not 1 <= day <= _month_days(year, month):
        raise Malformed
    if hour > 23 or minute > 59 or second > 59:
        raise Malformed
    fraction = (match[8] or b"").rstrip(b"0")
    return Moment(year, month, day, hour, minute, second, fraction, offset, has_year_zero)


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _month_days(year: int, month: int) -> int:
    """Return the days of a month of Oracle's calendar."""
    if month == 2:
        is_julian = (year, month, 1) < _GREGORIAN_SINCE
        return 29 if _is_leap(year) or (is_julian and year % 4 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def microseconds_of(moment: Moment) -> int:
    """Return microseconds since 1970, in UTC if the moment has an offset. Raises Unfit."""
    year, month, day = moment.year, moment.month, moment.day
    if moment.has_year_zero or len(moment.fraction) > 6:
        raise Unfit
    if month == 2 and day == 29 and not _is_leap(year):
        raise Unfit
    before = year - 1
    days = 365 * year + before // 4 - before // 100 + before // 400 + 1  # since 0000-01-01
    days += _DAYS_TO_MONTH[month - 1] + day - 1 + (month > 2 and _is_leap(year)) - _DAYS_TO_1970
    seconds = (moment.hour * 60 + moment.minute - (moment.offset or 0)) * 60 + moment.second
    fraction = int(moment.fraction.ljust(6, b"0"))
    return (days * _DAY_SECONDS + seconds) * 1_000_000 + fraction


def text_of(moment: Moment) -> str:
    """Return a moment as it is kept in a column of text, with its offset if it has one."""
    is_bc = moment.year < 1 and not moment.has_year_zero
    year = 1 - moment.year if is_bc else moment.year
    date = f"{year:04}-{moment.month:02}-{moment.day:02}"
    shown = f"{date} {moment.hour:02}:{moment.minute:02}:{moment.second:02}"
    if moment.fraction:
        shown += f".{moment.fraction.decode()}"
    if moment.offset is not None:
        hours, minutes = divmod(abs(moment.offset), 60)
        shown += f"{'-' if moment.offset < 0 else '+'}{hours:02}:{minutes:02}"
    return f"{shown} BC" if is_bc else shown


# -- internal forms --------------------------------------------------------------------------------

_DATE_BYTES, _TIMESTAMP_BYTES, _ZONED_BYTES = 7, 11, 13
_REGION_FLAG = 0x80


def read_internal_moment(data: bytes) -> str:
    """Return the text that LogMiner prints of an internal DATE (7 bytes), TIMESTAMP (7 or 11) or
    TIMESTAMP WITH TIME ZONE (13).

    Raises Malformed, also for the number of a region, whose offset only the server knows.
    """
    if len(data) not in (_DATE_BYTES, _TIMESTAMP_BYTES, _ZONED_BYTES):
        raise Malformed
    century, within = data[0] - 100, data[1] - 100
    if (century < 0 or within < 0) and (century > 0 or within > 0):
        raise Malformed
    year = century * 100 + within
    fields = [data[2], data[3], data[4] - 1, data[5] - 1, data[6] - 1]
    nanoseconds = int.from_bytes(data[7:11], "big")
    if min(fields) < 0 or max(fields[:2]) > 31 or nanoseconds > 999_999_999 or abs(year) > 9999:
        raise Malformed
    month, day, hour, minute, second = fields
    if hour > 23 or minute > 59 or second > 59:
        raise Malformed
    date = f"{'-' if year < 0 else ''}{abs(year):04}-{month:02}-{day:02}"
    shown = f"{date} {hour:02}:{minute:02}:{second:02}"
    if len(data) > _DATE_BYTES:
        shown += f".{nanoseconds:09}"
    if len(data) < _ZONED_BYTES:
        parse_moment(shown.encode())
        return shown
    return _to_zone(parse_moment(shown.encode()), data[11], data[12])


def _to_zone(utc: Moment, hour: int, minute: int) -> str:
    """Return the local text of a moment in UTC."""
    if hour & _REGION_FLAG:
        raise Malformed
    offset = (hour - 20) * 60 + minute - 60
    if abs(offset) > OFFSET_HOURS_MAX * 60 + 59:
        raise Malformed
    minutes = utc.hour * 60 + utc.minute + offset
    carry, minutes = divmod(minutes, 24 * 60)
    year, month, day = _next_day(utc, carry)
    local_hour, local_minute = divmod(minutes, 60)
    shown_year = year if year > 0 else year - 1
    sign = "-" if shown_year < 0 else ""
    nanoseconds = utc.fraction.decode().ljust(9, "0")
    hours, rest = divmod(abs(offset), 60)
    return (
        f"{sign}{abs(shown_year):04}-{month:02}-{day:02} "
        f"{local_hour:02}:{local_minute:02}:{utc.second:02}.{nanoseconds} "
        f"{'-' if offset < 0 else '+'}{hours:02}:{rest:02}"
    )


def _next_day(moment: Moment, carry: int) -> tuple[int, int, int]:
    """Return the date of a moment, of the day after it (1) or before it (-1)."""
    year, month, day = moment.year, moment.month, moment.day + carry
    if day < 1:
        year, month = (year, month - 1) if month > 1 else (year - 1, 12)
        return year, month, _month_days(year, month)
    if day > _month_days(year, month):
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        return year, month, 1
    return year, month, day
