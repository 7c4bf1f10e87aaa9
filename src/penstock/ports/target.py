"""Requirements of a database as target of the change loader: the port, its nouns, its refusals.

An engine has three parts, each on connections of its own: the stager prepares merge tables and
records (`Staging`), workers write rows into them (`StagingWriter`), and one connection applies them
(`SqlTarget`, which has the order of their steps). `engine_of` makes the engine that a URL names.
The modules of an engine raise the refusals, one class for each condition, with the server's own
words and statements in message and hint. Not here: the times of staging and applying a batch
(`loader.py`), and an engine's implementation (its folder).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.types import NO_CHOICES, Choices
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import (
    ColumnDefinition,
    Marker,
    PenstockError,
    Relation,
    Retry,
    TableDefinition,
    TableName,
)
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports.jobs import GetJobs
from penstock.ports.registry import PartName, part

faults.declare(
    "load.alter.before",
    "load.alter.aside",
    "load.alter.freed",
    "load.alter.fill",
    "load.alter.between",
    "load.alter.after",
    "load.apply.before",
    "load.apply.after",
    "load.progress.before",
    "load.commit.before",
    "load.commit.after",
)


class StagingFailed(PenstockError):
    """The target refused rows of a merge table."""

    code = "LD11"
    retry: ClassVar[Retry] = "never"


class StagingLost(PenstockError):
    """A worker's connection to the target broke."""

    code = "LD12"
    retry: ClassVar[Retry] = "backoff"


class StagingChanged(PenstockError):
    """A merge table does not hold the rows of this batch: lost in a crash, or a late worker's."""

    code = "LD13"
    retry: ClassVar[Retry] = "backoff"


class TargetTableMissing(PenstockError):
    """A captured table has no table in the target."""

    code = "TG01"


class ProgressUnwritable(PenstockError):
    """The schema wirekite or its tables cannot be created or written in the target."""

    code = "TG02"


class TargetFollowsAnotherLog(PenstockError):
    """The target's progress belongs to another change log than this pipeline's."""

    code = "TG03"


class AppliedByAnother(PenstockError):
    """Another process moved the applied position: two loaders are at work on one target."""

    code = "TG04"


class TargetShapeDiffers(PenstockError):
    """An existing table has other columns than the source's."""

    code = "TG10"


class TargetTypeMissing(PenstockError):
    """A column's type is not available in the target."""

    code = "TG11"


class TargetDdlFailed(PenstockError):
    """The target refused to create a schema, type, table, key or index."""

    code = "TG12"


class TargetSchemaMissing(PenstockError):
    """A schema is missing in the target and may not be created."""

    code = "TG13"


class ShapeNotApplicable(PenstockError):
    """A change of the source table's shape cannot be applied to the target."""

    code = "TG20"


class KeyNotInTarget(PenstockError):
    """The target table lacks a column that the log's rows have."""

    code = "TG21"


class ForeignKeyBlocked(PenstockError):
    """A foreign key of the target refuses the net change of a batch."""

    code = "TG30"


class UniqueBlocked(PenstockError):
    """A unique or exclusion constraint of the target refuses the net change of a batch."""

    code = "TG31"


class ValueRefused(PenstockError):
    """The target refuses a value: a check, a domain, a length, or NOT NULL."""

    code = "TG32"


class TargetRowMissing(PenstockError):
    """The target lacks rows that the log changes: another client writes there, or it drifted."""

    code = "TG33"


class TriggersWouldFire(PenstockError):
    """Triggers or rules of the target would act on rows that the source's have handled already."""

    code = "TG34"


class TruncateBlocked(PenstockError):
    """A table was truncated at the source, and in the target rows of other tables refer to it."""

    code = "TG35"


class ActionUnknown(PenstockError):
    """wirekite_action holds another word than RUN, PAUSE and STOP."""

    code = "CT40"


class TargetNotTransactional(PenstockError):
    """A target table has a storage engine that cannot roll a batch back."""

    code = "TG37"


SCHEMA = "wirekite"

# Values of the count column of a table with a key.
GONE = -1  # delete this key

UPSERT = 1  # the log has an earlier row with this key

NEW = 2  # the log has no earlier row with this key

SHARED_LOG = "stage/"
"""Prefix of the id of a log that one of several instances writes, and another may continue.

A target may follow several of these, each with an applied position of its own.
"""


def is_shared(log_id: str) -> bool:
    """Return whether the target follows this log beside others."""
    return log_id.startswith(SHARED_LOG)


def file_label(log_id: str, file: str) -> str:
    """Return the name of a log's file in wirekite_progress."""
    return f"{log_id}/{file}" if is_shared(log_id) else file


def target_name(name: TableName, namespaces: Mapping[str, str]) -> TableName:
    """Return a source table's name in the target: its schema mapped, its name kept."""
    return TableName(namespaces.get(name.schema, name.schema), name.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeNote:
    """Change of a target table's shape.

    Attributes:
        table: The table in the target.
        text: A sentence that names the change.
        is_applied: Whether the target has it; else text names the reason, too.
    """

    table: TableName
    text: str
    is_applied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Place up to which the change log is applied. 0 and None: nothing yet.

    Attributes:
        segment: Number of the last segment that is applied whole, -1 before any.
        position: Position of the last applied commit, as an ordered number.
        commit_time_us: Its time, microseconds since 1970 UTC.
    """

    segment: int = -1
    gsn: int = 0
    trx: int = 0
    position: int = 0
    commit_time_us: int = 0

    def is_at(self, other: Applied) -> bool:
        """Return whether both are one place in the log."""
        mine = (self.segment, self.gsn, self.position)
        return mine == (other.segment, other.gsn, other.position)


class SyncState(StrEnum):
    """State of a table. The target keeps these values: never rename one.

    Attributes:
        FOLLOWING: With the others.
        PAUSED: Its changes wait.
        COPYING: Its rows are copied at a consistent point of their own.
        CATCHING_UP: Its changes since are applied, beside the others.
        REMOVED: Its changes are ignored.
        ISOLATED: A change of it could not be applied; later ones are ignored, until its rows are
            copied again.
    """

    FOLLOWING = "following"
    PAUSED = "paused"
    COPYING = "copying"
    CATCHING_UP = "joining"
    REMOVED = "removed"
    ISOLATED = "isolated"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSync:
    """Row of wirekite_apart.

    Attributes:
        applied: Up to where the log is applied to this table, unless it is with the others.
        start: The position from which its changes count, earlier ones are in the copy; 0: from the
            bulk load's.
        copy_id: The copy request that was carried out last, or is now.
    """

    table: TableName
    state: SyncState
    applied: Applied = field(default_factory=Applied)
    start: int = 0
    copy_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProgress:
    """CL row: the file's name, its last applied gsn, and whether the whole file is applied."""

    file: str
    mark: int
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """Captured table as the target knows it.

    Attributes:
        merge_name: Its merge table's name in schema wirekite.
        made: penstock created the target table.
        columns: `(name, source type)` as applied; None before the first.
        ids: Identities of these columns, in their order (`Column.id`); empty if they are not known.
        source_id: The table that the identities belong to (`Relation.source_id`).
        collations: Collations of these columns, in their order; empty if they are not known.
        unique: The columns of the source's other unique keys, as applied; None if not known.
        log_id: The change log that `version` counts in.
        version: The version of the shape that the target's copy has; 0 before the first.
        key: Names of the columns of the source's key, as applied; None if not known.
        not_null: Names of the columns that are never NULL, as applied.
        computed: `(id, name, source type, expression, whether it is stored)` of the generated
            columns that rows do not have, as applied; None if not known.
        left_out: Columns of the source that the target does not have, by a policy.
        kept: Columns that the source no longer has, and the target still has, by a policy.
        notes: A sentence for each change that could not be applied.
    """

    source: TableName
    target: TableName
    merge_name: str
    made: bool
    columns: tuple[tuple[str, str], ...] | None
    ids: tuple[int, ...] = ()
    source_id: int = 0
    collations: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] | None = None
    log_id: str = ""
    version: int = 0
    key: tuple[str, ...] | None = None
    not_null: tuple[str, ...] = ()
    computed: tuple[tuple[int, str, str, str, bool], ...] | None = None
    left_out: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_still_fits(
    record: TableRecord | None, definition: TableDefinition, present: Iterable[str]
) -> None:
    """Check a table that penstock created against the source's present definition.

    present: names of the columns that the target table has. Another table may have columns of its
    own; in one of ours, a dropped column of the source has no value any more. Raises
    TargetShapeDiffers.
    """
    if record is None or not record.made or record.columns is None:
        return
    named = {column.name for column in definition.columns}
    computed = {name for _, name, *_ in record.computed or ()}
    dropped = (({name for name, _ in record.columns} | computed) & set(present)) - named
    strict = {column.name for column in definition.columns if column.not_null}
    loosened = (set(record.not_null) & named) - strict
    has_other_key = record.key is not None and record.key != definition.row_key
    if dropped or loosened or has_other_key:
        raise TargetShapeDiffers(
            f"target table {record.target} was created by an earlier definition of the source's",
            hint="Copy it again: penstock table resync FILE " + str(definition.name),
            table=str(record.target),
        )


def copied_ids(columns: Iterable[ColumnDefinition]) -> tuple[int, ...]:
    """Return the identities of copied columns; empty if the source has none."""
    ids = tuple(column.id for column in columns)
    return ids if all(ids) else ()


def left_out_columns(records: Mapping[TableName, TableRecord]) -> dict[TableName, frozenset[str]]:
    """Return the columns that the target lacks by policy, for tables that have such."""
    return {
        source: frozenset(record.left_out) for source, record in records.items() if record.left_out
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of a fold. absent: upserts with columns to be filled from the target.

    new: upserts of keys that the table did not have before.
    """

    changes: int = 0
    upserts: int = 0
    deletes: int = 0
    absent: int = 0
    new: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Return the sum, field by field."""
        return Counts(
            changes=self.changes + other.changes,
            upserts=self.upserts + other.upserts,
            deletes=self.deletes + other.deletes,
            absent=self.absent + other.absent,
            new=self.new + other.new,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTable:
    """Merge table that a batch needs.

    Attributes:
        source: Name at the source of the table whose rows it takes.
        target: Name of that table in the target.
        is_plain: The batch has only rows of the table: no change of its shape, and it is not read
            again.
        is_emptied: The table is emptied before these rows are applied.
        overlaps: The table may have some of these changes already, because its copy is newer than
            their beginning: rows that are NEW for the log may exist.
        copied_at: The position of the table's copy; None if it was not copied.
        is_history: It takes all changes of the table, for `HistoryWriter`.
    """

    name: str
    source: TableName
    target: TableName
    relation: Relation
    is_history: bool = False
    is_plain: bool = True
    is_emptied: bool = False
    overlaps: bool = False
    copied_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Rows that a writer has staged. in_table: number of those in the merge table.

    An engine that has other places for rows has its own subclass of this, which it finds again in
    `MergeSpec.staged`.
    """

    in_table: int = 0

    @property
    def row_count(self) -> int:
        """Number of all rows, wherever they are staged."""
        return self.in_table


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSpec:
    """Filled merge table.

    Attributes:
        table: The target's name.
        stamp: The writer's; see `Merge`.
        staged: The rows that each writer has staged, in the order of their parts.
    """

    relation: Relation
    table: TableName
    staging: str
    stamp: int
    counts: Counts
    absent_columns: frozenset[int] = frozenset()
    staged: tuple[StagedRows, ...] = ()

    @property
    def staged_row_count(self) -> int:
        """Number of rows that the merge table must hold."""
        return sum(part.in_table for part in self.staged)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpec:
    """Steps between two barriers, in this order. Names are the target's.

    Attributes:
        truncated: Emptied together.
        reloaded: Emptied one by one; their rows follow as inserts.
        relations: Shapes that are current from here on.
        histories: All changes of tables, if the target takes them (`Staging.takes_history`).
        emptyings: For each time that a table was emptied its marker, in order.
        starts: The position of each source table's copy, for those that were copied.
        gsn: Number of the last row change in it.
    """

    truncated: tuple[TableName, ...] = ()
    reloaded: tuple[TableName, ...] = ()
    relations: tuple[Relation, ...] = ()
    merges: tuple[MergeSpec, ...] = ()
    histories: tuple[MergeSpec, ...] = ()
    emptyings: tuple[tuple[TableName, Marker], ...] = ()
    starts: Mapping[TableName, int] = field(default_factory=dict)
    gsn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBatch:
    """A batch that is staged in merge tables, to be applied.

    Attributes:
        before, after: Required and resulting position of the target.
        files: CL rows of the files that end.
        extra: The merge tables that no other batch needs.
        source_engine: Engine whose types the relations have.
        seconds: Duration of each step of staging.
    """

    before: Applied
    after: Applied
    files: tuple[FileProgress, ...] = ()
    phases: tuple[PhaseSpec, ...] = ()
    extra: tuple[str, ...] = ()
    source_engine: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)


class Layout(Protocol):
    """Layout of rows in a merge table; each engine has its own.

    Attributes:
        schema: Names and types of the merge table's columns, in order.
    """

    schema: pa.Schema

    @abstractmethod
    def batch(
        self,
        counts: npt.NDArray[np.int64],
        columns: list[Any],
        *,
        bitmaps: Any = None,
        origin: list[Any] | None = None,
    ) -> pa.RecordBatch:
        """Return one batch of merge rows; a column given as None is all null."""
        ...


class NetRows(Protocol):
    """Rows of one task, in batches of the writer's layout; may be read repeatedly.

    A table may have several tasks: counts are of this one. part: its number, from 0.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def counts(self) -> Counts:
        """Counts of the task's changes after the fold."""
        ...

    @property
    @abstractmethod
    def any_unsent(self) -> bool:
        """Return whether rows of the table may have columns to be filled. All its tasks have the
        same answer.
        """
        ...

    @property
    @abstractmethod
    def part(self) -> int:
        """Number of the part."""
        ...

    @abstractmethod
    def deletes(self) -> Iterator[pa.RecordBatch]:
        """Yield the deleted keys; for a table without a key all counts."""
        ...

    @abstractmethod
    def upserts(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that follow. Raises the errors of reading the log."""
        ...


class StagingWriter(Protocol):
    """Writer of rows into one merge table. `Staging` makes it, and it is sent to the workers."""

    __slots__ = ()

    @property
    @abstractmethod
    def stamp(self) -> int:
        """Number that distinguishes this filling of the merge table from any other."""
        ...

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Layout of rows in the merge table."""
        ...

    @abstractmethod
    def prepare_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the log (`codec.columns.batch_schema`) in the target's form."""
        ...

    @abstractmethod
    def write(self, rows: NetRows) -> StagedRows:
        """Stage the rows of a task, over the connection that this worker keeps.

        Raises StagingFailed, StagingLost, StagingChanged, or the errors of the rows' iterators.
        """
        ...


class HistoryWriter(Protocol):
    """Writer of all changes of one table, not folded. `Staging` makes it for the workers."""

    __slots__ = ()

    @property
    @abstractmethod
    def stamp(self) -> int:
        """Number that distinguishes these rows from those of any other batch."""
        ...

    @abstractmethod
    def write_changes(self, frames: Iterable[pa.RecordBatch], *, any_unsent: bool) -> StagedRows:
        """Stage changes, given in the order of the log; they may be read repeatedly.

        frames: `codec.columns.batch_schema`, and the columns `position` and `commit_time`.
        any_unsent: whether the source left out columns of some.

        Raises StagingFailed, ValueRefused, and the errors of reading the log.
        """
        ...


NONE_AHEAD = "this target has no tables ahead"


class TargetProgress(Protocol):
    """Progress tables, on the connection that stages or applies: those of a batch are written in
    its transaction.
    """

    @abstractmethod
    def ensure_tables(self) -> None:
        """Create missing tables. Raises ProgressUnwritable."""
        ...

    @abstractmethod
    def bind_log(self, log_id: str) -> Applied:
        """Bind the target to a log; return how far it is applied.

        Raises TargetFollowsAnotherLog.
        """
        ...

    @abstractmethod
    def advance(self, *, log_id: str, before: Applied, after: Applied) -> None:
        """Move the applied position, before anything else is written. A second loader waits, and is
        then refused.
        """
        ...

    @property
    def keeps_ahead(self) -> bool:
        """Return whether tables may be ahead of the applied position here; see `Target.read_ahead`.

        `ensure_tables` looks, and `ensure_ahead` makes it so.
        """
        return False

    def ensure_ahead(self) -> None:
        """Create the table of tables that are ahead, if it is missing."""
        raise AssertionError(NONE_AHEAD)

    def read_ahead(self, log_id: str) -> dict[TableName, int]:
        """Return the tables that are ahead; see `Target.read_ahead`."""
        del log_id
        raise AssertionError(NONE_AHEAD)

    def check_ahead(self, *, log_id: str, expected: Mapping[TableName, int], at: Applied) -> None:
        """Raise AppliedByAnother unless exactly these tables are ahead, each of them so far.

        at: where the target is.
        """
        del log_id, expected, at
        raise AssertionError(NONE_AHEAD)

    def put_ahead(
        self, *, log_id: str, tables: Iterable[TableName], known: Mapping[TableName, int], gsn: int
    ) -> None:
        """Record in a transaction that it brings tables to a row change; no other one can.

        known: tables that were ahead before, each with its row change. Raises AppliedByAnother if
        another process has brought one of them elsewhere.
        """
        del log_id, tables, known, gsn
        raise AssertionError(NONE_AHEAD)

    def clear_ahead(self, *, log_id: str, gsn: int) -> None:
        """Forget tables that are ahead of a row change no more, because the others are there."""
        del log_id, gsn
        raise AssertionError(NONE_AHEAD)

    def hold_applied(self, *, log_id: str, at: Applied) -> None:
        """Check that a log is applied up to a place, and keep it so until the transaction ends.

        Raises AppliedByAnother.
        """
        del log_id, at
        raise AssertionError(NONE_AHEAD)

    @abstractmethod
    def begin_files(self, files: Iterable[str]) -> None:
        """Insert the CL rows of a batch that begins to be staged."""
        ...

    @abstractmethod
    def end_files(self, files: Iterable[FileProgress]) -> None:
        """Write the CL rows, inside the transaction."""
        ...

    @abstractmethod
    def read_table_syncs(self) -> dict[TableName, TableSync]:
        """Return the tables that have, or had, a table sync."""
        ...

    @abstractmethod
    def write_table_sync(self, row: TableSync) -> None:
        """Insert or replace a table's row, inside a transaction."""
        ...


class Staging(Protocol):
    """Connection of the stager: merge tables and the CL rows of files that begin.

    Attributes:
        progress: Progress tables, on a connection of the stager.
        takes_history: Whether the target takes all changes of each table, besides folded rows.
    """

    progress: TargetProgress
    takes_history: bool = False

    @abstractmethod
    def staging_name(self, merge_name: str, *, place: int, use: int) -> str:
        """Return the merge table of the use-th phase (from 1) of a batch in this place (0, 1)."""
        ...

    @abstractmethod
    def merge_name(self, table: TableName, target: TableName) -> str:
        """Return the name of a captured table's merge table; record it the first time."""
        ...

    @abstractmethod
    def prepare(
        self, wanted: Sequence[MergeTable], *, place: int, source_engine: str
    ) -> Mapping[str, StagingWriter | HistoryWriter]:
        """Empty these merge tables; return the writer of each, by name.

        place: of the batch, 0 or 1; rows of the previous batch there are not needed any more.
        """
        ...

    @abstractmethod
    def empty_ahead(self) -> None:
        """Empty the merge tables of applied batches, while the loader is idle."""
        ...

    @abstractmethod
    def forget(self, names: Iterable[str]) -> None:
        """Read the catalogue again when these tables are next needed, because another connection
        drops them.
        """
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection, and remove rows that wait outside of the target."""
        ...


class Target(Protocol):
    """Target to which batches are applied. Errors are typed, or of `Loading.errors`.

    Attributes:
        replica: Whether foreign keys (and triggers, where the engine can) are off in the target.
    """

    replica: bool

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Return whether the connection is closed or lost."""
        ...

    def use(self, jobs: GetJobs) -> None:  # noqa: ARG002
        """Take the function that returns Spark's session; called once, before `bind`.

        It does nothing for a target that does not need Spark to apply a batch.
        """
        return

    @abstractmethod
    def bind(self, log_id: str) -> Applied:
        """Bind the target to this log; return how far it is applied.

        Raises TargetFollowsAnotherLog.
        """
        ...

    def read_ahead(self) -> Mapping[TableName, int]:
        """Return, by source table, the number of the last row change that it has, for tables that
        had more than the applied position said when the target was bound.

        Only a target that does not commit all tables of a batch at once has such, after a crash or
        an error.
        """
        return {}

    @abstractmethod
    def apply(
        self, batch: Any, *, table_sync: TableSync | None = None, at: Applied | None = None
    ) -> Mapping[str, float]:
        """Apply a batch with its progress: all of it, or nothing; return the seconds of each step.

        The target is then at `batch.after`. An error may be raised though all was applied (a lost
        COMMIT): `bind` of a new connection returns the truth. Raises AppliedByAnother if the target
        is not where the batch begins.

        Args:
            batch: A `ports.loading.Batch` that the stager of this kind of target staged.
            table_sync: The batch is of this table alone, which is then at its end.
            at: Where the target is and stays.
        """
        ...

    @abstractmethod
    def read_table_syncs(self) -> dict[TableName, TableSync]:
        """Return the tables that have, or had, a table sync."""
        ...

    @abstractmethod
    def write_table_sync(self, rows: Sequence[TableSync], *, at: Applied) -> None:
        """Insert or replace rows of tables: all, or none. at: where the target is."""
        ...

    @abstractmethod
    def take_notes(self) -> list[ShapeNote]:
        """Return the changes of shape since the last call, applied or not."""
        ...

    @abstractmethod
    def forget(self) -> None:
        """Forget the known shapes of the target's tables: after a failure, or if some were altered
        from outside.
        """
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""
        ...


class TargetEngine(Protocol):
    """Kind of target; the part `target` makes one for each load.

    Attributes:
        errors: Classes of errors that its driver raises.
        ddl_commits: A change of shape ends the transaction it is in, so that batches begin and end
            at one.
    """

    @property
    @abstractmethod
    def errors(self) -> tuple[type[BaseException], ...]:
        """Classes of errors that its driver raises."""
        ...

    @property
    @abstractmethod
    def ddl_commits(self) -> bool:
        """Return whether DDL commits implicitly."""
        ...

    @abstractmethod
    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        """Return the typed error for one of the driver's; doing names the work."""
        ...

    @abstractmethod
    def open_staging(self, url: str, *, choices: Choices, directory: Path | None) -> Staging:
        """Connect for preparing merge tables.

        choices: of [target.types]. directory: on a disk that workers and the applying process
        share, for files of the engine; None if there is none.
        """
        ...

    @abstractmethod
    def open_target(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        allow_triggers: bool = False,
        choices: Choices = NO_CHOICES,
        policies: Policies = EVOLVE_ALL,
        clock: Clock = REAL_CLOCK,
    ) -> Target:
        """Connect for applying. choices: of [target.types]; policies: of [schemaChanges]."""
        ...


def staging_name(merge_name: str, *, place: int, use: int, room: int, unit: str = "") -> str:
    """Return a merge table's name; see `Staging.staging_name`.

    room: the greatest length of names, in bytes of the encoding `unit`, or in characters.
    merge_name: the table's own, which belongs to the first phase in the first set: `item_wkm`; the
    others are `item_wkm2`, `item_wkmb`, `item_wkmb2`.
    """
    suffix = ("", "b")[place] + ("" if use == 1 else str(use))
    room -= len(suffix)
    if unit:
        return merge_name.encode(unit)[:room].decode(unit, errors="ignore") + suffix
    return merge_name[:room] + suffix


TARGET_PART: PartName[Callable[[], TargetEngine]] = PartName("target")


def engine_of(url: str) -> TargetEngine:
    """Return an engine for the target that a URL names. Raises EngineUnknown, PartMissing."""
    return part(url, TARGET_PART)()
