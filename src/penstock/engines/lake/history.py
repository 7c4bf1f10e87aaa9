"""Histories of a lake's tables: they are created, get existing rows, and all changes of batches.

A history is committed before its table, with the mark of the batch in its own commit: after a crash
in between, the changes that it has are not staged again, and the table's old rows, which complete
changes, are still the previous ones. Not here: what the workers do (`history_writer.py`,
`history_lookup.py`), and columns (`history_shape.py`).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import structlog

from penstock.codec.types import lake_arrow_type
from penstock.engines.lake.apply_lookups import files_under, group_files, may_have_keys
from penstock.engines.lake.format import (
    REPAIR,
    Commit,
    CommitRefused,
    LakeColumn,
    LakeForeign,
    LakeUnreachable,
    LiveFile,
    Mark,
    NewFile,
    Snapshot,
    WriterSpec,
)
from penstock.engines.lake.history_lookup import HistoryLookup, complete_changes
from penstock.engines.lake.history_shape import (
    HEAD_COUNT,
    TRUNCATE,
    HistoryRecord,
    HistoryShape,
    choose_sign,
    decode_history,
    encode_history,
    head_columns,
    history_name,
    is_history,
    plan_history,
)
from penstock.engines.lake.history_writer import (
    EVENT_STEP,
    HistoryRows,
    HistorySpec,
    ReadTask,
    WrittenFile,
    head_arrays,
    read_heads,
    write_reads,
)
from penstock.engines.lake.opened import OpenLake, TableHistories
from penstock.engines.lake.parquet import DataWriter
from penstock.engines.lake.shape import same_columns
from penstock.host import faults
from penstock.model import Marker, PenstockError, TableName
from penstock.ports.target import MergeBatch, StagingChanged, SyncState

logger = structlog.get_logger(__name__)

faults.declare(
    "lake.history.copied", "lake.history.before", "lake.history.after", "lake.history.done"
)

COMMITS_MAX = 5
NOT_COPIED = "none"
"""Copy of a table that the bulk load has not filled."""


class HistoryForeign(PenstockError):
    """A history belongs to another change log, so its numbers of changes are others."""

    code = "LK40"


class Histories(TableHistories):
    """Histories of one open lake. The stager's thread and the loader's use it."""

    def __init__(self, lake: OpenLake) -> None:
        """Keep the lake. Nothing is read yet."""
        self._lake = lake
        self._lock = threading.RLock()
        self._unchecked: set[TableName] | None = None
        self._shapes: dict[TableName, HistoryShape] = {}

    def forget(self) -> None:
        """Forget what is known: tables may have been copied again, and batches given up."""
        with self._lock:
            self._unchecked = None
            self._shapes.clear()

    # --- one history ------------------------------------------------------------------------------

    def open(self, table: TableName) -> tuple[TableName, Snapshot, HistoryRecord]:
        """Return a table's history: name, newest version, record. It is created if it is missing.

        Raises LakeForeign if another table has the name, HistoryForeign.
        """
        lake, name = self._lake, history_name(table)
        with self._lock:
            if lake.catalogue.find(name) is None:
                columns = lake.snapshot(table).columns
                sign = choose_sign(columns)
                record = HistoryRecord(history_of=table, log_id=lake.log_id, sign=sign)
                lake.catalogue.create(name, head_columns(sign), record=encode_history(record))
        snapshot = lake.snapshot(name)
        found = decode_history(snapshot.record)
        if found is None:
            raise LakeForeign(
                f"the history of {table} cannot be kept: the lake has another table {name}",
                hint="Rename or move that table, leave one of both out of [source] tables, or "
                "write history = false below [target].",
                table=str(name),
            )
        if found.log_id != lake.log_id:
            raise HistoryForeign(
                f"table {name} has the changes of change log {found.log_id}, and this pipeline has "
                f"{lake.log_id}",
                hint="Rename or drop that table; a new history is begun then.",
                table=str(name),
            )
        return name, snapshot, found

    def specify(self, source: WriterSpec, token: str) -> HistorySpec:
        """Return the facts by which a worker stages changes of a table."""
        name, snapshot, record = self.open(source.target)
        columns = tuple(column for column in source.columns if column is not None)
        with self._lock:
            now = self._shapes.get(name)
            if now is None or _names(now.columns) == _names(snapshot.columns):
                now = HistoryShape.of(snapshot, record)
            shape = plan_history(self._lake.table(name), snapshot, now, columns)
            self._shapes[name] = shape
        return HistorySpec(
            source=source,
            table_columns=columns,
            columns=shape.columns,
            places=places_of(shape, source.columns),
            data_folder=self._lake.table(name).data_folder,
            token=token,
            stamp=source.stamp,
            gsn_after=gsn_of(snapshot, self._lake.log_id),
        )

    # --- existing rows ----------------------------------------------------------------------------

    def begin(self, tables: Iterable[TableName] = ()) -> None:
        """Put the rows of tables into their histories, where these lack them.

        It looks at these tables, and at all others that were not looked at since `forget`.
        """
        with self._lock:
            if self._unchecked is None:
                self._unchecked = set(self._known_tables())
            due = {*self._unchecked, *tables}
        for table in sorted(due):
            if self._lake.catalogue.find(table) is not None:
                self._begin(table)
            with self._lock:
                if self._unchecked is not None:
                    self._unchecked.discard(table)

    def _known_tables(self) -> Iterable[TableName]:
        """Yield the tables of the lake that penstock keeps, without those that it keeps no more."""
        lake = self._lake
        removed = {
            lake.target_name(source)
            for source, row in lake.batches.syncs.items()
            if row.state is SyncState.REMOVED
        }
        for name in lake.catalogue.tables():
            if name in removed:
                continue
            text = lake.snapshot(name).record
            if text and not is_history(text) and '"source":' in text:
                yield name

    def _begin(self, table: TableName) -> None:
        lake = self._lake
        name, history, record = self.open(table)
        snapshot = lake.snapshot(table)
        mark = snapshot.mark
        is_ours = mark is not None and mark.log_id == lake.log_id
        copy = mark.log_id if mark is not None and not is_ours else None
        if record.copy is not None and copy in (None, record.copy):
            return
        columns = snapshot.columns
        shape = HistoryShape.of(history, record)
        shape = plan_history(lake.table(name), history, shape, columns)
        base = _newest(history.mark, mark, lake.log_id)
        gsn, trx, time_us = (base.gsn, base.trx, base.commit_time_us) if base else (0, 0, 0)
        step = max(EVENT_STEP, record.event[1] + 1 if record.event[0] == gsn else 0)
        token = secrets.token_hex(8)
        staged = lake.new_staged(token, [(name, lake.folders_of(name))])
        adds: list[NewFile] = []
        if history.files and snapshot.files:
            heads = (gsn, step, trx, time_us or None, TRUNCATE, None)
            adds.append(write_heads(lake, name, shape.columns, [heads], f"{token}-event"))
            step += 1
        adds += self._read_table(name, shape, snapshot, read_heads(gsn, step, trx, time_us), token)
        lake.commit(
            name,
            Commit(
                base_version=history.version,
                adds=tuple(adds),
                changes=shape.changes,
                record=encode_history(
                    replace(
                        record,
                        copy=copy or record.copy or NOT_COPIED,
                        sources=shape.sources,
                        event=(gsn, step),
                    )
                ),
                operation=REPAIR,
            ),
        )
        faults.point("lake.history.copied")
        lake.state.remove_staged(staged.token)

    def _read_table(
        self,
        name: TableName,
        shape: HistoryShape,
        snapshot: Snapshot,
        heads: tuple[Any, ...],
        token: str,
    ) -> list[NewFile]:
        """Write the rows of a version of a table as rows of its history."""
        lake = self._lake
        if not snapshot.files:
            return []
        folder = lake.table(name).data_folder
        places = tuple(one for one in places_of(shape, snapshot.columns) if one is not None)
        tasks = [
            [
                ReadTask(
                    files=files,
                    table_columns=snapshot.columns,
                    columns=shape.columns,
                    places=places,
                    heads=heads,
                    location=f"{folder}/{token}-{number}.parquet",
                    storage=lake.storage,
                )
            ]
            for number, files in enumerate(
                group_files(snapshot.files, tasks_max=lake.jobs.parallelism)
            )
        ]
        rows = sum(file.row_count for file in snapshot.files)
        outcomes = lake.jobs.run(tasks, write_reads, description=f"{rows:,} rows into {name}")
        return _files(outcomes)


def _names(columns: Iterable[LakeColumn]) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in columns]


def gsn_of(snapshot: Snapshot, log_id: str) -> int:
    """Return the number of the last change of a log that a version has."""
    mark = snapshot.mark
    return mark.gsn if mark is not None and mark.log_id == log_id else 0


def _newest(one: Mark | None, other: Mark | None, log_id: str) -> Mark | None:
    """Return the newer of two marks of a log."""
    ours = [mark for mark in (one, other) if mark is not None and mark.log_id == log_id]
    return max(ours, key=lambda mark: mark.order, default=None)


def places_of(shape: HistoryShape, columns: Sequence[LakeColumn | None]) -> tuple[int | None, ...]:
    """Return for columns of the table their indexes in the history."""
    at = {column.name: index for index, column in enumerate(shape.columns)}
    return tuple(None if one is None else at[shape.name_of(one)] for one in columns)


def write_heads(
    lake: OpenLake,
    name: TableName,
    columns: Sequence[LakeColumn],
    heads: Sequence[tuple[Any, ...]],
    token: str,
) -> NewFile:
    """Write rows of a history with values of the change's columns alone; return the file."""
    location = f"{lake.table(name).data_folder}/{token}.parquet"
    try:
        with DataWriter(location, columns, lake.storage) as writer:
            for values in heads:
                nulls: list[pa.Array] = [
                    pa.nulls(1, lake_arrow_type(column.type)) for column in columns[HEAD_COUNT:]
                ]
                writer.write([*head_arrays(columns, values, 1), *nulls])
    except OSError as error:
        raise LakeUnreachable(
            f"cannot write {location}: {error}",
            hint="Check that the storage answers, has room, and that this account may write there.",
        ) from error
    assert writer.new_file is not None, "it has rows"
    return writer.new_file


def _files(outcomes: Iterable[WrittenFile]) -> list[NewFile]:
    found = []
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        if outcome.file is not None:
            found.append(outcome.file)
    return found


# --- changes of a batch ---------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class HistoryWork:
    """Changes of one table in one phase.

    Attributes:
        table: The lake's name of the table.
        mark: The mark that the commit gets.
        spec: Facts of the staged changes; None if there are none.
        rows: The staged changes.
        emptyings: Markers of TRUNCATE and reloads, in order.
        completed: The changes that were completed.
    """

    table: TableName
    mark: Mark
    spec: HistorySpec | None = None
    rows: HistoryRows | None = None
    emptyings: tuple[Marker, ...] = ()
    completed: tuple[NewFile, ...] = ()


class HistoryApply:
    """Histories of one staged batch while it is applied."""

    def __init__(
        self,
        lake: OpenLake,
        histories: TableHistories,
        batch: MergeBatch,
        specs: Mapping[str, HistorySpec],
        executor: Executor,
        token: str,
    ) -> None:
        """Keep the parts. specs: by the name under which changes are staged."""
        self._lake = lake
        self._histories = histories
        self._batch = batch
        self._specs = specs
        self._executor = executor
        self._token = token

    def apply_phase(self, number: int) -> set[TableName]:
        """Commit the changes of one phase; return the names of the histories."""
        works = self._works(number)
        self._complete(works, number)
        pending = [self._executor.submit(self._commit, work, number) for work in works]
        failed = [error for future in pending if (error := future.exception()) is not None]
        if failed:
            raise failed[0]
        if works:
            faults.point("lake.history.done")
        return {history_name(work.table) for work in works}

    def _works(self, number: int) -> list[HistoryWork]:
        phase = self._batch.phases[number]
        after = self._batch.after
        if number < len(self._batch.phases) - 1:
            after = replace(self._batch.before, gsn=phase.gsn)
        mark = Mark.of(self._lake.log_id, after)
        found: dict[TableName, HistoryWork] = {}
        for spec in phase.histories:
            work = found.setdefault(spec.table, HistoryWork(table=spec.table, mark=mark))
            work.spec = self._specs[spec.staging]
            (work.rows,) = (one for one in spec.staged if isinstance(one, HistoryRows))
        for table, marker in phase.emptyings:
            work = found.setdefault(table, HistoryWork(table=table, mark=mark))
            work.emptyings = (*work.emptyings, marker)
        return [found[table] for table in sorted(found)]

    # --- values that were not sent ----------------------------------------------------------------

    def _complete(self, works: Sequence[HistoryWork], number: int) -> None:
        """Complete changes whose values are in old rows of the tables."""
        waiting = [work for work in works if work.rows is not None and work.rows.open_count]
        for attempt in range(1, COMMITS_MAX + 1):
            if not waiting:
                return
            try:
                self._run_lookups(waiting, f"{number}-{attempt}")
                return
            except CommitRefused:
                if attempt == COMMITS_MAX:
                    raise
                for work in waiting:
                    self._lake.snapshot(work.table, refresh=True)

    def _run_lookups(self, waiting: Sequence[HistoryWork], label: str) -> None:
        lake = self._lake
        tasks = [
            [
                HistoryLookup(
                    spec=work.spec,
                    rows=work.rows,
                    files=self._files_of(work),
                    location=f"{work.spec.data_folder}/{self._token}-old{label}-{place}.parquet",
                )
            ]
            for place, work in enumerate(waiting)
            if work.spec is not None and work.rows is not None
        ]
        rows = sum(work.rows.open_count for work in waiting if work.rows is not None)
        outcomes = lake.jobs.run(
            tasks, complete_changes, description=f"{rows:,} changes that lack columns"
        )
        for work, outcome in zip(waiting, outcomes, strict=True):
            work.completed = tuple(_files([outcome]))
            if outcome.lost_count:
                logger.warning(
                    "changes in a history lack values: their rows were missing in the table",
                    table=str(work.table),
                    count=outcome.lost_count,
                )

    def _files_of(self, work: HistoryWork) -> tuple[LiveFile, ...]:
        assert work.rows is not None, "changes wait"
        assert work.spec is not None, "they were staged"
        bounds = work.rows.key_bounds
        files = files_under(work.spec.table_columns, self._lake.snapshot(work.table))
        return tuple(file for file in files if may_have_keys(file, bounds))

    # --- commits ----------------------------------------------------------------------------------

    def _commit(self, work: HistoryWork, number: int) -> None:
        """Commit, and repeat it if another writer was faster."""
        for attempt in range(1, COMMITS_MAX + 1):
            name, snapshot, record = self._histories.open(work.table)
            if not work.mark.is_newer(snapshot.mark):
                return  # after a crash: it has the changes
            commit = self._plan(work, name, snapshot, record, f"{number}-{attempt}")
            if commit is None:
                return
            faults.point("lake.history.before")
            try:
                self._lake.commit(name, commit)
            except CommitRefused as error:
                if attempt == COMMITS_MAX:
                    raise
                logger.info("commit is repeated", table=str(name), reason=error.message)
                self._lake.snapshot(name, refresh=True)
                continue
            faults.point("lake.history.after")
            return

    def _plan(
        self,
        work: HistoryWork,
        name: TableName,
        snapshot: Snapshot,
        record: HistoryRecord,
        label: str,
    ) -> Commit | None:
        """Return the commit; None if the history has everything. Raises StagingChanged."""
        shape = HistoryShape.of(snapshot, record)
        adds: list[NewFile] = list(work.completed)
        if work.spec is not None and work.rows is not None:
            table = self._lake.table(name)
            shape = plan_history(table, snapshot, shape, work.spec.table_columns)
            first = work.rows.gsn_first
            is_late = 0 < first <= gsn_of(snapshot, self._lake.log_id)
            if is_late or not same_columns(shape.columns, work.spec.columns):
                raise StagingChanged(
                    f"changes of {work.table} were staged for another version of {name}",
                    hint="penstock stages the batch again.",
                    table=str(name),
                )
            adds += work.rows.adds
        new = [one for one in work.emptyings if (one.trx, one.gsn) > record.emptied]
        if new:
            heads, event = _emptyings(new, record)
            adds.append(
                write_heads(
                    self._lake,
                    name,
                    shape.columns,
                    heads,
                    f"{self._token}-event{label}-{secrets.token_hex(4)}",
                )
            )
            record = replace(record, emptied=(new[-1].trx, new[-1].gsn), event=event)
        if not adds:
            return None
        known = decode_history(snapshot.record)
        record = replace(record, sources=shape.sources)
        return Commit(
            base_version=snapshot.version,
            adds=tuple(adds),
            changes=shape.changes,
            mark=work.mark,
            record=encode_history(record) if record != known else None,
        )


def _emptyings(
    markers: Sequence[Marker], record: HistoryRecord
) -> tuple[list[tuple[Any, ...]], tuple[int, int]]:
    """Return the rows of emptied tables, and the newest event."""
    event, heads = record.event, []
    for marker in markers:
        step = max(EVENT_STEP, event[1] + 1 if event[0] == marker.gsn else 0)
        event = (marker.gsn, step)
        heads.append((marker.gsn, step, marker.trx, marker.commit_time_us, TRUNCATE, None))
    return heads, event
