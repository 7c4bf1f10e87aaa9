"""`penstock.read_log`: a pipeline's change log for Python."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.control.log_view import LogNotFound, LogPlace, find_log, segments_of
from penstock.log.changes import ChangeFilter, ChangeLog
from penstock.log.layout import STATE_NAME
from penstock.model import PenstockError, TableName
from penstock.model.patterns import Selection
from penstock.ports.positions import has_wide_positions

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)

Moment = datetime.datetime | str


class LogTimeInvalid(PenstockError):
    """A time that changes were to be picked by cannot be read, or has no time zone."""

    code = "LG32"


def read_log(
    path: str | Path,
    *,
    tables: str | Sequence[str] = (),
    since: Moment | None = None,
    until: Moment | None = None,
    gsn_after: int | None = None,
    gsn_through: int | None = None,
) -> ChangeLog:
    """The change log of a pipeline: its directory, its file, or any directory of segments.

    tables: patterns as [source] tables has them, "public.order*"; none: all. since, until: commit
    times, from the first on and before the second; datetimes with a time zone, or ISO text.
    gsn_after, gsn_through: numbers of row changes, behind the first and up to the second; with
    gsn_after it is an error when the log has lost some of them. Nothing is read yet.
    Raises LogNotFound, LogTimeInvalid, PatternInvalid, and the CF errors for a pipeline file.
    """
    place = find_log(Path(path))
    if not _holds_log(place):
        raise LogNotFound(
            f"{place.directory} holds no change log",
            hint="Name a pipeline's directory, its file, or a directory of segments.",
        )
    wanted = ChangeFilter(
        takes=_selection(tables),
        gsn_after=gsn_after,
        gsn_through=gsn_through,
        since_us=_microseconds("since", since),
        until_us=_microseconds("until", until),
    )
    return ChangeLog(
        place.directory, is_wide=has_wide_positions, extension=place.extension, wanted=wanted
    )


def _selection(tables: str | Sequence[str]) -> Callable[[TableName], bool]:
    if not tables:
        return lambda _: True
    return Selection.parse((tables,) if isinstance(tables, str) else tuple(tables)).takes


def _holds_log(place: LogPlace) -> bool:
    return bool(segments_of(place)) or (place.directory / STATE_NAME).exists()


def _microseconds(name: str, moment: Moment | None) -> int | None:
    """Since 1970 UTC."""
    if moment is None:
        return None
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
