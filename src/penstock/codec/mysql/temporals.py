"""Convert stored dates and times of MySQL and MariaDB to Arrow's numbers or the server's text.

Each reader takes the bytes of one value. `fields` readers return the calendar parts. `to_*` convert
them to days or microseconds and raise Unfit for a value without such a number (zero dates,
2024-02-31, times of day below zero or above 24 hours). `*_text` return what the server prints. The
readable form of what `_binlog.pyx` does. Sources: the layouts are in the servers' manuals and were
compared with what real servers print (tests/unit/test_binlog_recorded.py).
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.codec.mysql.malformed import Malformed, Unfit

_HOUR_MAX = 838
_YEAR_MAX = 9999
_DAY_US = 86_400_000_000
_DATETIME_SIGN = 0x80_0000_0000
_TIME_SIGN = 0x80_0000
FSP_MAX = 6

# MariaDB before 10.1 format, by digits of the fraction: bytes of TIME and DATETIME, and of the
# fraction of TIMESTAMP.
HIRES_TIME_BYTES = (3, 4, 4, 5, 5, 5, 6)
HIRES_DATETIME_BYTES = (5, 6, 6, 7, 7, 7, 8)
HIRES_FRACTION_BYTES = (0, 1, 1, 2, 2, 3, 3)
_HIRES_TIME_ZERO_S = 3_020_400  # 839 hours: the number that is stored for 00:00:00


class Moment(NamedTuple):
    """A calendar date and time of day; parts may be 0 in zero dates. micro: microseconds."""

    year: int
    month: int
    day: int
    hour: int = 0
    minute: int = 0
    second: int = 0
    micro: int = 0


class TimeSpan(NamedTuple):
    """A TIME: sign and size in microseconds."""

    negative: bool
    micro: int


def fraction_bytes(fsp: int) -> int:
    """Return how many bytes the fraction of the newer formats takes."""
    return (fsp + 1) // 2


def _fraction_us(data: bytes) -> int:
    """Return the microseconds of a stored fraction: hundredths, ten-thousandths or millionths."""
    number = int.from_bytes(data)
    if number >= 100 ** len(data):
        raise Malformed
    return int(number * 100 ** (3 - len(data)))


def _check(moment: Moment) -> Moment:
    if (
        moment.year > _YEAR_MAX
        or moment.month > 12
        or moment.day > 31
        or moment.hour > 23
        or moment.minute > 59
        or moment.second > 59
    ):
        raise Malformed
    return moment


# --- stored forms


def date_fields(data: bytes) -> Moment:
    """Read DATE: 24 bits, little-endian."""
    packed = int.from_bytes(data, "little")
    return _check(Moment(packed >> 9, packed >> 5 & 15, packed & 31))


def datetime_fields(data: bytes) -> Moment:
    """Read DATETIME since MySQL 5.6: 40 bits, big-endian, and the fraction."""
    packed = int.from_bytes(data[:5]) - _DATETIME_SIGN
    if packed < 0:
        raise Malformed
    year, month = divmod(packed >> 22, 13)
    return _check(
        Moment(
            year,
            month,
            packed >> 17 & 31,
            packed >> 12 & 31,
            packed >> 6 & 63,
            packed & 63,
            _fraction_us(data[5:]),
        )
    )


def time_span(data: bytes) -> TimeSpan:
    """Read TIME since MySQL 5.6: 24 bits and the fraction as one big-endian number."""
    size = len(data) - 3
    packed = int.from_bytes(data) - (_TIME_SIGN << 8 * size)
    negative = packed < 0
    packed = abs(packed)
    whole = packed >> 8 * size
    fraction = (packed & ((1 << 8 * size) - 1)).to_bytes(size)
    return _span(negative, whole >> 12, whole >> 6 & 63, whole & 63, _fraction_us(fraction))


def timestamp_us(data: bytes) -> int:
    """Read TIMESTAMP since MySQL 5.6: seconds since 1970, big-endian, and the fraction. Raises
    Unfit for zero.
    """
    seconds, micro = int.from_bytes(data[:4]), _fraction_us(data[4:])
    return _since_epoch(seconds, micro)


def old_time_span(data: bytes) -> TimeSpan:
    """Read TIME before MySQL 5.6: HHMMSS as a signed number of 24 bits, little-endian."""
    number = int.from_bytes(data, "little", signed=True)
    packed = abs(number)
    return _span(number < 0, packed // 10_000, packed // 100 % 100, packed % 100, 0)


def old_datetime_fields(data: bytes) -> Moment:
    """Read DATETIME before MySQL 5.6: YYYYMMDDhhmmss as a number of 64 bits, little-endian."""
    date, time = divmod(int.from_bytes(data, "little"), 1_000_000)
    return _check(
        Moment(
            date // 10_000,
            date // 100 % 100,
            date % 100,
            time // 10_000,
            time // 100 % 100,
            time % 100,
        )
    )


def old_timestamp_us(data: bytes) -> int:
    """Read TIMESTAMP before MySQL 5.6: seconds since 1970, little-endian. Raises Unfit for zero."""
    return _since_epoch(int.from_bytes(data, "little"), 0)


def hires_time_span(data: bytes, fsp: int) -> TimeSpan:
    """Read TIME with a fraction in MariaDB's own older format."""
    units = 10**fsp
    packed = int.from_bytes(data) - _HIRES_TIME_ZERO_S * units
    seconds, fraction = divmod(abs(packed), units)
    return _span(
        packed < 0,
        seconds // 3600,
        seconds // 60 % 60,
        seconds % 60,
        fraction * 10 ** (FSP_MAX - fsp),
    )


def hires_datetime_fields(data: bytes, fsp: int) -> Moment:
    """Read DATETIME with a fraction in MariaDB's own older format."""
    packed, fraction = divmod(int.from_bytes(data), 10**fsp)
    packed, second = divmod(packed, 60)
    packed, minute = divmod(packed, 60)
    packed, hour = divmod(packed, 24)
    packed, day = divmod(packed, 32)
    year, month = divmod(packed, 13)
    micro = fraction * 10 ** (FSP_MAX - fsp)
    return _check(Moment(year, month, day, hour, minute, second, micro))


def hires_timestamp_us(data: bytes, fsp: int) -> int:
    """Read TIMESTAMP with a fraction in MariaDB's own older format. Raises Unfit for zero."""
    fraction = int.from_bytes(data[4:])
    if fraction >= 10**fsp:
        raise Malformed
    return _since_epoch(int.from_bytes(data[:4]), fraction * 10 ** (FSP_MAX - fsp))


def _span(negative: bool, hour: int, minute: int, second: int, micro: int) -> TimeSpan:
    if hour > _HOUR_MAX or minute > 59 or second > 59:
        raise Malformed
    size = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micro
    return TimeSpan(negative, size)  # no form has a negative zero


def _since_epoch(seconds: int, micro: int) -> int:
    if seconds == 0 and micro == 0:
        raise Unfit
    return seconds * 1_000_000 + micro


# --- numbers


def days_since_epoch(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01. Raises Unfit for a day that no calendar has (0000-00-00)."""
    if month == 0 or day == 0:
        raise Unfit
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    length = 28 + leap if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    if day > length:
        raise Unfit
    # Count years from March, so that the leap day is the last of its year.
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468


def to_date(moment: Moment) -> int:
    """Return days since 1970-01-01."""
    return days_since_epoch(moment.year, moment.month, moment.day)


def to_timestamp(moment: Moment) -> int:
    """Return microseconds since 1970-01-01 00:00:00."""
    of_day = (moment.hour * 60 + moment.minute) * 60 + moment.second
    return to_date(moment) * _DAY_US + of_day * 1_000_000 + moment.micro


def to_time(span: TimeSpan) -> int:
    """Return microseconds since midnight. Raises Unfit below 0 and from 24 hours on."""
    if span.negative or span.micro >= _DAY_US:
        raise Unfit
    return span.micro


# --- the server's text


def _fraction_text(micro: int, fsp: int) -> str:
    return f".{micro:06d}"[: fsp + 1] if fsp else ""


def date_text(moment: Moment) -> str:
    """Return text like `2024-02-29`."""
    return f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}"


def datetime_text(moment: Moment, fsp: int) -> str:
    """Return text like `2024-02-29 12:34:56.789`, with fsp digits after the point."""
    time = f"{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d}"
    return f"{date_text(moment)} {time}{_fraction_text(moment.micro, fsp)}"


def time_text(span: TimeSpan, fsp: int) -> str:
    """Return text like `-838:59:59.000000`, with fsp digits after the point."""
    seconds, micro = divmod(span.micro, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return ("-" if span.negative else "") + text + _fraction_text(micro, fsp)


def timestamp_text(microseconds: int | None, fsp: int) -> str:
    """Return the text of a TIMESTAMP in UTC; None means the zero timestamp."""
    if microseconds is None:
        return datetime_text(Moment(0, 0, 0), fsp)
    seconds, micro = divmod(microseconds, 1_000_000)
    days, of_day = divmod(seconds, 86_400)
    year, month, day = _civil(days)
    return datetime_text(
        Moment(year, month, day, of_day // 3600, of_day // 60 % 60, of_day % 60, micro), fsp
    )


def _civil(days: int) -> tuple[int, int, int]:
    """Return the calendar date of a day since 1970-01-01."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_index = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_index + 2) // 5 + 1
    month = month_index + 3 if month_index < 10 else month_index - 9
    return year_of_era + era * 400 + (month <= 2), month, day
