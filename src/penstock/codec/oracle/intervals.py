"""Intervals of Oracle: the text that LogMiner prints, and the internal forms.

Kept in the log as ISO 8601 with a sign on each part, which cannot be read in two ways:
`P-12Y-3M`, `P5DT4H3M2.5S`. Internal forms: years as 4 bytes plus 2**31 and months plus 60; days as
4 bytes plus 2**31, hours, minutes and seconds plus 60, nanoseconds as 4 bytes plus 2**31. Pure.
"""

from __future__ import annotations

import re

from penstock.codec.oracle.values import Malformed

_MONTHS = re.compile(rb"([+-]?)([0-9]{1,9})-([0-9]{2})")
_SECONDS = re.compile(rb"([+-]?)([0-9]{1,9}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{0,9}))?")
_BIAS_32 = 1 << 31
_BIAS = 60


def read_months(text: bytes) -> str:
    """Return an INTERVAL YEAR TO MONTH, `-0012-03`. Raises Malformed."""
    match = _MONTHS.fullmatch(text)
    if match is None or int(match[3]) > 11:
        raise Malformed
    return _months_text(match[1] == b"-", int(match[2]), int(match[3]))


def read_seconds(text: bytes) -> str:
    """Return an INTERVAL DAY TO SECOND, `+00005 04:03:02.123456`. Raises Malformed."""
    match = _SECONDS.fullmatch(text)
    if match is None or int(match[3]) > 23 or int(match[4]) > 59 or int(match[5]) > 59:
        raise Malformed
    parts = (int(match[2]), int(match[3]), int(match[4]), int(match[5]))
    return _seconds_text(match[1] == b"-", *parts, (match[6] or b"").decode())


def _months_text(is_negative: bool, years: int, months: int) -> str:
    sign = "-" if is_negative else ""
    return f"P{sign if years else ''}{years}Y{sign if months else ''}{months}M"


def _seconds_text(
    is_negative: bool, days: int, hours: int, minutes: int, seconds: int, fraction: str
) -> str:
    sign = "-" if is_negative else ""
    fraction = fraction.rstrip("0")
    shown = f"{seconds}.{fraction}" if fraction else str(seconds)
    parts = [
        f"{sign if number else ''}{number}{unit}"
        for number, unit in ((days, "DT"), (hours, "H"), (minutes, "M"))
    ]
    return f"P{''.join(parts)}{sign if seconds or fraction else ''}{shown}S"


def read_internal_months(data: bytes) -> str:
    """Return the text that LogMiner prints of an internal INTERVAL YEAR TO MONTH. Raises
    Malformed.
    """
    if len(data) != 5:
        raise Malformed
    years = int.from_bytes(data[:4], "big") - _BIAS_32
    months = data[4] - _BIAS
    if abs(months) > 11 or years * months < 0 or abs(years) > 999_999_999:
        raise Malformed
    sign = "-" if years < 0 or months < 0 else "+"
    return f"{sign}{abs(years)}-{abs(months):02}"


def read_internal_seconds(data: bytes) -> str:
    """Return the text that LogMiner prints of an internal INTERVAL DAY TO SECOND. Raises
    Malformed.
    """
    if len(data) != 11:
        raise Malformed
    days = int.from_bytes(data[:4], "big") - _BIAS_32
    clock = [byte - _BIAS for byte in data[4:7]]
    nanoseconds = int.from_bytes(data[7:], "big") - _BIAS_32
    parts = [days, *clock, nanoseconds]
    if min(parts) < 0 < max(parts) or abs(days) > 999_999_999 or abs(nanoseconds) > 999_999_999:
        raise Malformed
    hours, minutes, seconds = map(abs, clock)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise Malformed
    sign = "-" if min(parts) < 0 else "+"
    return f"{sign}{abs(days)} {hours:02}:{minutes:02}:{seconds:02}.{abs(nanoseconds):09}"
