"""The bulk load's port: what it needs of a source and a target of any engine, and its nouns.

A `Planner` gives consistent points and chunks. A worker's `BulkReader` yields rows, its
`BulkWriter` writes them. The driver asks a `BulkTarget` for tables, keys and loaded chunks. The
engines are found by their URLs. Not here: the order of the work (`penstock.load`), the handover's
own point (`ports/handover.py`), keys that are created later (`ports/deferred_keys.py`).
"""

from __future__ import annotations

import hashlib
import secrets
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import msgspec
import pyarrow as pa

from penstock.codec.lines import LineDialect
from penstock.codec.server_pair import ReadPlan, ServerPair
from penstock.host import faults
from penstock.model import PenstockError, Relation, TableDefinition, TableName
from penstock.model.position import Position, PositionKind
from penstock.ports.config import Config
from penstock.ports.deferred_keys import DeferredKey
from penstock.ports.jobs import GetJobs
from penstock.ports.registry import PartName, part
from penstock.ports.target import target_name

CHUNK_SIZE_BYTES = 64 * 2**20
CHUNK_ROWS_MIN = 1_000
APPLICATION_NAME = "penstock bulk"  # of the workers' sessions

faults.declare("bulk.chunk.copied", "bulk.chunk.committed")


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Piece of a source table that is copied at once.

    Attributes:
        number: Its number in the plan.
        relation: The storage relation it is read from, a leaf of a partitioned table.
        copy_out: The COPY TO STDOUT of its rows, with the columns of its plan in order and in the
            plan's format.
        size_bytes: An estimate.
        row_count: An estimate.
        shape: The table's definition, which the source's engine compares again when it reads the
            chunk; empty if that is not needed.
    """

    number: int
    relation: TableName
    copy_out: str
    size_bytes: int = 0
    row_count: int = 0
    shape: str = ""


class TablePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan by which one table is loaded; bulk.json holds it too.

    Attributes:
        columns: The copied columns, in order.
        binary: Whether rows are in COPY's binary format.
        position: The consistent point as text; the rows are the state before it, unless `settled`
            is the position up to which changes have to be applied before they are one state.
        snapshot_id: An exported snapshot of the source at that point.
        snapshot_text: The content of the snapshot.
        name: Random name of the plan.
        given_up: Names of earlier plans whose rows the target may hold.
        read_plan: How rows are read for another engine.
        has_keys: Whether an earlier load made its keys, indexes and statistics.
        definition: The definition by which the rows are copied, kept until the keys are made.
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

    def with_new_name(self, earlier: TablePlan | None) -> TablePlan:
        """Return this plan with a new name; it remembers the plans that it replaces."""
        given_up = () if earlier is None else (*earlier.given_up, earlier.name)
        return msgspec.structs.replace(self, name=secrets.token_hex(8), given_up=given_up)

    def at(self, snapshot_id: str, snapshot_text: str, settled: str) -> TablePlan:
        """Return the same plan, read from another snapshot of the same point."""
        return msgspec.structs.replace(
            self, snapshot_id=snapshot_id, snapshot_text=snapshot_text, settled=settled
        )

    def ordinals(self, kind: PositionKind) -> tuple[int, int]:
        """Return the table's position and the position where it is settled, as ordered numbers.
        kind: kind of both.
        """
        position = kind.parse(self.position).ordinal
        return position, kind.parse(self.settled).ordinal if self.settled else position

    @property
    def is_mixed(self) -> bool:
        """Return whether the table may hold rows of several moments, until changes are applied."""
        return self.settled not in ("", self.position)


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Record of the target about a table: the plan of its rows, and its progress.

    done: rows by chunk number, for chunks whose rows are in the table.
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
    """Return the error for an incomplete table. is_marked: the target holds this plan of it."""
    return ChunksMissing(
        f"{len(missing)} of {len(plan.chunks)} chunks of {plan.source} are not recorded "
        f"in the target{'' if is_marked else ', which holds another plan of it'}",
        hint="Run the same command again: it goes on with the chunks that are missing.",
        table=str(plan.source),
    )


class SnapshotUnreachable(PenstockError):
    """A worker cannot reach the process that has the sessions of a snapshot.

    fields: machine: the worker's; address: the one that it tried; cause.
    """

    code = "LD51"


class ChunkStatus(StrEnum):
    """Outcome of a chunk's task. HELD: not begun, because wirekite_action says PAUSE or STOP."""

    DONE = "done"
    DONE_BEFORE = "done before"
    SNAPSHOT_GONE = "snapshot gone"
    REWRITTEN = "rewritten"
    PLAN_GONE = "plan gone"
    HELD = "held"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    """Values that a worker needs to copy one chunk.

    Attributes:
        plan: The name that the target's mark must have.
        read_plan: How rows are read for another engine.
        repeated: It was handed out before, by this job or an earlier one; a lost executor may have
            left a transaction open.
        details: Facts that the target gives to its writers, see `BulkTarget.details_of`.
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
    details: Any = None

    @property
    def doing(self) -> str:
        """Name of the work, for errors."""
        return f"copying chunk {self.chunk.number} of {self.table}"

    @property
    def claim(self) -> str:
        """Key that all attempts at this chunk of this plan share: 40 hex digits."""
        text = f"{self.table}.{self.chunk.number} {self.plan}"
        return hashlib.sha256(text.encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOutcome:
    """Outcome of one chunk. rows: committed; error: set if FAILED. seconds: of all tries."""

    table: TableName
    number: int
    status: ChunkStatus
    rows: int = 0
    error: PenstockError | None = None
    seconds: float = 0.0


class TargetFires(PenstockError):
    """An existing target table would run triggers or check foreign keys."""

    code = "LD46"


class CopyCountsDiffer(PenstockError):
    """The target received another number of rows than the source sent."""

    code = "LD40"


class Lines(Protocol):
    """Rows of a chunk as whole lines of text; they can be read once."""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """Number of rows so far; final at the end."""
        ...

    @abstractmethod
    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks of whole lines. Errors of the source are typed."""
        ...


class ShapedRows(NamedTuple):
    """Rows as a batch of the relation's columns, in order. relation: the shape of the rows."""

    relation: Relation
    batch: pa.RecordBatch


class BulkReader(Protocol):
    """Session of a worker at the source, in the snapshot of a plan.

    A writer of the same engine may recognise it and pass the rows on unparsed.
    """

    @abstractmethod
    def was_rewritten(self, task: ChunkTask) -> bool:
        """Keep the chunk's relation from being rewritten or altered while the session reads it.

        Returns whether it was rewritten or altered after the snapshot, which then no longer sees
        its rows, or sees them under old column names.
        """
        ...

    @abstractmethod
    def lines(self, task: ChunkTask, dialect: LineDialect) -> Lines:
        """Return the chunk's rows as lines for the target's engine, by the task's `read_plan`."""
        ...

    def batches(self, task: ChunkTask, relation: Relation) -> Iterator[ShapedRows] | None:
        """Return the chunk's rows as batches, with the types and texts that the log has.

        They can be read once. A column with a value that its type cannot hold is text in the rest
        of the rows, in a new version of the relation. Returns None if the engine, or this table,
        has only `lines`.

        relation: the table in the log, with the columns of the chunk in order.
        """
        del task, relation
        return None

    @abstractmethod
    def tells_rewritten(self, error: PenstockError) -> bool:
        """Return whether an error while reading has the meaning of `was_rewritten`."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the session."""
        ...


class BulkSource(Protocol):
    """Functions of an engine for reading in bulk: its part `bulk_reader`."""

    def open_reader(self, url: str, snapshot_id: str, snapshot_text: str) -> BulkReader | None:
        """Return a session that sees this snapshot, or None if the snapshot no longer exists.

        Raises SnapshotUnreachable if it may exist, but not for this worker.
        """
        ...

    def snapshot_alive(self, url: str, snapshot_id: str, snapshot_text: str) -> bool:
        """Return whether the snapshot can still be read, and is the same one."""
        ...


class BulkWriter(Protocol):
    """Connection of a worker to the target."""

    @abstractmethod
    def read_action(self) -> str:
        """Return the word in wirekite_action."""
        ...

    @abstractmethod
    def write(self, task: ChunkTask, reader: BulkReader) -> tuple[ChunkStatus, int]:
        """Copy the rows and write the DL row in one target transaction; return outcome and rows."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection; uncommitted work is rolled back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Content of the target before a load.

    Attributes:
        empty: Whether each existing table is empty.
        marks: The marks, by source name.
        truncates: The SQL that empties each table, but no table that inherits from it.
        refusals: The error to raise for each table whose triggers or foreign keys would act on our
            rows.
    """

    empty: Mapping[TableName, bool]
    marks: Mapping[TableName, Mark]
    truncates: Mapping[TableName, str]
    refusals: Mapping[TableName, PenstockError] = field(default_factory=dict)


class ChunkCounts(Protocol):
    """Counts that the target has of chunks."""

    @abstractmethod
    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        """Return the chunks that the target records as done, by source table's name as text.

        For each table: rows by chunk number.
        """
        ...

    @abstractmethod
    def under_way(self) -> Mapping[TableName, int]:
        """Return rows of uncommitted chunks, by target table; empty if they are not known."""
        ...


class BulkTarget(ChunkCounts, Protocol):
    """Connection of the driver to the target. Errors are typed."""

    def use(self, jobs: GetJobs) -> None:
        """Take the function that returns Spark's session; called before tables are looked at.

        It does nothing for a target that does not need Spark.
        """
        del jobs

    def reads_log_rows(self) -> bool:
        """Return whether chunks are read in the shape and types of the change log.

        Otherwise they are read as lines for a server, by the plan for the two servers.
        """
        return False

    def details_of(self, plan: TablePlan) -> Any:
        """Return what the writers of a table must know besides their tasks, to be pickled.

        It is None for a database.
        """
        del plan
        return None

    @abstractmethod
    def read_action(self) -> str:
        """Return the word in wirekite_action."""
        ...

    @abstractmethod
    def look(self, targets: Collection[TableName]) -> Found:
        """Return what exists of these tables, by their names in the target; and all marks."""
        ...

    @abstractmethod
    def create(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Create missing tables without keys, check the others; return their shortcomings."""
        ...

    @abstractmethod
    def marks(self) -> dict[TableName, Mark]:
        """Return the marks of all tables, by source name."""
        ...

    @abstractmethod
    def takes_binary(self, definition: TableDefinition) -> bool:
        """Return whether the table's rows are sent in the binary form that both servers share."""
        ...

    @abstractmethod
    def begin_afresh(self, plans: Iterable[TablePlan]) -> None:
        """Empty the target tables of these plans, and record their new plans."""
        ...

    @abstractmethod
    def finish_table(self, plan: TablePlan) -> int:
        """Record that all rows of a table are loaded; return their number. Raises ChunksMissing."""
        ...

    @abstractmethod
    def drop_if_made(self, target: TableName) -> None:
        """Drop a table that penstock has created; leave any other."""
        ...

    @abstractmethod
    def add_keys(
        self,
        definitions: Sequence[TableDefinition],
        *,
        threads: int,
        stop: Callable[[], bool],
    ) -> None:
        """Add keys, indexes and statistics of the tables that penstock has created."""
        ...

    @abstractmethod
    def deferred_keys(self, definition: TableDefinition) -> tuple[DeferredKey, ...]:
        """Return the unique keys that are created later, for a table that penstock has created."""
        ...

    @abstractmethod
    def add_foreign_keys(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Add foreign keys of the tables that penstock has created; return the shortcomings."""
        ...

    @abstractmethod
    def is_replica(self) -> bool:
        """Return whether triggers and foreign keys can be kept from acting on our rows."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""
        ...


class OpenBulkTarget(Protocol):
    """Part `bulk_target` of an engine."""

    def __call__(
        self,
        url: str,
        namespaces: Mapping[str, str],
        /,
        *,
        application_name: str,
        servers: ServerPair | None,
    ) -> BulkTarget:
        """Connect; see `open_bulk_target`."""
        ...


class OpenBulkWriter(Protocol):
    """Part `bulk_writer` of an engine."""

    def __call__(self, url: str, /, *, replica_role: bool) -> BulkWriter:
        """Connect. replica_role: keep triggers and foreign keys from acting on our rows."""
        ...


BULK_TARGET_PART: PartName[OpenBulkTarget] = PartName("bulk_target")
BULK_READER_PART: PartName[BulkSource] = PartName("bulk_reader")
BULK_WRITER_PART: PartName[OpenBulkWriter] = PartName("bulk_writer")


def open_bulk_target(
    url: str, namespaces: Mapping[str, str], *, application_name: str, servers: ServerPair | None
) -> BulkTarget:
    """Connect to a target. servers: the two servers, or None if their types are the same."""
    make = part(url, BULK_TARGET_PART)
    return make(url, namespaces, application_name=application_name, servers=servers)


def bulk_source(url: str) -> BulkSource:
    """Return the bulk reader of a source. Raises EngineUnknown, PartMissing."""
    return part(url, BULK_READER_PART)


def open_writer(task: ChunkTask) -> BulkWriter:
    """Connect to the target that a task names."""
    make = part(task.target_url, BULK_WRITER_PART)
    return make(task.target_url, replica_role=task.replica_role)


class NamesCollide(PenstockError):
    """Two tables have the same name in wirekite_progress, or the same target table."""

    code = "LD45"


def rows_per_chunk(definition: TableDefinition, size_bytes_target: int = CHUNK_SIZE_BYTES) -> int:
    """Return how many rows of a table have about that size, by the server's estimates."""
    if not definition.row_estimate or not definition.size_bytes:
        return CHUNK_ROWS_MIN
    row_bytes = max(definition.size_bytes / definition.row_estimate, 1.0)
    return max(int(size_bytes_target / row_bytes), CHUNK_ROWS_MIN)


def check_names(definitions: Sequence[TableDefinition], namespaces: Mapping[str, str]) -> None:
    """Refuse tables whose progress rows or target tables would have the same name."""
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


class PointUnfit(PenstockError):
    """A table was truncated or rewritten after a consistent point: it needs a later one."""

    code = "LD49"
    retry = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Consistent point of the source: an exported snapshot and its position.

    Rows of transactions whose commit record starts before `position` are in the snapshot, all
    others are not.

    Attributes:
        snapshot_text: The content of the snapshot, because ids are used again after a restart.
        settled: If snapshots are of several moments, the position up to which changes have to be
            applied before the tables are equal to the source.
        definitions: Digests of the tables' definitions that certainly held at the point, by name;
            None if the snapshot itself has them.
    """

    position: Position
    snapshot_id: str
    snapshot_text: str
    settled: Position | None = None
    definitions: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """Table to be read, and its columns in order. binary: in COPY's binary format."""

    definition: TableDefinition
    columns: tuple[str, ...]
    binary: bool = False


class Planner(Protocol):
    """Facts of the source that the bulk load needs."""

    positions: PositionKind  # of the source: how they are parsed and printed

    @abstractmethod
    def first_point(self) -> Point | None:
        """Return the handover's consistent point; None if there is none, or not any more."""
        ...

    @abstractmethod
    def fresh_point(self) -> Point:
        """Make a new consistent point, later than all before; kept until it is released."""
        ...

    @abstractmethod
    def release(self) -> Position | None:
        """Release the points that were made, because all rows are copied.

        Returns the position up to which changes have to be applied before the tables are equal to
        the source, if rows were read without a snapshot; else None.
        """
        ...

    @abstractmethod
    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        """Return the present definitions of the tables."""
        ...

    @abstractmethod
    def chunks(
        self, point: Point, wanted: Sequence[TableRead]
    ) -> Mapping[TableName, Sequence[Chunk]]:
        """Cut tables into chunks which together hold each of their rows once.

        Each copy_out yields the columns in order; they may be expressions. A table is left out if
        its rows cannot be read at this point any more, or if its definition at the point was
        another one. The source is asked for all tables together: the number of queries does not
        depend on theirs.
        """
        ...


class Planning(Planner, Protocol):
    """Planner that keeps the points it makes while a with block is open."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Return itself."""
        ...

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the points."""
        ...


class HeldPoint(Protocol):
    """Consistent point whose snapshot lives while a with block is open."""

    @property
    def position(self) -> int:
        """Position of the point, as an ordered number."""
        ...

    @property
    def snapshot_id(self) -> str:
        """Id of the exported snapshot."""
        ...


class OpenPlanner(Protocol):
    """Part `planner` of an engine."""

    def __call__(self, config: Config, /, *, first: Callable[[], Point | None]) -> Planning:
        """Return the planner; see `open_planner`."""
        ...


PLANNER_PART: PartName[OpenPlanner] = PartName("planner")


def open_planner(config: Config, *, first: Callable[[], Point | None] | None = None) -> Planning:
    """Return the planner of a pipeline's source, to be used as a context manager.

    first: called when the load wants the handover's point; None without a handover.
    """
    return part(config.source.url, PLANNER_PART)(config, first=first or (lambda: None))
