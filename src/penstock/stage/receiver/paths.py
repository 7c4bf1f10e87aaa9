"""The meaning of a request's path: the target's schema, the kind of body, and the table.

Names of files are those that a changefeed gives to the files of an object store.
Source: CockroachDB documentation, "CREATE CHANGEFEED", "General file format".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from urllib.parse import unquote_plus

from penstock.model import PenstockError
from penstock.model.hlc import NANOS_MAX, Hlc
from penstock.ports.staging import Group

SEGMENTS_MAX = 7
RESERVED = "_"  # the first segment of our own pages
_FILE = re.compile(r"(?:[^-]+-){5}(?P<topic>.+)-[^-]+\.ndjson", re.DOTALL)
_RESOLVED = re.compile(r"(?P<time>\d{33})\.RESOLVED", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_SECOND_DIGITS, _NANO_DIGITS = 14, 9


class PathUnknown(PenstockError):
    """A changefeed does not post to the path of the request."""

    code = "ST06"


class Kind(Enum):
    """Kind of a request's body."""

    BATCH = "webhook"
    QUERY_BATCH = "webhook of a query"
    LINES = "ndjson"
    QUERY_LINES = "ndjson of a query"
    RESOLVED = "resolved"

    @property
    def is_of_query(self) -> bool:
        """True if the feed has a query: then the path names the table, and lines have no key."""
        return self in (Kind.QUERY_BATCH, Kind.QUERY_LINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Destination of a request. table: as in the path. time: of a marker RESOLVED.

    A marker has a table if the feed has a query.
    """

    group: Group
    kind: Kind
    table: str | None = None
    time: Hlc | None = None


def place_of(path: str, *, group_parts: int) -> Place:
    """Parse a path. path: as it was sent, with its escapes. group_parts: 1 or 2.

    Raises PathUnknown.
    """
    segments = _segments(path)
    if len(segments) < group_parts:
        raise _unknown(f"expecting at least {group_parts} path segments")
    if segments[0] == RESERVED:
        raise _unknown("what begins with /_/ is our own")
    group, rest = tuple(segments[:group_parts]), segments[group_parts:]
    table = rest.pop(0) if len(rest) in (1, 3) else None
    named = (*group, table) if not rest else ()
    if any(topic_of_file(one or "") or time_of_marker(one or "") for one in named):
        raise _unknown("a file of a feed where the schema or a table should be named")
    if not rest:
        kind = Kind.BATCH if table is None else Kind.QUERY_BATCH
        return Place(group=group, kind=kind, table=table)
    if len(rest) == 2 and _DATE.fullmatch(rest[0]):
        topic = topic_of_file(rest[1])
        if topic is not None:
            kind = Kind.LINES if table is None else Kind.QUERY_LINES
            return Place(group=group, kind=kind, table=table or topic)
        time = time_of_marker(rest[1])
        if time is not None:
            return Place(group=group, kind=Kind.RESOLVED, table=table, time=time)
    raise _unknown("path did not match any expected patterns")


def topic_of_file(name: str) -> str | None:
    """Return the topic in the name of a file of lines; None for another name."""
    match = _FILE.fullmatch(name)
    return None if match is None else match["topic"]


def time_of_marker(name: str) -> Hlc | None:
    """Return the time in the name of a marker; None for another name."""
    match = _RESOLVED.fullmatch(name)
    if match is None:
        return None
    digits = match["time"]
    try:
        second = datetime.strptime(digits[:_SECOND_DIGITS], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    nanos = int(second.timestamp()) * 10**9 + int(digits[_SECOND_DIGITS:][:_NANO_DIGITS])
    if not 0 < nanos <= NANOS_MAX:
        return None
    return Hlc(nanos, int(digits[_SECOND_DIGITS + _NANO_DIGITS :]))


def _segments(path: str) -> list[str]:
    segments = [part for part in path.split("/") if part]
    if len(segments) > SEGMENTS_MAX:
        raise _unknown(f"request path exceeded maximum of {SEGMENTS_MAX} segments")
    if any(re.search("%(?![0-9A-Fa-f]{2})", part) for part in segments):
        raise _unknown("could not unescape path")
    try:
        found = [unquote_plus(part, errors="strict") for part in segments]
    except UnicodeDecodeError as error:
        raise _unknown("could not unescape path") from error
    if any("\0" in part or part in (".", "..") for part in found):
        raise _unknown("could not unescape path")
    return found


def _unknown(reason: str) -> PathUnknown:
    return PathUnknown(
        reason,
        hint="Let the feed post to /DATABASE/SCHEMA of the target, /DATABASE of one without "
        "schemas; with a query to the table below it.",
    )
