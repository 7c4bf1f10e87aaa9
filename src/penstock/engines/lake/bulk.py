"""Lakes as targets of the bulk load: the port of `ports/bulk.py`, on the driver.

Workers write the rows of chunks as files that no table has yet. Once all chunks of a table are
recorded, one commit removes all of its live files, adds the new ones, and gives the table their
shape. Until then a reader sees the previous content, and never a part of the new one. The commit's
mark names the plan, so a load that is killed after it does not commit again. Not here: what workers
do (`bulk_writer.py`), marks and records (`chunk_records.py`).

The steps of a table, each of which may be the last one before a kill: the mark of its plan, files
and records of its chunks, the commit, the finished mark, the removal of the records and of files
that no record names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import structlog

from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, map_lake_column
from penstock.engines.lake.chunk_records import (
    ChunkRecord,
    ChunkRecords,
    TableMark,
    bulk_log,
    copy_folder,
)
from penstock.engines.lake.format import (
    Catalogue,
    Change,
    ChangeKind,
    Commit,
    CommitRefused,
    LakeColumn,
    LakeForeign,
    LakeFormat,
    LakeRows,
    LakeTable,
    Mark,
    MarkNotNewer,
    Merge,
    NewFile,
    PartitionField,
    Snapshot,
    WriterSpec,
)
from penstock.engines.lake.known_tables import decode_record, encode_record, first_record
from penstock.engines.lake.merging import key_missing
from penstock.engines.lake.partitions import resolve_terms, show_terms, terms_of
from penstock.engines.lake.progress import read_action
from penstock.engines.lake.shape import apply_change
from penstock.engines.lake.storage import Folder
from penstock.engines.lake.url import parse_url
from penstock.engines.lake.writer import staged_columns
from penstock.host import faults
from penstock.model import PenstockError, Relation, TableDefinition, TableName
from penstock.ports import bulk
from penstock.ports.bulk import BulkTarget, Found, TablePlan, chunks_missing
from penstock.ports.deferred_keys import DeferredKey
from penstock.ports.jobs import GetJobs
from penstock.ports.registry import engine_with_types
from penstock.ports.target import (
    TableRecord,
    TargetShapeDiffers,
    TargetTypeMissing,
    target_name,
)
from penstock.sql.read_plan import RELATION_OF_PART

logger = structlog.get_logger(__name__)
faults.declare(
    "lake.bulk.begin",
    "lake.bulk.commit.before",
    "lake.bulk.commit.after",
    "lake.bulk.marked",
)

COMMITS_MAX = 5
OPERATION = "copy"


class LakeBulk(BulkTarget):
    """Target of the driver; see `BulkTarget`. Tables are only reached after `use`."""

    def __init__(
        self,
        format_: LakeFormat,
        url: str,
        namespaces: Mapping[str, str],
        *,
        application_name: str,
        servers: ServerPair | None,
    ) -> None:
        """Keep the parts; nothing is opened yet."""
        del application_name
        assert servers is not None, "a lake has other types than every source"
        self._format = format_
        self._url = url
        self._namespaces = namespaces
        self._servers = servers
        lake = parse_url(url)
        self._storage = lake.s3
        self._partitions = lake.partition
        self._merges = lake.merges
        self._folder = Folder(lake.state, lake.s3)
        self._records = ChunkRecords(self._folder)
        self._jobs: GetJobs | None = None
        self._opened: Catalogue | None = None
        self._unfit: set[TableName] = set()

    def use(self, jobs: GetJobs) -> None:
        self._jobs = jobs
        self._opened = None

    @property
    def _catalogue(self) -> Catalogue:
        if self._opened is None:
            assert self._jobs is not None, "the load gives its session first"
            self._opened = self._format.open(self._url, self._jobs(), {})
        return self._opened

    def _target_name(self, definition: TableDefinition) -> TableName:
        return target_name(definition.name, self._namespaces)

    # -- looking -----------------------------------------------------------------------------

    def read_action(self) -> str:
        return read_action(self._folder)

    def look(self, targets: Collection[TableName]) -> Found:
        """Return what exists. Without a session only the marks are known."""
        if self._jobs is None:
            return Found(empty={}, marks=self.marks(), truncates={})
        tables = {name: table for name in targets if (table := self._catalogue.find(name))}
        refusals: dict[TableName, PenstockError] = {}
        empty: dict[TableName, bool] = {}
        for name, table in tables.items():
            try:
                snapshot = table.snapshot(refresh=True)
            except LakeForeign as error:
                refusals[name] = error
                empty[name] = False
            else:
                empty[name] = _is_empty(snapshot)
        return Found(
            empty=empty,
            marks=self.marks(),
            truncates={name: self._emptying(table) for name, table in tables.items()},
            refusals=refusals,
        )

    def _emptying(self, table: LakeTable) -> str:
        """Return the statement for Spark that empties a table."""
        if self._servers.target.engine is Engine.DELTA:
            return f"delete from delta.`{table.location}`;"
        lake = parse_url(self._url)
        path = ".".join(f"`{one}`" for one in (*lake.namespace, *table.name))
        return f"delete from {lake.catalog}.{path};"

    def marks(self) -> dict[TableName, bulk.Mark]:
        return self._records.marks()

    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        return {str(name): mark.done for name, mark in self.marks().items()}

    def under_way(self) -> Mapping[TableName, int]:
        """Return nothing: a file shows its rows when it is complete."""
        return {}

    def is_replica(self) -> bool:
        """Return True: a lake has no triggers and no foreign keys."""
        return True

    def takes_binary(self, definition: TableDefinition) -> bool:
        del definition
        return False

    def reads_log_rows(self) -> bool:
        return True

    # -- tables ------------------------------------------------------------------------------

    def create(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Create missing tables.

        Tables that others created must have the columns that they would get. Those of penstock get
        their shape with the new rows.
        """
        wanted = {one.name: self._columns(one) for one in definitions}
        missing: list[TableDefinition] = []
        for definition in definitions:
            if self._merges and not definition.row_key:
                raise key_missing(definition.name)
            table = self._catalogue.find(self._target_name(definition))
            if table is None:
                missing.append(definition)
                continue
            snapshot = table.snapshot(refresh=True)
            record = decode_record(snapshot.record, table.name)
            differing = list(
                _differences(snapshot, wanted[definition.name], may_have_more=self._merges)
            )
            if record is not None and record.made:
                differing = find_refusals(table, snapshot, wanted[definition.name])
                differing += self._other_partition(definition, snapshot)
            if differing:
                # Raised before the table is dropped, which cannot be created again.
                self._partition(definition, wanted[definition.name])
                self._unfit.add(table.name)
                raise _shape_differs(table.name, definition, differing)
        notes: list[str] = []
        for definition in missing:
            name = self._target_name(definition)
            self._catalogue.create(
                name,
                wanted[definition.name],
                key=definition.row_key,
                record=encode_record(self._record(definition, made=True)),
                partition=self._partition(definition, wanted[definition.name]),
            )
            notes += _shortcomings(definition, name)
        return notes

    def _partition(
        self, definition: TableDefinition, columns: Sequence[LakeColumn]
    ) -> tuple[PartitionField, ...]:
        """Return the fields by which a new table is partitioned. Raises PartitionUnfit."""
        terms = self._partitions.get(str(definition.name), ())
        is_delta = self._servers.target.engine is Engine.DELTA
        return resolve_terms(terms, columns, definition.name, is_delta=is_delta)

    def _other_partition(self, definition: TableDefinition, snapshot: Snapshot) -> list[str]:
        """Return how a table is partitioned, if the pipeline file says something else."""
        terms = self._partitions.get(str(definition.name), ())
        present = terms_of(snapshot.partition)
        if terms == present:
            return []
        return [
            f"it is partitioned by {show_terms(present) or 'nothing'}, [target] partition says "
            f"{show_terms(terms) or 'nothing'}"
        ]

    def _relation(self, definition: TableDefinition) -> Relation:
        """Return a table's shape in the log."""
        return engine_with_types(self._servers.source.engine).part(RELATION_OF_PART)(definition)

    def _columns(self, definition: TableDefinition) -> list[LakeColumn]:
        """Return the lake's column for each column of the relation. Raises TargetTypeMissing."""
        found = []
        for column in self._relation(definition).columns:
            mapping = map_lake_column(
                column,
                self._servers.source.engine,
                choices=self._servers.choices,
                table=definition.name,
                identifies=column.name in definition.row_key,
            )
            if mapping.refused:
                raise TargetTypeMissing(
                    f"column {column.name} of {definition.name} has no type in the lake: "
                    + mapping.refused,
                    hint="Run: penstock plan FILE, which shows every column and its choices.",
                    table=str(definition.name),
                )
            found.append(LakeColumn(name=column.name, type=mapping.type))
        return found

    def _record(self, definition: TableDefinition, *, made: bool) -> TableRecord:
        names = {column.name for column in self._relation(definition).columns}
        copied = [column for column in definition.columns if column.name in names]
        return replace(first_record(definition, self._target_name(definition), copied), made=made)

    def drop_if_made(self, target: TableName) -> None:
        """Drop a table that cannot get the shape of its new rows; the others stay readable."""
        table = self._catalogue.find(target) if target in self._unfit else None
        if table is None:
            return
        record = decode_record(table.snapshot().record, target)
        if record is not None and record.made:
            self._catalogue.drop(target)
            self._unfit.discard(target)

    # -- plans -------------------------------------------------------------------------------

    def begin_afresh(self, plans: Iterable[TablePlan]) -> None:
        """Record new plans; the previous rows stay until the new ones are complete.

        Files that an unfinished earlier plan has left are removed.
        """
        for plan in sorted(plans, key=lambda one: one.source):
            before = self._records.read_mark(plan.source)
            abandoned = () if before is None else before.abandoned
            if before is not None and not before.finished and before.plan != plan.name:
                abandoned = (*abandoned, before.plan)
            mark = TableMark(
                source=(plan.source.schema, plan.source.name),
                target=(plan.target.schema, plan.target.name),
                plan=plan.name,
                position=plan.position,
                columns=self._plan_shape(plan, self._table(plan)).columns,
                abandoned=abandoned,
            )
            self._records.write_mark(mark)
            faults.point("lake.bulk.begin")
            self._records.forget(plan.source)
            self._remove_copies(plan.target, abandoned)

    def details_of(self, plan: TablePlan) -> WriterSpec:
        assert plan.definition is not None, "it is kept until the keys are added"
        table = self._table(plan)
        mark = self._records.read_mark(plan.source)
        shape = self._plan_shape(plan, table)
        if mark is not None and mark.plan == plan.name and mark.columns != shape.columns:
            self._begin_shape(mark, shape)
        is_merged = bool(table.snapshot().unwritable)
        return WriterSpec(
            table=plan.source,
            target=plan.target,
            relation=self._relation(plan.definition),
            source_engine=self._servers.source.engine,
            columns=staged_columns(shape.columns, merges=is_merged),
            data_folder=copy_folder(table.data_folder, plan.name),
            side_folder="",
            stamp=0,
            token="",
            choices=self._servers.choices,
            storage=self._storage,
            partition=() if is_merged else table.snapshot().partition,
            merges=is_merged,
        )

    def _plan_shape(self, plan: TablePlan, table: LakeTable) -> CopiedShape:
        """Return the shape that a table gets with its new rows."""
        assert plan.definition is not None, "it is kept until the keys are added"
        snapshot = table.snapshot(refresh=True)
        record = decode_record(snapshot.record, table.name)
        is_ours = record is not None and record.made
        return plan_shape(
            table,
            snapshot,
            self._columns(plan.definition),
            keeps_others=self._merges and not is_ours,
        )

    def _begin_shape(self, mark: TableMark, shape: CopiedShape) -> None:
        """Record the columns of the files to be written; none that are there have them."""
        self._records.forget(mark.name)
        self._records.write_mark(msgspec.structs.replace(mark, columns=shape.columns))

    def finish_table(self, plan: TablePlan) -> int:
        """Commit the files of all chunks, unless an earlier start has."""
        mark = self._records.read_mark(plan.source)
        if mark is None or mark.plan != plan.name:
            raise chunks_missing(plan, [one.number for one in plan.chunks], is_marked=False)
        if mark.finished:
            return mark.row_count or 0
        records = self._records.read_all(plan.source, plan.name)
        missing = [one.number for one in plan.chunks if one.number not in records]
        if missing:
            raise chunks_missing(plan, missing, is_marked=True)
        chunks = {one.number: records[one.number] for one in plan.chunks}
        table = self._table(plan)
        self._commit(table, plan, mark, chunks.values())
        count = sum(one.row_count for one in chunks.values())
        faults.point("lake.bulk.commit.after")
        self._records.write_mark(
            TableMark(
                source=mark.source,
                target=mark.target,
                plan=mark.plan,
                position=mark.position,
                finished=True,
                row_count=count,
                done={number: one.row_count for number, one in chunks.items()},
            )
        )
        faults.point("lake.bulk.marked")
        self._remove_copies(plan.target, mark.abandoned)
        self._remove_strays(table, plan)
        self._records.forget(plan.source)
        return count

    def _commit(
        self, table: LakeTable, plan: TablePlan, mark: TableMark, chunks: Iterable[ChunkRecord]
    ) -> None:
        """Replace all files in one commit; look again if another writer was faster."""
        adds: list[NewFile] = [file for one in chunks for file in one.files]
        commit_mark = Mark(log_id=bulk_log(plan.name))
        for attempt in range(1, COMMITS_MAX + 1):
            snapshot = table.snapshot(refresh=True)
            if snapshot.mark is not None and snapshot.mark.log_id == commit_mark.log_id:
                return  # an earlier start was ended before it could record that
            shape = self._plan_shape(plan, table)
            if shape.columns != mark.columns:
                self._begin_shape(mark, shape)
                raise _shape_differs(plan.target, plan.definition, ["it was altered meanwhile"])
            faults.point("lake.bulk.commit.before")
            try:
                if snapshot.unwritable:
                    self._replace_rows(table, plan, shape, adds, commit_mark)
                    return
                table.commit(
                    Commit(
                        base_version=snapshot.version,
                        adds=tuple(adds),
                        removes_all=True,
                        changes=shape.changes,
                        mark=commit_mark,
                        record=self._new_record(plan, snapshot),
                        operation=OPERATION,
                    )
                )
                return
            except MarkNotNewer:
                if attempt == COMMITS_MAX:
                    raise
            except CommitRefused as error:
                if attempt == COMMITS_MAX:
                    raise
                logger.info("copy is committed again", table=str(plan.target), why=error.message)

    def _replace_rows(
        self,
        table: LakeTable,
        plan: TablePlan,
        shape: CopiedShape,
        adds: Sequence[NewFile],
        mark: Mark,
    ) -> None:
        """Have Spark put the copied rows in place of all rows of a table.

        The shape comes first, in a commit of its own; a table whose columns change is empty then.
        """
        snapshot = table.snapshot()
        if shape.changes and snapshot.files:
            snapshot = table.merge(Merge(base_version=snapshot.version, is_emptied=True)).snapshot
        record = self._new_record(plan, snapshot)
        if shape.changes or record != snapshot.record:
            snapshot = table.commit(
                Commit(
                    base_version=snapshot.version,
                    changes=shape.changes,
                    record=record,
                    operation=OPERATION,
                )
            )
        columns = staged_columns(shape.columns, merges=True)
        rows = LakeRows(in_table=sum(file.row_count for file in adds), adds=tuple(adds))
        table.merge(
            Merge(
                base_version=snapshot.version,
                columns={one.file_name: one for one in columns if one is not None},
                parts=(rows,),
                is_emptied=True,
                mark=mark,
            )
        )

    def _new_record(self, plan: TablePlan, snapshot: Snapshot) -> str:
        """Return the record of the shape that the new rows have."""
        assert plan.definition is not None, "it is kept until the keys are added"
        before = decode_record(snapshot.record, plan.target)
        return encode_record(self._record(plan.definition, made=before is not None and before.made))

    def _table(self, plan: TablePlan) -> LakeTable:
        table = self._catalogue.find(plan.target)
        if table is None:
            raise TargetShapeDiffers(
                f"table {plan.target} is gone from the lake while its rows are copied",
                hint="Run the same command again: the table is created and copied again.",
                table=str(plan.target),
            )
        return table

    # -- files that no table has -------------------------------------------------------------

    def _remove_copies(self, target: TableName, plans: Iterable[str]) -> None:
        """Remove the files of plans that were never committed."""
        plans = tuple(plans)
        table = self._catalogue.find(target) if plans else None
        if table is None:
            return
        mark = table.snapshot().mark
        for plan in plans:
            if mark is None or mark.log_id != bulk_log(plan):
                _remove_all(self._copies(table, plan), frozenset())

    def _remove_strays(self, table: LakeTable, plan: TablePlan) -> None:
        """Remove the files of attempts that did not count.

        The table says which did: after a kill, records may name other files than the commit.
        """
        live = {_base_name(file.location) for file in table.snapshot().files}
        _remove_all(self._copies(table, plan.name), live)

    def _copies(self, table: LakeTable, plan: str) -> Folder:
        return Folder(copy_folder(table.data_folder, plan), self._storage)

    # -- after the rows ----------------------------------------------------------------------

    def add_keys(
        self,
        definitions: Sequence[TableDefinition],
        *,
        threads: int,
        stop: Callable[[], bool],
    ) -> None:
        """Do nothing: a lake has no keys and indexes, and files have their statistics."""
        del definitions, threads, stop

    def deferred_keys(self, definition: TableDefinition) -> tuple[DeferredKey, ...]:
        del definition
        return ()

    def add_foreign_keys(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Return a note for each table that has foreign keys at the source."""
        return [
            f"{self._target_name(one)} has no foreign keys in the lake, which does not check any: "
            + ", ".join(key.name for key in one.foreign_keys)
            for one in definitions
            if one.foreign_keys
        ]

    def close(self) -> None:
        """Do nothing: the session is the caller's."""


def _is_empty(snapshot: Snapshot) -> bool:
    return all(file.row_count == file.dead_count for file in snapshot.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedShape:
    """Shape of the rows of a copy.

    Attributes:
        columns: For each column of the source the lake's, as its files have it.
        changes: Changes of the table that come with the rows, when all older files are removed.
    """

    columns: tuple[LakeColumn, ...]
    changes: tuple[Change, ...] = ()


def plan_shape(
    table: LakeTable,
    snapshot: Snapshot,
    wanted: Sequence[LakeColumn],
    *,
    keeps_others: bool = False,
) -> CopiedShape:
    """Return the shape that a table gets by a copy: it keeps the columns that it has.

    wanted: names and types. A column of another type is replaced by a new one of its name.
    keeps_others: columns that are not wanted stay, such as those that the lake itself computes.
    """
    names = {one.name for one in wanted}
    kept = {
        one.name: there
        for one in wanted
        if (there := snapshot.column(one.name)) is not None and there.type == one.type
    }
    changes = [
        Change(kind=ChangeKind.DROP, name=one.name)
        for one in snapshot.columns
        if one.name not in kept and not (keeps_others and one.name not in names)
    ]
    columns: list[LakeColumn] = []
    field_id = snapshot.next_field_id
    for one in wanted:
        if one.name in kept:
            columns.append(kept[one.name])
            continue
        added = table.plan_column(
            one.name, one.type, field_id=field_id, initial=None, is_emptied=True
        )
        changes.append(Change(kind=ChangeKind.ADD, name=one.name, column=added))
        columns.append(added)
        field_id += 1 if field_id else 0
    return CopiedShape(columns=tuple(columns), changes=tuple(changes))


def find_refusals(table: LakeTable, snapshot: Snapshot, wanted: Sequence[LakeColumn]) -> list[str]:
    """Return why a table cannot get a shape with a copy of its rows; empty if it can."""
    columns: Sequence[LakeColumn] = snapshot.columns
    found = []
    copied = plan_shape(table, snapshot, wanted)
    for change in copied.changes:
        # The table changes in one step, so it may lack columns in between, but not in the end.
        there = (*columns, *(one for one in copied.columns if one not in columns))
        if why := table.refuse_change(change, replace(snapshot, columns=there)):
            found.append(f"{change.name}: {why}")
        columns = apply_change(columns, change)
    return found


def _shape_differs(
    name: TableName, definition: TableDefinition | None, differing: Sequence[str]
) -> TargetShapeDiffers:
    """Return the error for a table that does not have the source's shape."""
    source = definition.name if definition is not None else name
    return TargetShapeDiffers(
        f"table {name} in the lake has another shape than the source's: " + "; ".join(differing),
        hint="Run the same command again if penstock created the table. Otherwise move its folder "
        f"away so that penstock creates its own for {source}.",
        table=str(name),
    )


def _differences(
    snapshot: Snapshot, wanted: Sequence[LakeColumn], *, may_have_more: bool = False
) -> Iterator[str]:
    """Yield how a table differs from what it should be. may_have_more: columns."""
    for column in wanted:
        there = snapshot.column(column.name)
        if there is None:
            yield f"{column.name} is missing, expected {column.type}"
        elif there.type != column.type:
            yield f"{column.name} is {there.type}, expected {column.type}"
    names = {column.name for column in wanted}
    for column in snapshot.columns:
        if column.name not in names and not may_have_more:
            yield f"{column.name} is not in the source"


def _shortcomings(definition: TableDefinition, name: TableName) -> Iterator[str]:
    """Yield what the lake's table lacks."""
    if definition.unique_keys:
        names = ", ".join(key.name for key in definition.unique_keys)
        yield f"{name} has no unique keys in the lake, which does not check any: {names}"


def _remove_all(folder: Folder, kept: Collection[str]) -> None:
    """Remove the files of a folder but those whose base names are to keep."""
    for name in list(folder.names()):
        if _base_name(name) not in kept:
            folder.remove(name)


def _base_name(location: str) -> str:
    return location.rpartition("/")[2]
