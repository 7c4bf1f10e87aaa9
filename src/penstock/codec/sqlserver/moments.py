"""Texts of dates and times of SQL Server, read and written column by column. Pure.

A server prints `datetime2` and `datetimeoffset` exactly with CONVERT(varchar(34), value, 126):
`2026-03-04T05:06:07.1234567+05:30`, without a fraction if it is zero. Style 121 has blanks in place
of the T and before the offset; both are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import PenstockError

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

TICKS_PER_SECOND = 10_000_000
TICKS_PER_US = 10
_DAY_SECONDS = 86_400
_SECOND_END = 19  # characters of `2026-03-04T05:06:07`
_OFFSET_LENGTH = 6
_TIME_LENGTH = 8  # characters of `05:06:07`
_ZERO, _POINT, _COLON, _DASH, _PLUS, _BLANK, _T = (ord(one) for one in "0.:-+ T")
_POWERS = 10 ** np.arange(18, -1, -1, dtype=np.int64)


class ValueBroken(PenstockError):
    """A server sent a value that its type does not have.

    fields: column, if it is known, and reason. Never holds the value.
    """

    code = "DC73"
    retry = "operator"


def broken(reason: str) -> ValueBroken:
    """Return the error for a value that cannot be read."""
    return ValueBroken(
        f"SQL Server sent a value that cannot be read: {reason}",
        hint="Report this with the type of the column; no value was changed or skipped.",
        reason=reason,
    )


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of a column without its NULLs, in order.

    Attributes:
        seconds: whole seconds since 1970-01-01 00:00, of the local time if there is an offset.
        ticks: tenths of a microsecond within the second.
        offsets: minutes to the east of UTC; 0 for texts without an offset.
    """

    seconds: Numbers
    ticks: Numbers
    offsets: Numbers

    @property
    def microseconds(self) -> Numbers:
        """Microseconds since 1970, of the local time, without the seventh digit."""
        return self.seconds * 1_000_000 + self.ticks // TICKS_PER_US

    @property
    def is_finer(self) -> bool:
        """Return whether a moment has a digit after the microsecond."""
        return bool((self.ticks % TICKS_PER_US).any())


def parse_moments(texts: Any, *, has_offset: bool) -> Moments:
    """Return the moments of texts, an Arrow array without NULLs.

    has_offset: whether each text must end with an offset; else none may. Raises ValueBroken.
    """
    data, starts, lengths = _bytes_of(texts)
    count = len(starts)
    seconds, ticks = np.zeros(count, np.int64), np.zeros(count, np.int64)
    offsets = np.zeros(count, np.int64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if length < _SECOND_END + (_OFFSET_LENGTH if has_offset else 0):
            raise broken("a date and time is too short")
        cells = data[starts[rows][:, None] + np.arange(length)]
        if has_offset:
            offsets[rows] = _read_offsets(cells[:, -_OFFSET_LENGTH:])
            cells = cells[:, :-_OFFSET_LENGTH]
            if (is_apart := cells[:, -1] == _BLANK).any():
                if not is_apart.all():
                    raise broken("two forms of a date and time")
                cells = cells[:, :-1]
        seconds[rows], ticks[rows] = _read_local(cells)
    return Moments(seconds, ticks, offsets)


def _bytes_of(texts: Any) -> tuple[Bytes, Numbers, Numbers]:
    """Return the bytes of texts, where each begins, and its length."""
    texts = texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    size = len(texts)
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + size + 1]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return raw, bounds[:-1], np.diff(bounds)


def _number(cells: Bytes, first: int, last: int) -> Numbers:
    digits = cells[:, first:last].astype(np.int64) - _ZERO
    if (digits < 0).any() or (digits > 9).any():
        raise broken("a date or time has a character in the place of a digit")
    found: Numbers = digits @ _POWERS[len(_POWERS) - (last - first) :]
    return found


def _check(condition: Any, reason: str) -> None:
    if not np.all(condition):
        raise broken(reason)


def _read_offsets(cells: Bytes) -> Numbers:
    _check((cells[:, 0] == _PLUS) | (cells[:, 0] == _DASH), "an offset has no sign")
    _check(cells[:, 3] == _COLON, "an offset has no colon")
    hours, minutes = _number(cells, 1, 3), _number(cells, 4, 6)
    _check((minutes < 60) & (hours * 60 + minutes <= 14 * 60), "an offset is over 14 hours")
    signs: Numbers = np.where(cells[:, 0] == _DASH, -1, 1)
    return signs * (hours * 60 + minutes)


def _read_local(cells: Bytes) -> tuple[Numbers, Numbers]:
    _check((cells[:, 4] == _DASH) & (cells[:, 7] == _DASH), "a date has no dashes")
    _check((cells[:, 10] == _T) | (cells[:, 10] == _BLANK), "a date is not followed by a time")
    days = days_of(_number(cells, 0, 4), _number(cells, 5, 7), _number(cells, 8, 10))
    of_day, ticks = _read_time(cells[:, 11:])
    return days * _DAY_SECONDS + of_day, ticks


def _read_time(cells: Bytes) -> tuple[Numbers, Numbers]:
    _check((cells[:, 2] == _COLON) & (cells[:, 5] == _COLON), "a time has no colons")
    hour, minute, second = (_number(cells, at, at + 2) for at in (0, 3, 6))
    _check((hour < 24) & (minute < 60) & (second < 60), "a time of day does not exist")
    digits = cells.shape[1] - 9
    if digits < 0:
        ticks = np.zeros(len(cells), np.int64)
    else:
        _check(cells[:, 8] == _POINT, "a fraction has no point")
        if not 1 <= digits <= 7:
            raise broken("a fraction does not have 1 to 7 digits")
        ticks = _number(cells, 9, 9 + digits) * 10 ** (7 - digits)
    return hour * 3600 + minute * 60 + second, ticks


def ticks_of_texts(texts: Any) -> Numbers:
    """Return tenths of a microsecond since midnight of texts `05:06:07.1234567`, without NULLs.

    Raises ValueBroken.
    """
    data, starts, lengths = _bytes_of(texts)
    ticks = np.zeros(len(starts), np.int64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if length < _TIME_LENGTH:
            raise broken("a time is too short")
        seconds, rest = _read_time(data[starts[rows][:, None] + np.arange(length)])
        ticks[rows] = seconds * TICKS_PER_SECOND + rest
    return ticks


_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def days_of(years: Numbers, months: Numbers, days: Numbers) -> Numbers:
    """Return days since 1970-01-01 of dates of the years 1 to 9999. Raises ValueBroken."""
    _check((years >= 1) & (months >= 1) & (months <= 12) & (days >= 1), "a date does not exist")
    is_leap = (years % 4 == 0) & ((years % 100 != 0) | (years % 400 == 0))
    _check(days <= _MONTH_DAYS[months] + (is_leap & (months == 2)), "a date does not exist")
    first = (years - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (months - 1)
    found: Numbers = first.astype("datetime64[D]").astype(np.int64) + days - 1
    return found


# -- texts -----------------------------------------------------------------------------------------


def moment_texts(moments: Moments, *, with_offset: bool) -> Any:
    """Return moments as texts with all their digits, and none that are zero at the end.

    `2026-03-04 05:06:07.1234567`, with an offset `+05:30` behind it.
    """
    whole = pa.array(moments.seconds, pa.int64()).view(pa.timestamp("s")).cast(pa.string())
    texts = pc.binary_join_element_wise(whole, fraction_texts(moments.ticks), "")
    if not with_offset:
        return texts
    return pc.binary_join_element_wise(texts, offset_texts(moments.offsets), "")


def fraction_texts(ticks: Numbers) -> Any:
    """Return tenths of a microsecond as `.1234567`, without zeros at the end; empty for 0."""
    digits = pc.utf8_lpad(pa.array(ticks, pa.int64()).cast(pa.string()), 7, "0")
    shown = pc.utf8_rtrim(pc.binary_join_element_wise(".", digits, ""), "0")
    return pc.if_else(pa.array(ticks == 0), "", shown)


def offset_texts(minutes: Numbers) -> Any:
    """Return offsets as `+05:30`."""
    each, place = np.unique(minutes, return_inverse=True)
    names = [
        f"{'-' if one < 0 else '+'}{abs(one) // 60:02}:{abs(one) % 60:02}" for one in each.tolist()
    ]
    return pa.array(names, pa.string()).take(pa.array(place.reshape(-1)))


def time_texts(ticks: Numbers) -> Any:
    """Return tenths of a microsecond since midnight as `05:06:07.1234567`."""
    seconds, rest = np.divmod(ticks, TICKS_PER_SECOND)
    whole = pa.array(seconds.astype(np.int32), pa.int32()).view(pa.time32("s")).cast(pa.string())
    return pc.binary_join_element_wise(whole, fraction_texts(rest), "")
