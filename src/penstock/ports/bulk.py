"""What the bulk load needs of a source and a target, whichever engines they are; and its nouns.

Rows: a worker's `BulkReader` gives them, its `BulkWriter` takes them. The driver asks a
`BulkTarget` for tables, keys and what is loaded. The engines are found by their URLs. Not here:
consistent points and chunks (`ports/planner.py`), the order of the work (`penstock.load`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from penstock.codec.lines import LineDialect
from penstock.host import faults
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.position import PositionKind
from penstock.ports.deferred_keys import DeferredKey
from penstock.ports.registry import part
from penstock.ports.server_pair import ReadPlan, ServerPair
from penstock.ports.target import target_name

APPLICATION_NAME = "penstock bulk"  # of the workers' sessions
faults.declare("bulk.chunk.copied", "bulk.chunk.committed")


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a source table that is copied at once.

    relation: the storage relation it is read from, a leaf for a partitioned table. copy_out: the
    COPY TO STDOUT of its rows, with the columns of its plan in order and in the plan's format.
    size_bytes, row_count: estimates. shape: the table's definition as the source's engine compares
    it again when it reads the chunk; empty where it need not.
    """

    number: int
    relation: TableName
    copy_out: str
    size_bytes: int = 0
    row_count: int = 0
    shape: str = ""


class TablePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How one table is loaded. Also what bulk.json holds of it.

    name: of the plan, random. given_up: names of earlier plans whose rows the target may hold.
    position: the consistent point as text; the rows are the state before it, unless `settled` is
    the position up to which changes have to be applied before they are one state. snapshot_id: an
    exported snapshot of the source at that point; snapshot_text: what it holds. columns: those that
    are copied, in order; binary: in COPY's binary format; read_plan: how rows are read for another
    engine. has_keys: its keys, indexes and statistics were made by an earlier load. definition: the
    definition that the rows are copied by, kept until the keys are made.
    """

    source: TableName
    target: TableName
    columns: tuple[str, ...]
    binary: bool
    position: str
    snapshot_id: str
    snapshot_text: str
    chunks: tuple[Chunk, ...]
    name: str = ""
    given_up: tuple[str, ...] = ()
    read_plan: ReadPlan | None = msgspec.field(default=None, name="way")  # as it is in the file
    settled: str = ""
    has_keys: bool = False
    definition: TableDefinition | None = None

    def renamed(self, earlier: TablePlan | None) -> TablePlan:
        """This plan under a new name, remembering those that it replaces."""
        given_up = () if earlier is None else (*earlier.given_up, earlier.name)
        return msgspec.structs.replace(self, name=secrets.token_hex(8), given_up=given_up)

    def at(self, snapshot_id: str, snapshot_text: str, settled: str) -> TablePlan:
        """The same plan, read from another snapshot of the same point."""
        return msgspec.structs.replace(
            self, snapshot_id=snapshot_id, snapshot_text=snapshot_text, settled=settled
        )

    def ordinals(self, kind: PositionKind) -> tuple[int, int]:
        """Its position and where it is settled, as ordered numbers. kind: of both."""
        position = kind.parse(self.position).ordinal
        return position, kind.parse(self.settled).ordinal if self.settled else position

    @property
    def is_mixed(self) -> bool:
        """Whether rows of several moments may be in the table, until changes are applied."""
        return self.settled not in ("", self.position)


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What the target records of a table: the plan its rows came from, and how far it got.

    done: chunk number to rows, of the chunks whose rows are in the table.
    """

    plan: str
    position: str
    finished: bool
    row_count: int | None
    done: dict[int, int]


class ChunksMissing(PenstockError):
    """A table is not finished: chunks of its plan are not recorded in the target."""

    code = "LD44"


def chunks_missing(plan: TablePlan, missing: Sequence[int], *, is_marked: bool) -> ChunksMissing:
    """The error for a table that is not complete. is_marked: the target holds this plan of it."""
    return ChunksMissing(
        f"{len(missing)} of {len(plan.chunks)} chunks of {plan.source} are not recorded "
        f"in the target{'' if is_marked else ', which holds another plan of it'}",
        hint="Run the same command again: it goes on with the chunks that are missing.",
        table=str(plan.source),
    )


class SnapshotUnreachable(PenstockError):
    """A worker cannot reach the process that has the sessions of a snapshot.

    fields: machine: the worker's; address: where it tried; cause.
    """

    code = "LD51"


class ChunkStatus(StrEnum):
    """How a chunk's task ended. HELD: not begun, because wirekite_action says PAUSE or STOP."""

    DONE = "done"
    DONE_BEFORE = "done before"
    SNAPSHOT_GONE = "snapshot gone"
    REWRITTEN = "rewritten"
    PLAN_GONE = "plan gone"
    HELD = "held"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    """What a worker needs to copy one chunk. plan: the name that the target's mark must have.

    read_plan: how rows are read for another engine. repeated: it was handed out before, by this
    job or an earlier one; an executor that was lost may have left a transaction open.
    """

    source_url: str
    target_url: str
    table: TableName
    target: TableName
    chunk: Chunk
    columns: tuple[str, ...]
    binary: bool
    snapshot_id: str
    snapshot_text: str
    plan: str
    replica_role: bool
    read_plan: ReadPlan | None = None
    repeated: bool = False

    @property
    def doing(self) -> str:
        """What is done, for errors."""
        return f"copying chunk {self.chunk.number} of {self.table}"

    @property
    def claim(self) -> str:
        """What all attempts at this chunk of this plan have in common: 40 hex digits."""
        text = f"{self.table}.{self.chunk.number} {self.plan}"
        return hashlib.sha256(text.encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOutcome:
    """How one chunk ended. rows: committed; error: set when FAILED. seconds: all tries."""

    table: TableName
    number: int
    status: ChunkStatus
    rows: int = 0
    error: PenstockError | None = None
    seconds: float = 0.0


class TargetFires(PenstockError):
    """A target table that was there already would run triggers or check foreign keys."""

    code = "LD46"


class CopyCountsDiffer(PenstockError):
    """The target took in another number of rows than the source sent."""

    code = "LD40"


class Lines(Protocol):
    """The rows of a chunk as whole lines of text; they can be read once."""

    @property
    def row_count(self) -> int:
        """Rows so far; final at the end."""
        ...

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of whole lines. Errors of the source come out typed."""
        ...


class BulkReader(Protocol):
    """A worker's session at the source, in the snapshot of a plan.

    A writer of the same engine may recognise it and pass the rows on unparsed.
    """

    def was_rewritten(self, task: ChunkTask) -> bool:
        """Keep the chunk's relation from being rewritten or altered while the session reads it.

        True when it was, after the snapshot: then the snapshot does not see its rows any more, or
        not under the names that its columns had.
        """
        ...

    def lines(self, task: ChunkTask, dialect: LineDialect) -> Lines:
        """The chunk's rows as lines that the target's engine reads, by the task's `read_plan`."""
        ...

    def tells_rewritten(self, error: PenstockError) -> bool:
        """Whether an error while reading means what `was_rewritten` does."""
        ...

    def close(self) -> None:
        """Give the session up."""
        ...


class BulkSource(Protocol):
    """What an engine has for reading in bulk: its part `bulk_reader`."""

    def open_reader(self, url: str, snapshot_id: str, snapshot_text: str) -> BulkReader | None:
        """A session that sees this snapshot; None when that is gone.

        Raises SnapshotUnreachable where it may live, but not for this worker.
        """
        ...

    def snapshot_alive(self, url: str, snapshot_id: str, snapshot_text: str) -> bool:
        """Whether the snapshot can still be read, and is the one it was."""
        ...


class BulkWriter(Protocol):
    """A worker's connection to the target."""

    def read_action(self) -> str:
        """The word in wirekite_action."""
        ...

    def write(self, task: ChunkTask, reader: BulkReader) -> tuple[ChunkStatus, int]:
        """Copy the rows and write the DL row, in one target transaction: how it ended, and rows."""
        ...

    def close(self) -> None:
        """Close the connection; what is not committed is rolled back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the target holds before a load. empty: of each table that is there, whether it is.

    truncates: the SQL that empties each, and no table that inherits from it. refusals: of tables
    whose triggers or foreign keys would act on our rows, the error to raise.
    """

    empty: Mapping[TableName, bool]
    marks: Mapping[TableName, Mark]
    truncates: Mapping[TableName, str]
    refusals: Mapping[TableName, PenstockError] = field(default_factory=dict)


class ChunkCounts(Protocol):
    """What the target knows of chunks."""

    def done(self) -> Mapping[str, Mapping[int, int]]:
        """Per source table, by its name as text: chunk number to rows, of the chunks that the
        target records as done.
        """
        ...

    def under_way(self) -> Mapping[TableName, int]:
        """Rows of chunks that are not committed yet, by target table; empty where that is not
        known.
        """
        ...


class BulkTarget(ChunkCounts, Protocol):
    """The driver's connection to the target. Errors come out typed."""

    def read_action(self) -> str:
        """The word in wirekite_action."""
        ...

    def look(self, targets: Collection[TableName]) -> Found:
        """What is there of these tables, by their names in the target; and all marks."""
        ...

    def create(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Make missing tables without keys, check the others; sentences on what they lack."""
        ...

    def marks(self) -> dict[TableName, Mark]:
        """The marks of all tables, by source name."""
        ...

    def takes_binary(self, definition: TableDefinition) -> bool:
        """Whether the table's rows come in the binary form that both servers have in common."""
        ...

    def begin_afresh(self, plans: Iterable[TablePlan]) -> None:
        """Empty the target tables of these plans and put them under their new plans."""
        ...

    def finish_table(self, plan: TablePlan) -> int:
        """Record that all rows of a table are there; their number. Raises ChunksMissing."""
        ...

    def drop_if_made(self, target: TableName) -> None:
        """Drop a table that penstock has made; leave any other."""
        ...

    def add_keys(
        self,
        definitions: Sequence[TableDefinition],
        *,
        threads: int,
        stop: Callable[[], bool],
    ) -> None:
        """Keys, indexes and statistics of the tables that penstock has made."""
        ...

    def deferred_keys(self, definition: TableDefinition) -> tuple[DeferredKey, ...]:
        """The unique keys of a table that penstock has made, as they are made later."""
        ...

    def add_foreign_keys(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Foreign keys of the tables that penstock has made; what they lack."""
        ...

    def is_replica(self) -> bool:
        """Whether triggers and foreign keys can be kept from acting on our rows."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_bulk_target(
    url: str, namespaces: Mapping[str, str], *, application_name: str, servers: ServerPair | None
) -> BulkTarget:
    """Connect to a target. servers: the two servers, unless they have the same types."""
    make = part(url, "bulk_target")
    target: BulkTarget = make(url, namespaces, application_name=application_name, servers=servers)
    return target


def bulk_source(url: str) -> BulkSource:
    """What reads in bulk at a source. Raises EngineUnknown, PartMissing."""
    source: BulkSource = part(url, "bulk_reader")
    return source


def open_writer(task: ChunkTask) -> BulkWriter:
    """Connect to the target that a task names."""
    make = part(task.target_url, "bulk_writer")
    writer: BulkWriter = make(task.target_url, replica_role=task.replica_role)
    return writer


class NamesCollide(PenstockError):
    """Two tables have the same name in wirekite_progress, or the same target table."""

    code = "LD45"


def check_names(definitions: Sequence[TableDefinition], namespaces: Mapping[str, str]) -> None:
    """Refuse tables whose progress rows or target tables would be the same."""
    for what, names in (
        ("in wirekite_progress", [str(d.name) for d in definitions]),
        ("in the target", [str(target_name(d.name, namespaces)) for d in definitions]),
    ):
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise NamesCollide(
                f"two source tables would both be {double} {what}",
                hint="Rename one, map the schemas to different ones in [target.map], or leave one "
                "out of "
                "[source] tables.",
                table=double,
            )
