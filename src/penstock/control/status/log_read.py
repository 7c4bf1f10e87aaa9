"""`penstock.read_log`: a pipeline's change log for Python."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.control.status.log_view import LogNotFound, LogPlace, find_log, segments_of
from penstock.log.change_tables import ChangeFilter
from penstock.log.changes import ChangeLog
from penstock.log.layout import STATE_NAME
from penstock.model import PenstockError
from penstock.model.patterns import Selection
from penstock.ports.positions import has_wide_positions

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)

Moment = datetime.datetime | str


class LogTimeInvalid(PenstockError):
    """Error: a time given to `read_log` cannot be read, or has no time zone."""

    code = "LG32"


class LogArgumentInvalid(PenstockError):
    """Error: an argument of `read_log` has a wrong type, or its limits exclude everything."""

    code = "LG33"


def read_log(
    path: str | Path,
    *,
    tables: str | Sequence[str] = (),
    since: Moment | None = None,
    until: Moment | None = None,
    gsn_after: int | None = None,
    gsn_through: int | None = None,
) -> ChangeLog:
    """Return the change log of a pipeline; nothing is read yet.

    Args:
        path: The pipeline's directory, its file, or any directory of segments.
        tables: Patterns as in [source] tables, such as "public.order*"; empty for all tables.
        since: First commit time; a datetime with a time zone, or ISO text.
        until: Commit time before which changes are read.
        gsn_after: Number of the row change after which changes are read. It is an error if
            the log no longer has all of them.
        gsn_through: Number of the last row change.

    Raises:
        LogNotFound: There is no change log.
        LogTimeInvalid: since or until cannot be read as a time.
        LogArgumentInvalid: Another argument has a wrong type, or the limits exclude everything.
        PatternInvalid: A pattern in tables is not one. A pipeline file can raise the CF errors.
    """
    if not isinstance(path, str | Path):
        raise _wrong_type("path", path, 'a path, such as "shop" or "shop.toml"')
    patterns = _patterns(tables)
    _check_number("gsn_after", gsn_after)
    _check_number("gsn_through", gsn_through)
    since_us, until_us = _microseconds("since", since), _microseconds("until", until)
    _check_order("gsn_after", gsn_after, "gsn_through", gsn_through)
    _check_order("since", since_us, "until", until_us)
    place = find_log(Path(path))
    if not _holds_log(place):
        raise LogNotFound(
            f"{place.directory} holds no change log",
            hint="Name a pipeline's directory, its file, or a directory of segments.",
        )
    wanted = ChangeFilter(
        takes=Selection.parse(patterns).takes if patterns else lambda _: True,
        patterns=patterns,
        gsn_after=gsn_after,
        gsn_through=gsn_through,
        since_us=since_us,
        until_us=until_us,
    )
    return ChangeLog(
        place.directory, is_wide=has_wide_positions, extension=place.extension, wanted=wanted
    )


def _patterns(tables: object) -> tuple[str, ...]:
    given = [tables] if isinstance(tables, str) and tables else tables
    if isinstance(given, Iterable):
        patterns = tuple(given)
        if all(isinstance(pattern, str) for pattern in patterns):
            return patterns
    raise _wrong_type("tables", tables, 'a pattern or a list of patterns, such as "public.order*"')


def _check_number(name: str, number: object) -> None:
    if number is None:
        return
    if not isinstance(number, int) or isinstance(number, bool):
        raise _wrong_type(name, number, "the number of a row change, such as 170_000")
    if number < 0:
        raise LogArgumentInvalid(
            f"{name} is negative: {number}",
            hint="Pass the _gsn of a change that you have read; row changes are numbered from 1.",
        )


def _check_order(name: str, first: int | None, other: str, last: int | None) -> None:
    if first is not None and last is not None and last < first:
        raise LogArgumentInvalid(
            f"{other} is before {name}, so no change can be read",
            hint=f"Exchange {name} and {other}.",
        )


def _wrong_type(name: str, value: object, expected: str) -> LogArgumentInvalid:
    return LogArgumentInvalid(
        f"{name} is {value!r}, of type {type(value).__name__}", hint=f"Pass {expected}."
    )


def _holds_log(place: LogPlace) -> bool:
    return bool(segments_of(place)) or (place.directory / STATE_NAME).exists()


def _microseconds(name: str, moment: Moment | None) -> int | None:
    """Return the time in microseconds since 1970 UTC."""
    if moment is None:
        return None
    if not isinstance(moment, str | datetime.datetime):
        raise LogTimeInvalid(
            f"{name} is {moment!r}, of type {type(moment).__name__}",
            hint='Pass a text like "2026-01-31T12:00:00Z", or a datetime with a time zone.',
        )
    try:
        time = datetime.datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError as error:
        raise LogTimeInvalid(
            f"{name} cannot be read as a time: {moment!r}",
            hint='Write it like "2026-01-31T12:00:00Z".',
        ) from error
    if time.tzinfo is None:
        raise LogTimeInvalid(
            f"{name} has no time zone: {moment}",
            hint='Say which one: "2026-01-31T12:00:00Z", or datetime(..., tzinfo=timezone.utc).',
        )
    return (time - _EPOCH) // _MICROSECOND
