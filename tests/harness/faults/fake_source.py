"""A source engine in memory: its features can be switched off, and defects switched on.

It fulfils the duties of a source, and no more. URLs are `fake:///NAME`; `FAKES` has the database of
a name. Not here: its stream (`harness/faults/fake_stream.py`), the cases
(`tests/conformance/test_sources.py`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from harness.pipelines.log import Change
from penstock.codec.server_pair import ReadPlan
from penstock.codec.types import Engine, Server
from penstock.model import (
    Column,
    ColumnDefinition,
    Op,
    PenstockError,
    Relation,
    TableDefinition,
    TableName,
)
from penstock.model.patterns import Selection
from penstock.ports.bulk import Chunk, Point, TableRead
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd, SourceState, Unread
from penstock.ports.registry import Descriptor
from toy_engine.values import line_of

FEATURES = frozenset({"truncate", "absent", "shape", "elsewhere", "forget", "bulk"})
PIECE_ROWS = 100
STEP = 10  # a commit of number 7 begins at position 70 and ends at 75
POLL_S = 0.02
Values = dict[str, Any]


class FakeLost(PenstockError):
    """Error: the source has discarded changes that the log lacks."""

    code = "FK01"


@dataclass(frozen=True, order=True)
class FakePosition:
    """Position in the fake's log, a plain number; a `Position`."""

    ordinal: int

    BITS: ClassVar[int] = 128

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the position of a text such as `@75`."""
        return cls(int(text.removeprefix("@")))

    def __str__(self) -> str:
        """Return a text such as `@75`."""
        return f"@{self.ordinal}"


@dataclass(frozen=True, kw_only=True)
class Item:
    """A part of a transaction.

    Attributes:
        op: Operation; None for a truncate.
        undone: True if it was rolled back.
    """

    op: Op | None
    relation: Relation
    before: Values | None = None
    after: Values | None = None
    absent: frozenset[str] = frozenset()
    undone: bool = False

    @property
    def change(self) -> Change:
        """Change in the log's form."""
        assert self.op is not None
        names = [column.name for column in self.relation.columns]
        bits = sum(1 << names.index(name) for name in self.absent)
        after, before = self.after, self.before
        return Change(
            relation=self.relation,
            op=self.op,
            after=None
            if after is None
            else tuple(None if n in self.absent else after.get(n) for n in names),
            before=None
            if before is None
            else tuple(before[names[i]] for i in self.relation.before),
            absent=bytes([bits]) if bits else None,
        )


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A transaction; it has no items if it changed only other tables.

    Attributes:
        beat: Owner of a heartbeat, and the time when it was sent.
    """

    number: int
    items: tuple[Item, ...]
    at_us: int
    beat: tuple[str, int] = ("", 0)

    @property
    def position(self) -> int:
        """Position of its begin."""
        return self.number * STEP

    @property
    def end(self) -> int:
        """Position of its end."""
        return self.position + STEP // 2


@dataclass
class Fake:
    """A database.

    Attributes:
        oldest: Number of the first commit that it still has.
    """

    name: str
    features: frozenset[str] = FEATURES
    defect: str = ""
    commits: list[Commit] = field(default_factory=list)
    relations: dict[TableName, Relation] = field(default_factory=dict)
    oldest: int = 1
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """URL that names it."""
        return f"fake:///{self.name}"

    @property
    def end(self) -> int:
        """End of its log."""
        return self.commits[-1].end if self.commits else STEP // 2

    def commit(self, *items: Item, beat: tuple[str, int] = ("", 0)) -> None:
        """Commit a user's transaction, or a heartbeat."""
        number = len(self.commits) + 1
        made = Commit(number=number, items=items, at_us=now_us(), beat=beat)
        self.commits.append(made)

    def make(self, name: TableName, *columns: tuple[str, str, str], version: int = 1) -> None:
        """Create a table whose key is the first column, or its next version."""
        self.relations[name] = Relation(
            schema=name.schema,
            name=name.name,
            columns=tuple(
                Column(name=one, source_type=kind, neutral=neutral, base_type=kind)
                for one, kind, neutral in columns
            ),
            key=(0,),
            before=(0,),
            version=version,
        )

    def rows_at(self, position: int, table: TableName) -> list[Values]:
        """Return a table's rows at a position."""
        if self.defect == "a snapshot is later than its point":
            position = self.end
        if self.defect == "a snapshot is earlier than its point":
            position -= 2 * STEP
        rows: dict[int, Values] = {}
        for commit in self.commits:
            for item in commit.items if commit.position < position else ():
                if item.undone or TableName(item.relation.schema, item.relation.name) != table:
                    continue
                if item.op is None:
                    rows.clear()
                if item.before is not None:
                    rows.pop(item.before["id"])
                if item.after is not None:
                    rows[item.after["id"]] = item.after
        return [rows[key] for key in sorted(rows)]


def now_us() -> int:
    """Return the time of the database's clock."""
    return time.time_ns() // 1000


FAKES: dict[str, Fake] = {}


def fake_at(url: str) -> Fake:
    """Return the database of a URL."""
    return FAKES[url.rpartition("/")[2]]


# --- the parts about the pipeline file and the catalogue ------------------------------------------


def check_url(_url: str) -> None:
    """Accept any URL."""


def problems(_section: Any) -> Iterator[tuple[str, str]]:
    """Return no problems: the fake has no keys in [changeExtractor]."""
    return iter(())


def server_of(_url: str) -> Server:
    """Return PostgreSQL 18, whose types the fake's columns have."""
    return Server(engine=Engine.POSTGRESQL, version=(18,))


def read_captured(config: Config, *, dropped: Collection[TableName]) -> list[TableDefinition]:
    """Return the definitions of the tables that match the patterns of [source]."""
    del dropped
    takes = Selection.parse(config.source.tables).takes
    relations = fake_at(config.source.url).relations
    return [_definition(relation) for name, relation in relations.items() if takes(name)]


def _definition(relation: Relation) -> TableDefinition:
    return TableDefinition(
        name=TableName(relation.schema, relation.name),
        source_id=1,
        columns=tuple(
            ColumnDefinition(
                name=one.name,
                type_text=one.source_type,
                type_oid=0,
                typmod=-1,
                base_type=one.base_type,
                neutral=one.neutral,
            )
            for one in relation.columns
        ),
        primary_key=("id",),
        identity_columns=("id",),
    )


def read_followed(_config: Config, *, added: Iterable[TableName]) -> None:
    """Return None, as a source does before changes were extracted."""
    del added


# --- the parts `lag` and `positions` --------------------------------------------------------------


class FakeLag:
    """Reader of the fake's position and of its lag; a `SourceReader`."""

    is_closed = False

    def __init__(self, config: Config, _application_name: str) -> None:
        self._fake = fake_at(config.source.url)

    def state(self, log: LogEnd) -> SourceState:
        """Return the fake's end and the time of the first commit that the log lacks."""
        fake, here = self._fake, log.end.position
        unread = [one.at_us for one in fake.commits if one.items and one.position >= here]
        behind = STEP if fake.defect == "the lag never ends" else 0
        unread = [1] if behind else unread
        return SourceState(
            now_us=now_us(),
            position=fake.end + behind,
            slot_exists=bool(log.log_id),
            slot_active=log.has_writer,
            confirmed=here,
            unread=Unread(commit_us=unread[0] if unread else None),
        )

    def retention(self) -> None:
        """Return None: the fake keeps no log for a pipeline."""

    def close(self) -> None:
        """Do nothing: the fake is not reached by a connection."""


class FakePositions:
    """Printer and parser of the fake's positions; a `Positions`."""

    def __init__(self, config: Config) -> None:
        self._fake = fake_at(config.source.url)

    def text(self, position: int) -> str:
        if self._fake.defect == "a text does not say which position":
            position //= 100
        return str(FakePosition(position))

    def origin(self, _position: int) -> str:
        """Return an empty text: the fake has neither slots nor files."""
        return ""

    def parse(self, text: str) -> int:
        """Return the number of a position such as `@75`."""
        return FakePosition.parse(text).ordinal


# --- reading in bulk ------------------------------------------------------------------------------


def read_plan(columns: Sequence[ColumnDefinition], _mappings: Any, _servers: Any) -> ReadPlan:
    """Return a plan that reads the columns as they are."""
    return ReadPlan(columns=tuple(column.name for column in columns))


class FakePlanner:
    """Planner of a bulk load from the fake: the methods of `Planning` that tests call."""

    positions = FakePosition

    def __init__(self, config: Config, *, first: Callable[[], Point | None]) -> None:
        self.first_point = first
        self._fake = fake_at(config.source.url)

    def __enter__(self) -> FakePlanner:
        return self

    def __exit__(self, *_how: object) -> None:
        """Keep nothing."""

    def fresh_point(self) -> Point:
        """Return the fake's end as a point; its text is also the id of the snapshot."""
        here = FakePosition(self._fake.end)
        return Point(position=here, snapshot_id=str(here), snapshot_text=str(here))

    def chunks(self, _point: Point, wanted: Sequence[TableRead]) -> dict[TableName, list[Chunk]]:
        """Cut each table into two ranges of its key."""
        return {read.definition.name: self._chunks(read) for read in wanted}

    def _chunks(self, read: TableRead) -> list[Chunk]:
        halves = [(0, 100), (100, 10**9)]
        if self._fake.defect == "a row is in no chunk":
            halves[1] = (101, 10**9)
        if self._fake.defect == "a row is in two chunks":
            halves[1] = (99, 10**9)
        return [
            Chunk(
                number=number,
                relation=read.definition.name,
                copy_out=json.dumps([low, high, list(read.columns)]),
            )
            for number, (low, high) in enumerate(halves)
        ]


@dataclass
class FakeReader:
    """Reader of the fake's rows at one position; a `BulkReader`."""

    fake: Fake
    position: int
    row_count: int = 0

    def was_rewritten(self, _task: Any) -> bool:
        """Return False: the fake never rewrites a table."""
        return False

    def lines(self, task: Any, _dialect: Any) -> Iterator[bytes]:
        """Yield the rows in the chunk's range of the key, one line each."""
        low, high, columns = json.loads(task.chunk.copy_out)
        for row in self.fake.rows_at(self.position, task.chunk.relation):
            if low <= row["id"] < high:
                yield line_of(None if row[n] is None else str(row[n]) for n in columns)

    def close(self) -> None:
        """Do nothing: the reader has no session."""


def open_reader(url: str, snapshot_id: str, _snapshot_text: str) -> FakeReader:
    """Return a reader at the position that the snapshot's id names."""
    return FakeReader(fake_at(url), FakePosition.parse(snapshot_id).ordinal)


DESCRIPTOR = Descriptor(
    name="fake",
    shown="Fake",
    schemes={"fake": "postgresql"},
    example="fake:///name",
    parts={
        "options": __name__,
        "tables": __name__,
        "extraction": "harness.faults.fake_stream",
        "lag": f"{__name__}:FakeLag",
        "position": f"{__name__}:FakePosition",
        "positions": f"{__name__}:FakePositions",
        "planner": f"{__name__}:FakePlanner",
        "bulk_reader": __name__,
        "read_plan": f"{__name__}:read_plan",
    },
)
