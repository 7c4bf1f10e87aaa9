"""The change log for `penstock log ls`, `cat` and `check`, and `penstock.read_log`.

Not here: the format (`penstock.codec.ckt`), lines of text (`penstock.log.text`), printing.
"""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.host.files import FileMissing
from penstock.log import check, list_segments, open_segment
from penstock.log.change_tables import ChangeFilter, take_all
from penstock.log.changes import ChangeLog, TableNotInLog, tables_of
from penstock.log.layout import (
    EXTENSION_DEFAULT,
    STATE_NAME,
    SegmentFile,
    SegmentMissing,
    load_state,
)
from penstock.log.reader import LogFinding
from penstock.log.segment import Segment, list_begun_segments
from penstock.log.text import NULL, lines
from penstock.model import PenstockError, TableName
from penstock.model.patterns import Selection
from penstock.ports.feeds import FEEDS, GROUPS
from penstock.ports.positions import has_wide_positions, kind_in_log

if TYPE_CHECKING:
    from penstock.ports.config import Config

_UNESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}


class LogNotFound(PenstockError):
    """There is no change log at the named place."""

    code = "CT50"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Place of a change log."""

    directory: Path
    extension: str = EXTENSION_DEFAULT


def find_log(path: Path) -> LogPlace:
    """Return the log that a path means: of a pipeline file, or a directory that holds segments.

    Raises LogNotFound, and the CF errors for a file that is not a pipeline file.
    """
    if not path.is_dir():
        from penstock.control.pipeline.config import (
            load_config,  # with all drivers: not for a directory
        )

        config = load_config(path)
        if config.stage is not None:
            raise _log_of_feeds(config)
        place = LogPlace(
            directory=config.layout.log, extension=config.change_loader.change_file_extension
        )
    else:
        inner = path / "log"
        place = LogPlace(directory=inner if inner.is_dir() else path)
    if not place.directory.is_dir():
        raise LogNotFound(
            f"there is no change log in {place.directory} yet",
            hint="Begin one with `penstock run`, or name another pipeline file or directory.",
        )
    return place


def _log_of_feeds(config: Config) -> LogNotFound:
    """Return the error for a pipeline with [stage], which has a log for each target schema."""
    folders = [config.directory / name for name in (FEEDS, GROUPS)]
    found = sorted(log.parent for folder in folders for log in folder.glob("*/log"))
    hint = "Start `penstock stage FILE`: each target schema gets a log when its feed begins."
    if found:
        hint = f"Name one of them: {', '.join(map(str, found))}"
    return LogNotFound(
        f"{config.path.name} has [stage]: there is a change log for each target schema", hint=hint
    )


def segments_of(place: LogPlace, numbers: Sequence[int] = ()) -> list[SegmentFile]:
    """Return the segments with these numbers, closed or open; all if none is named, in order.

    Raises SegmentMissing for a number that does not exist.
    """
    closed = list_segments(place.directory, place.extension)
    found = [*closed, *list_begun_segments(place.directory, place.extension)]
    if not numbers:
        return found
    by_number = {file.number: file for file in found}
    for number in numbers:
        if number not in by_number:
            raise SegmentMissing(
                f"there is no segment {number} in {place.directory}",
                hint="List those that there are: penstock log ls",
            )
    return [by_number[number] for number in numbers]


def describe(place: LogPlace) -> Iterator[dict[str, Any]]:
    """Yield one dict per segment, in order: the output of `penstock log ls`.

    A segment that is closed or removed meanwhile is described as it was, or left out.
    """
    for file in segments_of(place):
        with suppress(FileMissing), open_segment(file.path, extension=place.extension) as segment:
            facts = segment.facts()
            yield {
                "segment": file.path.name,
                "closed": segment.is_closed,
                "rows": facts.row_count,
                "markers": facts.marker_count,
                "gsn_first": facts.gsn_first,
                "gsn_last": facts.gsn_last,
                "trx_last": facts.end.trx,
                "position": position_text(segment, facts.end.position),
                "commit_time_us": facts.end.commit_time_us,
                "size_bytes": facts.size_bytes,
                "tables": sorted({_table_name(t) for t in facts.tables}),
            }


def removed_note(place: LogPlace) -> str:
    """Return a sentence on the changes whose segments have been removed; empty if there are none.

    A command that lists the remaining ones prints it: no segment does not mean that there was no
    change.
    """
    first = next(iter(segments_of(place)), None)
    if first is None:
        state = load_state(place.directory)
        gsn = 0 if state is None else state.end.gsn
    else:
        try:
            with open_segment(first.path, extension=place.extension) as segment:
                gsn = segment.start.gsn
        except FileMissing:
            return ""  # closed or removed meanwhile
    if not gsn:
        return ""
    return (
        f"the segments of changes 1 to {gsn} have been removed from {place.directory} "
        "(keepAppliedHours, removeFiles)"
    )


def position_text(segment: Segment, position: int) -> str:
    """Return a position as the segment's engine prints it. Raises PositionInvalid."""
    return str(kind_in_log(segment.header.source.get("engine", ""))(position))


def _table_name(totals: Any) -> str:
    return f"{totals.schema}.{totals.name}"


def format_lines(
    place: LogPlace, numbers: Sequence[int] = (), *, table: TableName | None = None
) -> Iterator[str]:
    """Yield the lines of these segments (all if none is named), see `penstock.log.text`.

    table: only lines of this one. Raises SegmentMissing, SegmentCorrupt, and, at the end,
    TableNotInLog if none of the segments has a change of the table.
    """
    tables: set[TableName] = set()
    for file in segments_of(place, numbers):
        try:
            segment = open_segment(file.path, extension=place.extension)
        except FileMissing:
            if numbers:
                raise
            continue  # loaded and removed, or renamed, while earlier ones were printed
        with segment:
            tables.update(tables_of(segment))
            for line in lines(segment, partial(position_text, segment)):
                if table is None or _is_of(line, table):
                    yield line
    if table is not None and table not in tables:
        names = sorted(map(".".join, tables))
        close = difflib.get_close_matches(".".join(table), names, n=1) or names
        raise TableNotInLog(
            f"no change of {'.'.join(table)} is in {'these segments' if numbers else 'the log'} "
            f"in {place.directory}",
            hint=f"Changes there are of {', '.join(close) or 'no table'}. Rows of a bulk load are "
            "not in the log.",
            table=".".join(table),
        )


def _is_of(line: str, table: TableName) -> bool:
    fields = line.split("\t", 4)
    return (_plain(fields[2]), _plain(fields[3])) == tuple(table)


def as_object(line: str) -> dict[str, Any]:
    """Return a line of `format_lines` for JSON: NULL becomes null; the sign for ABSENT stays."""
    sequence, letter, schema, name, *values = line.split("\t")
    return {
        "sequence": int(sequence),
        "letter": letter,
        "schema": _plain(schema),
        "table": _plain(name),
        "values": [_plain(value) for value in values],
    }


def _plain(text: str) -> str | None:
    """Return a field without its escapes; the signs for ABSENT and BEFORE stay as they are."""
    if text == NULL:
        return None
    head, *rest = text.split("\\")
    parts, pending = [head], iter(rest)
    for piece in pending:
        if piece:
            parts.append(_UNESCAPED.get(piece[0], "\\" + piece[0]) + piece[1:])
        else:  # two backslashes: one of the value
            parts.append("\\" + next(pending, ""))
    return "".join(parts)


def examine_log(place: LogPlace) -> list[LogFinding]:
    """Check every byte of the log; see `penstock.log.check`."""
    return check(place.directory, extension=place.extension)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)

Moment = datetime.datetime | str


class LogTimeInvalid(PenstockError):
    """Error: a time given to `read_log` or `at_commit` cannot be read, or has no time zone."""

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
    since_us, until_us = to_microseconds("since", since), to_microseconds("until", until)
    _check_order("gsn_after", gsn_after, "gsn_through", gsn_through)
    _check_order("since", since_us, "until", until_us)
    place = find_log(Path(path))
    if not _holds_log(place):
        raise LogNotFound(
            f"{place.directory} holds no change log",
            hint="Name a pipeline's directory, its file, or a directory of segments.",
        )
    wanted = ChangeFilter(
        takes=Selection.parse(patterns).takes if patterns else take_all,
        patterns=patterns,
        gsn_after=gsn_after,
        gsn_through=gsn_through,
        since_us=since_us,
        until_us=until_us,
    )
    return ChangeLog(
        place.directory,
        is_wide=has_wide_positions,
        extension=place.extension,
        wanted=wanted,
        path=Path(path).absolute(),
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


def to_microseconds(name: str, moment: Moment | None) -> int | None:
    """Return a time in microseconds since 1970 UTC; name: of the argument.

    Raises LogTimeInvalid.
    """
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
