"""The target of a request: the schema and table that its path and its topics name.

Names of files are those that a changefeed gives to the files of an object store.
Source: CockroachDB documentation, "CREATE CHANGEFEED", "General file format". The target's tables
are read from its catalogue (`TargetSchemas`), and are kept for a minute.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from urllib.parse import unquote, unquote_plus, urlsplit

from penstock.codec.changefeed import PayloadInvalid
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError, TableName
from penstock.model.hlc import NANOS_MAX, Hlc
from penstock.model.patterns import as_pattern
from penstock.ports.config import Config, SourceSection
from penstock.ports.feeds import Group, StagedTable, TargetCatalog, group_name
from penstock.ports.registry import engine_at
from penstock.ports.tables import tables_at

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
        """Return whether the feed has a query: the path then names the table, lines have no key."""
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


KEPT_S = 60.0
ASKED_AGAIN_S = 1.0  # shortest time between questions about a missing table
PARTS_MAX = 3
_NO_TABLES = "the target has no such schema, or none of its tables"
_HINT = (
    "Create it in the target, or make the feed without it; the path of the feed's URL names the "
    "target's database and schema."
)
_PART = re.compile(r'"(?:[^"]|"")*"|[^."]*')


class TableUnknown(PenstockError):
    """A changefeed sends a table that the target does not have."""

    code = "ST08"


@dataclass(frozen=True, slots=True)
class _Known:
    tables: Mapping[str, tuple[str, ...]]
    folded: Mapping[str, str]
    read_s: float


class TargetTables:
    """Tables of each target schema, as the target last reported. Any thread may ask."""

    def __init__(
        self,
        catalog: TargetCatalog,
        clock: Clock = REAL_CLOCK,
        *,
        is_source: Callable[[Group, str], bool] = lambda _group, _name: False,
    ) -> None:
        """Prepare. is_source: whether a name's mutations go to other tables: it need not exist."""
        self._is_source = is_source
        self.catalog = catalog
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Group, _Known] = {}

    def find_table(self, group: Group, name: str) -> StagedTable:
        """Return the table of this name: exact, or differing in case. Raises TableUnknown."""
        if not name:
            raise PayloadInvalid(
                "table name is empty: a line without topic",
                hint="Let the feed post to the schema, or give the table's name in the path.",
            )
        known = self._of(group, KEPT_S)
        if name not in known.tables and name.lower() not in known.folded:
            known = self._of(group, ASKED_AGAIN_S)
        found = name if name in known.tables else known.folded.get(name.lower())
        if found is None and self._is_source(group, name):
            return StagedTable(group, name)
        if found is None:
            schema = group_name(group)
            what = "" if known.tables else f": {_NO_TABLES}"
            raise TableUnknown(
                f"unknown table {schema}.{name}{what}",
                hint=_HINT,
                table=f"{schema}.{name}",
            )
        return StagedTable(group, found)

    def check_group(self, group: Group) -> None:
        """Raise TableUnknown if the target has no table in a schema."""
        if not (self._of(group, KEPT_S).tables or self._of(group, ASKED_AGAIN_S).tables):
            raise TableUnknown(
                f"unknown schema {group_name(group)}: {_NO_TABLES}",
                hint=_HINT,
                schema=group_name(group),
            )

    def key_columns(self, table: StagedTable) -> tuple[str, ...]:
        """Return the columns of a table's primary key."""
        return self._of(table.group, KEPT_S).tables.get(table.name, ())

    def of_topic(self, group: Group, topic: str) -> StagedTable:
        """Return the table that a topic names; its database and schema are those of the path.

        Raises TableUnknown, PayloadInvalid.
        """
        if topic in self._of(group, KEPT_S).tables:
            return StagedTable(group, topic)
        return self.find_table(group, relative_name(topic))

    def _of(self, group: Group, kept_s: float) -> _Known:
        with self._lock:
            known = self._known.get(group)
            if known is not None and self._clock.monotonic_s() - known.read_s < kept_s:
                return known
            tables = self.catalog.keys(group)
            folded: dict[str, str] = {}
            for name in sorted(tables):
                # Two names that differ only in case are found only exactly.
                folded[name.lower()] = "" if name.lower() in folded else name
            known = _Known(
                tables, {k: v for k, v in folded.items() if v}, self._clock.monotonic_s()
            )
            if tables or group in self._known:  # made-up paths are not remembered
                self._known[group] = known
            return known


def relative_name(topic: str) -> str:
    """Return the last of one to three parts, each perhaps in quotes. Raises PayloadInvalid."""
    parts: list[str] = []
    place = 0
    while True:
        match = _PART.match(topic, place)
        text = match[0] if match is not None else ""
        parts.append(text[1:-1].replace('""', '"') if text.startswith('"') else text)
        place += len(text)
        if place == len(topic):
            break
        if topic[place] != "." or len(parts) == PARTS_MAX:
            raise PayloadInvalid(
                f"could not decode payload: topic {topic!r} is not the name of a table",
                hint="Name the topic like the table, or [database.][schema.]table.",
            )
        place += 1
    return parts[-1]


class TargetSchemas(TargetCatalog):
    """Catalogue of the target, with the interface of a source's catalogue."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._url = config.target.url
        self._has_schemas = engine_at(self._url).has_schemas
        self._tables = tables_at(self._url)

    @property
    def group_parts(self) -> int:
        return 2 if self._has_schemas else 1

    @property
    def database(self) -> str:
        """Database of the target's URL."""
        return unquote(urlsplit(self._url).path.strip("/"))

    def keys(self, group: Group) -> Mapping[str, tuple[str, ...]]:
        if self._has_schemas and group[0] != self.database:
            return {}
        pattern = as_pattern(TableName(group[-1], "x")).removesuffix("x") + "*"
        source = SourceSection(url=self._url, tables=(pattern,))
        found = self._tables.read_captured(replace(self._config, source=source), dropped=())
        return {one.name.name: one.primary_key for one in found if one.name.schema == group[-1]}

    def group_of(self, name: str) -> Group | None:
        """Return the group of a name in the table checkpoints; None for one of another target."""
        if not self._has_schemas:
            return (name,)
        first = f"{self.database}."
        return (self.database, name[len(first) :]) if name.startswith(first) else None

    def check(self) -> None:
        self._tables.server_of(self._url)
