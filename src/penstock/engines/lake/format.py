"""Seam between lakes in general and one table format: the port that Delta and Iceberg implement.

A `LakeFormat` opens a `Catalogue`, which has `LakeTable`s. A table gives a `Snapshot` (columns,
live files, mark) and takes a `Commit` (new files, deletions by position, removals, changes of
shape, mark), which is applied whole or refused. Between the driver and Spark's workers go
`WriterSpec`, `LakeRows`, `LookupTask` and `LookupOutcome`. All of these dataclasses can be pickled.
`writer.LakeWriter(spec)` is the `StagingWriter` of a table, and `lookup.look_up(tasks)`, which gets
and yields iterators, is the work of a lookup job. A column's type in the lake is
`codec.types.map_lake_column(...).type`.
Not here: bytes of files (`codec/lake/`), what runs in the workers (`writer.py`, `lookup.py`), and
the order of the steps (`target.py`).

Locations and names. `LiveFile.name` is the text by which the format itself knows a file, as it
stands in its metadata (`file:/lake/t/data/a b.parquet`, `part-0.parquet`); it goes into references
to data files and comes back in commits. `location` is where workers open it: a plain absolute path
on local disk, or a URI of an object store; neither is URL-encoded. A folder is a location, too,
without a slash at its end.

Types of columns (`LakeColumn.type`) are `bool int32 int64 float32 float64 decimal(p,s) date
timestamp timestamptz string binary`; p is 38 at most. A small integer is int32, an unsigned one the
next larger, uint64 `decimal(20,0)`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol, Self

from penstock.codec.types import NO_CHOICES, Choices
from penstock.model import PenstockError, Relation, Retry, TableName
from penstock.ports.jobs import Jobs
from penstock.ports.target import Applied, StagedRows

REPAIR = "repair"
"""Operation of a commit without a mark that changes rows, as `verify --repair` makes it."""


class CommitRefused(PenstockError):
    """Another writer has committed to the table since its files were looked at."""

    code = "LK01"
    retry: ClassVar[Retry] = "backoff"


class MarkNotNewer(PenstockError):
    """The table has the mark of the commit already, or a later one."""

    code = "LK02"
    retry: ClassVar[Retry] = "backoff"


class FeatureUnknown(PenstockError):
    """The table has a feature that penstock does not write."""

    code = "LK03"


class FeatureNeeded(PenstockError):
    """A commit needs a feature that the table does not have and may not get."""

    code = "LK05"


class LakeFailed(PenstockError):
    """The format's Java classes, or the storage, raised an error without a class of its own."""

    code = "LK07"
    retry: ClassVar[Retry] = "backoff"


class LakeForeign(PenstockError):
    """A table in the lake's folder is not one that penstock created for this pipeline."""

    code = "LK10"


class LakeUnreachable(PenstockError):
    """The lake's storage or catalogue does not answer."""

    code = "LK30"
    retry: ClassVar[Retry] = "backoff"


class DeleteForm(StrEnum):
    """Form in which deleted positions are written.

    Attributes:
        DELTA: Deletion vectors in Delta's `.bin` files, small ones inline.
        PUFFIN: Deletion vectors of Iceberg v3: blobs of a Puffin file, each of one data file.
        POSITIONS: Iceberg v2: a Parquet file of positions, for one data file.
    """

    DELTA = "delta"
    PUFFIN = "puffin"
    POSITIONS = "positions"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeColumn:
    """Column of a lake table.

    Attributes:
        name: Its present name.
        type: See the module.
        physical: Its name in Parquet files; the same as `name` without column mapping.
        field_id: Its id in Parquet files; 0 if the table has none.
        nullable: Whether the format lets it be NULL.
        initial: Text of the value that rows of older files have; None: NULL.
    """

    name: str
    type: str
    physical: str = ""
    field_id: int = 0
    nullable: bool = True
    initial: str | None = None

    @property
    def file_name(self) -> str:
        """Name of the column in Parquet files."""
        return self.physical or self.name

    @property
    def identity(self) -> int | str:
        """Fact of the column that stays when it is renamed: its id or its name in files."""
        return self.field_id or self.file_name


class Transform(StrEnum):
    """Function of a column by whose result rows are in partitions, as Iceberg defines it."""

    IDENTITY = "identity"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    BUCKET = "bucket"
    TRUNCATE = "truncate"


Partition = tuple[str | None, ...]
"""Value of each partition field as text, None for NULL; see `partitions.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """Field by which a table is partitioned.

    Attributes:
        source: The column.
        transform: Applied to its values.
        argument: Number of buckets, or width of a truncation; 0 for others.
        name: Name of the field in the format; empty where it has none.
        empty_is_null: The format reads an empty text as NULL, so none may be written.
    """

    source: LakeColumn
    transform: Transform
    argument: int = 0
    name: str = ""
    empty_is_null: bool = False


class ChangeKind(StrEnum):
    """Kind of change of a table's shape."""

    ADD = "add"
    DROP = "drop"
    RENAME = "rename"
    WIDEN = "widen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a table's columns, to be committed together with rows.

    Attributes:
        name: Present name of the column; of an added one its name.
        column: The column after the change, with its id and physical name; None if dropped.
        after: Name of the column that an added one follows; empty: it is the last.
    """

    kind: ChangeKind
    name: str
    column: LakeColumn | None = None
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Place of the log up to which a table has its changes; part of each of our commits.

    Attributes:
        log_id: The log. `segment`, `gsn`, `trx`, `position`, `commit_time_us`: see `Applied`.
    """

    log_id: str
    segment: int = -1
    gsn: int = 0
    trx: int = 0
    position: int = 0
    commit_time_us: int = 0

    @classmethod
    def of(cls, log_id: str, applied: Applied) -> Self:
        """Return the mark of a place in a log."""
        return cls(
            log_id=log_id,
            segment=applied.segment,
            gsn=applied.gsn,
            trx=applied.trx,
            position=applied.position,
            commit_time_us=applied.commit_time_us,
        )

    @property
    def place(self) -> Applied:
        """Return the place in the log."""
        return Applied(
            segment=self.segment,
            gsn=self.gsn,
            trx=self.trx,
            position=self.position,
            commit_time_us=self.commit_time_us,
        )

    @property
    def order(self) -> tuple[int, int, int]:
        """Return the numbers by which marks of one log are compared."""
        return (self.gsn, self.position, self.segment)

    @property
    def text(self) -> str:
        """Return the mark as text; see `parse`."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the mark of a text. Raises ValueError, TypeError."""
        return cls(**json.loads(text))

    def is_newer(self, other: Mark | None) -> bool:
        """Return whether this mark may follow another one; any may follow none, or another log's.

        Two batches without rows end at one gsn, so all of the order counts.
        """
        return other is None or other.log_id != self.log_id or self.order > other.order


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRef:
    """Place of deleted positions of one data file.

    Attributes:
        location: The file that has them; empty if they are `inline`.
        offset: Of the vector (Delta: of its length; Puffin: of the blob); 0 for POSITIONS.
        size_bytes: Of the vector or blob, as the format counts it; of the file for POSITIONS.
        cardinality: Number of deleted rows.
        inline: The vector's bytes (Delta, small ones); None if they are in a file.
    """

    form: DeleteForm
    location: str = ""
    offset: int = 0
    size_bytes: int = 0
    cardinality: int = 0
    inline: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """Data file of a snapshot. One name occurs once.

    Attributes:
        name, location: See the module.
        row_count: Rows in the file, deleted ones too.
        bounds: For columns by present name, the low and high value as Python values. They may be
            wider than the values are, and are missing if they are not known.
        deletes: Its deleted positions: one, or for POSITIONS several.
        partition: Empty in a table without partitions.
        constants: By name in Parquet files the value of all of its rows in a column that the file
            may lack, as in `Partition`.
    """

    name: str
    location: str
    size_bytes: int
    row_count: int
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    deletes: tuple[DeletionRef, ...] = ()
    partition: Partition = ()
    constants: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def dead_count(self) -> int:
        """Number of deleted rows."""
        return sum(ref.cardinality for ref in self.deletes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """Statistics of a column in a new data file, for the format's metadata.

    Attributes:
        low, high: As Python values (bool, int, float, Decimal, date, naive or UTC datetime, str,
            bytes); None if not known or all are NULL. Text and bytes may be cut by the writer of
            the metadata.
        null_count: Number of NULLs.
        nan_count: Number of NaNs of a float column.
        value_count: Number of values, NULLs too.
        size_bytes: Compressed size in the file.
    """

    low: Any = None
    high: Any = None
    null_count: int = 0
    nan_count: int = 0
    value_count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """Data file that a worker or the driver has written, and no commit has taken yet.

    Attributes:
        location: Below `LakeTable.data_folder`.
        statistics: By the columns' names when it was written (`LakeColumn.name`).
        split_offsets: Offsets of the row groups.
        partition: Of all of its rows; empty in a table without partitions.
    """

    location: str
    size_bytes: int
    row_count: int
    statistics: Mapping[str, ColumnStatistics] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()
    partition: Partition = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDeletes:
    """All deleted positions of a live file, those from before too; replaces its present ones.

    Attributes:
        name: `LiveFile.name` of the data file; for a file of the same commit `NewFile.location`.
        ref: Where they are.
        file_size_bytes: Size of the whole file at `ref.location`; 0 if they are inline.
        added: Number of positions that were not deleted before.
    """

    name: str
    ref: DeletionRef
    file_size_bytes: int = 0
    added: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of a table.

    Attributes:
        version: Delta's version, Iceberg's snapshot id (0: none yet).
        columns: In order.
        mark: Of the newest commit of ours in the table's history, though foreign ones followed.
        record: The text that our newest commit with one gave (`Commit.record`); empty if none.
        next_field_id: Id that the next added column will get; 0 if the table has no ids.
        features: Names of the format's features that the table has.
        partition: The fields by which it is partitioned; empty if it is not.
        unwritable: Why penstock cannot add files to it or remove some; empty if it can.
        unreadable: Why penstock cannot read its files; empty if it can.
    """

    version: int
    columns: tuple[LakeColumn, ...]
    files: tuple[LiveFile, ...] = ()
    mark: Mark | None = None
    record: str = ""
    next_field_id: int = 0
    features: frozenset[str] = frozenset()
    partition: tuple[PartitionField, ...] = ()
    unwritable: str = ""
    unreadable: str = ""

    def column(self, name: str) -> LakeColumn | None:
        """Return the column of this name, or None."""
        return next((column for column in self.columns if column.name == name), None)


def check_readable(name: TableName, snapshot: Snapshot) -> None:
    """Raise FeatureUnknown for a table whose files penstock cannot read."""
    if snapshot.unreadable:
        raise FeatureUnknown(
            f"table {name} has {snapshot.unreadable}, which penstock does not read",
            hint="Compare this table in Spark, and name the others to `penstock verify`.",
            table=str(name),
        )


def check_writable(name: TableName, snapshot: Snapshot, *, hint: str) -> None:
    """Raise FeatureUnknown for a table whose files penstock cannot replace. hint: what to do."""
    if snapshot.unwritable:
        raise FeatureUnknown(
            f"table {name} has {snapshot.unwritable}: Spark writes its files, not penstock",
            hint=hint,
            table=str(name),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """All that one commit does to a table; every part may be empty.

    Attributes:
        base_version: The version that was looked at; the commit is refused if the table has another
            one, except for foreign commits that certainly removed or added no rows of ours.
        adds: New data files; they do not count for `removes_all`.
        deletes: Deleted positions of live files.
        removes: Names of live files that are removed.
        removes_all: All live files are removed (TRUNCATE, reload).
        changes: Changes of shape, in order.
        mark: Kept with the commit; None for one that leaves the mark as it is: maintenance, which
            adds and removes no rows, and a repair.
        record: Text to keep with the table from now on, in a property; None: as it is.
        operation: Word for the table's history: `batch`, `copy`, `compact`, `repair`.
    """

    base_version: int
    adds: tuple[NewFile, ...] = ()
    deletes: tuple[NewDeletes, ...] = ()
    removes: tuple[str, ...] = ()
    removes_all: bool = False
    changes: tuple[Change, ...] = ()
    mark: Mark | None = None
    record: str | None = None
    operation: str = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Rows that Spark merges into a table, or puts in place of all of its rows.

    Attributes:
        base_version: The version that was looked at; the merge is refused if the table has another.
        columns: The table's columns that rows are written with, by their names in the staged files.
        key: Names in staged files of the columns of the key, in its order.
        parts: Staged rows, as `WriterSpec.merges` says.
        is_emptied: The rows replace all rows of the table.
        mark: Kept with the commit; None if the rows are removed before a change of shape.
    """

    base_version: int
    columns: Mapping[str, LakeColumn] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    parts: tuple[LakeRows, ...] = ()
    is_emptied: bool = False
    mark: Mark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Result of a merge.

    Attributes:
        snapshot: The table's new version.
        found_count: Number of rows that were updated or deleted; None if the format does not tell.
    """

    snapshot: Snapshot
    found_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Limits for the removal of earlier versions. Times are microseconds since 1970 UTC.

    Attributes:
        before_us: A version that was replaced later is kept.
        keeps: Versions that are kept, and with them all later ones.
        files_before_us: Delta: a file that was removed from the table later stays on disk. It is
            before `before_us`. None: no such file is deleted.
    """

    before_us: int
    keeps: frozenset[int] = frozenset()
    files_before_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Result of an expiry.

    Attributes:
        version_count: Number of versions that cannot be read any more.
        file_count: Number of deleted data files and files of deletions; 0 for Iceberg, which does
            not tell it.
        size_bytes: Their size.
    """

    version_count: int = 0
    file_count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Commit of a table that is whole but not committed yet; see `Catalogue.commit_together`.

    Attributes:
        table: The table.
        snapshot: The version that the table will have.
        work: The format's own.
    """

    table: LakeTable
    snapshot: Snapshot
    work: Any


class LakeTable(Protocol):
    """One table. Its methods may be called from several threads, but for one table by one only.

    Attributes:
        name: Its name in the target (schema mapped).
        location: Its folder.
        data_folder: Where workers write data files.
        deletes_folder: Where they write deletions.
        delete_form: How they write them.
    """

    name: TableName
    location: str
    data_folder: str
    deletes_folder: str
    delete_form: DeleteForm

    @property
    @abstractmethod
    def version_count(self) -> int:
        """Number of versions that can be read, as of the newest known one."""
        ...

    @abstractmethod
    def snapshot(self, *, refresh: bool = False) -> Snapshot:
        """Return the newest known version, which our own commits move on.

        Args:
            refresh: Read it again: after a refusal, and when the loader connects.

        Raises FeatureUnknown, LakeUnreachable, LakeFailed.
        """
        ...

    @abstractmethod
    def commit(self, commit: Commit) -> Snapshot:
        """Commit, or leave the table as it is; return the new version.

        Raises MarkNotNewer (checked first, against the newest version), CommitRefused,
        FeatureNeeded, LakeFailed, LakeUnreachable. After LakeFailed or LakeUnreachable it may have
        been committed: `snapshot(refresh=True).mark` tells.
        """
        ...

    @abstractmethod
    def expire(self, expiry: Expiry) -> Expired:
        """Remove earlier versions, and files that no version needs. The newest stays.

        Raises LakeFailed, LakeUnreachable; CommitRefused if another writer was faster.
        """
        ...

    def prepare(self, commit: Commit) -> Prepared:
        """Make all of a commit but its last step. Only where `Catalogue.can_commit_together`.

        Raises the errors of `commit`.
        """
        raise FeatureNeeded(
            f"table {self.name} is committed alone: {commit.operation}", table=str(self.name)
        )

    def merge(self, merge: Merge) -> Merged:
        """Merge rows by Spark, in one commit with the mark. Only if the URL says `apply=merge`.

        Raises the errors of `commit`, and ValueRefused for a row that a rule of the table refuses.
        """
        raise FeatureNeeded(
            f"table {self.name} cannot take rows by MERGE at version {merge.base_version}",
            table=str(self.name),
        )

    def tag(self, tag: str, version: int, *, kept_us: int) -> None:
        """Give a version a name, under which it can be read for a time; do nothing if it has it.

        kept_us: Age of the version at which the name ends, microseconds. Raises FeatureNeeded if
        the format has no such names, LakeFailed, LakeUnreachable.
        """
        del version, kept_us
        raise FeatureNeeded(
            f"table {self.name} cannot have the tag {tag}: its format has no tags",
            hint="Remove tagMinutes from [target].",
            table=str(self.name),
        )

    @abstractmethod
    def refuse_change(self, change: Change, snapshot: Snapshot) -> str:
        """Return why the format cannot make this change in place; empty if it can."""
        ...

    @abstractmethod
    def plan_column(
        self,
        name: str,
        type: str,
        *,
        field_id: int,
        initial: str | None,
        is_emptied: bool = False,
    ) -> LakeColumn:
        """Return a column that a commit may add, with the physical name that it will have.

        Pure, and the same each time: files are written before the column is added. initial: see
        `LakeColumn`; left out where the format cannot keep it. is_emptied: the commit removes all
        files, so that the name may be one of older files.
        """
        ...


class Catalogue(Protocol):
    """Catalogue of a lake's tables.

    Attributes:
        root: Folder of the lake; our own files are in `<root>/_penstock`.
        can_commit_together: Whether several tables may be committed in one step, as far as is
            known.
    """

    root: str
    can_commit_together: bool = False

    def commit_together(self, commits: Sequence[Prepared]) -> bool:
        """Commit several tables in one step: all of them, or none.

        Returns False, and the attribute is so from then on, if the catalogue cannot do it after
        all; nothing is committed then. Raises CommitRefused if one of them is not as it was when
        its commit was prepared, LakeFailed, LakeUnreachable.
        """
        del commits
        return False

    @abstractmethod
    def tables(self) -> Sequence[TableName]:
        """Return the names of all tables of this format in the lake."""
        ...

    @abstractmethod
    def find(self, name: TableName) -> LakeTable | None:
        """Return a table, or None if there is none. The same object each time."""
        ...

    @abstractmethod
    def create(
        self,
        name: TableName,
        columns: Sequence[LakeColumn],
        *,
        key: Sequence[str] = (),
        record: str = "",
        options: Mapping[str, str] | None = None,
        partition: Sequence[PartitionField] = (),
    ) -> LakeTable:
        """Create an empty table. Ids and physical names of the columns are given by the format.

        options: of the engine, such as `formatVersion`. partition: of `columns`, checked by
        `partitions.resolve_terms`. Raises LakeForeign if the table exists.
        """
        ...

    @abstractmethod
    def drop(self, name: TableName) -> None:
        """Remove a table with its files; do nothing if there is none."""
        ...

    @abstractmethod
    def forget(self) -> None:
        """Forget all tables and cached versions."""
        ...


class LakeFormat(Protocol):
    """Table format. An engine has one, made from the URL of a target.

    Attributes:
        name: `delta` or `iceberg`.
    """

    name: ClassVar[str]

    @abstractmethod
    def open(self, url: str, jobs: Jobs, options: Mapping[str, str]) -> Catalogue:
        """Open the lake of a URL; its folder or namespace is created if it is missing.

        Raises LakeUnreachable, LakeJarsMissing.
        """
        ...


# --- between driver and workers ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSpec:
    """Facts by which a worker stages the rows of one table of a batch.

    Attributes:
        table: The source's name; `target`: the lake's.
        relation: Shape of the rows.
        source_engine: Engine whose types the relation has.
        columns: For each of the relation's columns the lake's column; None if it is left out.
        data_folder: Where data files go.
        side_folder: Where files go that no table has: keys to look up, rows to complete.
        stamp: Number of this filling. Names of all files begin with `token`.
        token: Text that no other filling has.
        choices: Of [target.types].
        storage: Settings of the object store (`storage.file_system`).
        overlaps: Rows that are NEW for the log may be in the table already: their keys are looked
            up, too, and no key is required to be found.
        is_emptied: The table is emptied in the same commit: no key is looked up.
        partition: See `Snapshot`.
        merges: Spark merges the rows (`Merge`), so all files are Parquet files in `side_folder`.
    """

    table: TableName
    target: TableName
    relation: Relation
    source_engine: str
    columns: tuple[LakeColumn | None, ...]
    data_folder: str
    side_folder: str
    stamp: int
    token: str
    choices: Choices = NO_CHOICES
    storage: Mapping[str, str] = field(default_factory=dict)
    overlaps: bool = False
    is_emptied: bool = False
    partition: tuple[PartitionField, ...] = ()
    merges: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeRows(StagedRows):
    """Rows that one task has staged. `in_table` counts upserts and deletes, as the fold does.

    Attributes:
        adds: Data files with the upserts that are complete.
        keys: Location of the Arrow IPC file with the keys to look up: of deletes and of upserts
            that are not NEW; of a table without a key, the rows to delete with their counts. Empty
            if there are none.
        key_count: Number of keys (of a table without a key: rows to delete, repetitions too).
        required_count: Keys that must be found; 0 if the rows overlap with a copy.
        key_bounds: For the key's columns by lake name, the low and high value among the keys.
        open_rows: Location of the Arrow IPC file with upserts that lack columns (ABSENT), to be
            completed with the values at the found positions; empty if there are none.
        open_count: Number of those rows.
        side_bytes: Size of both side files.

    If Spark merges the rows, side files are Parquet files, and `keys` has deleted keys alone.
    """

    adds: tuple[NewFile, ...] = ()
    keys: str = ""
    key_count: int = 0
    required_count: int = 0
    key_bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    open_rows: str = ""
    open_count: int = 0
    side_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupTask:
    """Task of a worker: find the staged keys of a table in a group of its live files.

    Tasks of one table have disjoint groups of files and all of its staged parts; a task completes
    the open rows whose positions are in its own files. A table without a key has one task, because
    so many equal rows are deleted as are counted. No file of a group is changed by another batch
    meanwhile.

    Attributes:
        table: The lake's name.
        key: The columns of the key; empty for a table without one.
        columns: All columns that rows are written with, as in `WriterSpec`.
        relation: Shape of the staged rows.
        files: The group.
        staged: The staged parts that may have keys in it.
        form, data_folder, deletes_folder: See `LakeTable`.
        token: Names of the files that the task writes begin with it.
        part: Number of the group.
        source_engine, choices, storage, partition: See `WriterSpec`.
    """

    table: TableName
    key: tuple[LakeColumn, ...]
    columns: tuple[LakeColumn | None, ...]
    relation: Relation
    files: tuple[LiveFile, ...]
    staged: tuple[LakeRows, ...]
    form: DeleteForm
    data_folder: str
    deletes_folder: str
    token: str
    part: int = 0
    source_engine: str = ""
    choices: Choices = NO_CHOICES
    storage: Mapping[str, str] = field(default_factory=dict)
    partition: tuple[PartitionField, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOutcome:
    """Result of a lookup task. error: if set, the others are empty.

    Attributes:
        deletes: One for each file with positions that were not deleted before.
        adds: Data files with the completed rows.
        found_count: Number of keys found (positions newly deleted).
        completed_count: Number of completed rows.
        scanned_bytes: Bytes read of data files.
    """

    table: TableName
    part: int = 0
    deletes: tuple[NewDeletes, ...] = ()
    adds: tuple[NewFile, ...] = ()
    found_count: int = 0
    completed_count: int = 0
    scanned_bytes: int = 0
    seconds: float = 0.0
    error: PenstockError | None = None


def with_deletes(file: LiveFile, deletes: NewDeletes) -> LiveFile:
    """Return a live file after a commit with these deletions."""
    return replace(file, deletes=(deletes.ref,))
