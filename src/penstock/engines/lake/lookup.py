"""Lookup of staged keys in the live files of a lake's tables, in Spark's workers.

A task reads the key's columns of its files, without the row groups whose bounds exclude all keys,
and notes the positions of live rows. It joins them with the positions that are deleted already,
writes both as the files' new deletions, and completes the rows that lack columns with the values at
the positions found. Nothing is visible until a commit names the files.

A table without a key is searched for whole rows, as often as they were deleted. Not here: which
files a task gets (`apply_lookups.py`), the search within arrays (`keys.py`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.lake import Positions
from penstock.engines.lake.absent import OpenRows
from penstock.engines.lake.deletions import (
    Deleted,
    DeletionFileFailed,
    read_deleted,
    write_deleted,
)
from penstock.engines.lake.format import (
    LakeColumn,
    LiveFile,
    LookupOutcome,
    LookupTask,
    NewFile,
)
from penstock.engines.lake.keys import KeySet
from penstock.engines.lake.parquet import DataFile
from penstock.engines.lake.partitioned_files import open_rows_writer
from penstock.engines.lake.side_files import read_side_file
from penstock.engines.lake.writer import COUNT, key_field, row_field
from penstock.model import PenstockError
from penstock.ports.target import StagingChanged

Ints = npt.NDArray[np.int64]


def look_up(tasks: Iterator[LookupTask]) -> Iterable[LookupOutcome]:
    """Do the lookups of one partition; Spark calls this function.

    A typed error becomes the outcome of its task, because Spark would pass on only its text.
    """
    for task in tasks:
        began = time.monotonic()
        try:
            yield _look_up(task, began)
        except PenstockError as error:
            yield LookupOutcome(table=task.table, part=task.part, error=error)
        except (OSError, pa.ArrowException) as error:
            failed = DeletionFileFailed(
                f"keys of {task.table} cannot be looked up: {error}",
                hint="Check that the storage answers, and that the workers may read and write "
                "there.",
                table=str(task.table),
            )
            yield LookupOutcome(table=task.table, part=task.part, error=failed)


def _look_up(task: LookupTask, began: float) -> LookupOutcome:
    search: _Search = _KeySearch(task) if task.key else _RowSearch(task)
    deleted: list[Deleted] = []
    for file in task.files:
        if search.is_done:
            break
        one = _search_file(search, file, task)
        if one is not None:
            deleted.append(one)
    adds = search.write_completed()
    deletes = write_deleted(deleted, task.form, task.deletes_folder, task.token, task.storage)
    return LookupOutcome(
        table=task.table,
        part=task.part,
        deletes=deletes,
        adds=adds,
        found_count=sum(one.added for one in deleted),
        completed_count=search.completed_count,
        scanned_bytes=search.scanned_bytes,
        seconds=time.monotonic() - began,
    )


def _search_file(search: _Search, file: LiveFile, task: LookupTask) -> Deleted | None:
    """Return the file's deletions, or None if nothing of it is to be deleted."""
    if not search.may_be_in(file):
        return None
    dead: Positions | None = None
    found: list[Ints] = []
    with closing(DataFile(file, task.storage)) as data:
        start = 0
        for group in range(data.group_count):
            count = data.rows_in(group)
            rows, numbers = search.find(data, group)
            if len(rows):
                if dead is None:
                    dead = read_deleted(file, task.storage)
                is_live = ~_is_among(rows + start, dead)
                rows, numbers = rows[is_live], numbers[is_live]
                found.append(search.choose(data, group, rows, numbers) + start)
            start += count
        search.scanned_bytes += data.scanned_bytes
    positions = np.concatenate(found) if found else np.empty(0, np.int64)
    if not len(positions) or dead is None:
        return None
    both = np.union1d(dead, positions)
    return Deleted(file=file, positions=both, added=len(both) - len(dead))


def _is_among(positions: Ints, dead: Positions) -> npt.NDArray[np.bool_]:
    if not len(dead):
        return np.zeros(len(positions), np.bool_)
    at = np.searchsorted(dead, positions)
    at[at == len(dead)] = 0
    return np.asarray(dead[at] == positions)


class _Search:
    """Search of one task for the staged keys of its table."""

    def __init__(self, task: LookupTask, keys: KeySet, columns: Sequence[LakeColumn]) -> None:
        self._task = task
        self._keys = keys
        self._columns = columns
        self.scanned_bytes = 0
        self.completed_count = 0

    @property
    def is_done(self) -> bool:
        """Return whether no further row can be found."""
        return False

    def may_be_in(self, file: LiveFile) -> bool:
        """Return whether a file may have one of the keys, by its bounds.

        The driver has compared the bounds with those of all keys, and here is each of them. A file
        that is left out is not opened, so its footer is not read.
        """
        low, high = self._keys.span(file.bounds.get(self._columns[0].name))
        return low < high

    def find(self, data: DataFile, group: int) -> tuple[Ints, Ints]:
        """Return the rows of a row group that have a key, and the keys' numbers."""
        span = self._keys.span(data.bounds(group, self._columns[0]))
        if span[0] >= span[1]:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return self._keys.find(span, partial(self._read, data, group))

    def _read(self, data: DataFile, group: int, place: int) -> pa.Array:
        return data.read_key(group, self._columns[place])

    def choose(self, data: DataFile, group: int, rows: Ints, numbers: Ints) -> Ints:
        """Return those of the live rows that are deleted."""
        raise NotImplementedError

    def write_completed(self) -> tuple[NewFile, ...]:
        """Write the completed rows."""
        return ()


class _KeySearch(_Search):
    """Search by key. Some keys are only looked for because an open row had them before."""

    def __init__(self, task: LookupTask) -> None:
        names = [key_field(place) for place in range(len(task.key))]
        gone = _read_sides(task, [part.keys for part in task.staged])
        waiting = _read_sides(task, [part.open_rows for part in task.staged])
        tables = [one.select(names) for one in (gone, waiting) if one is not None]
        if not tables:
            raise _make_error(task, "has no keys")
        both = pa.concat_tables(tables)
        columns = [_join(both.column(name)) for name in names]
        super().__init__(task, KeySet(columns), task.key)
        gone_count = 0 if gone is None else gone.num_rows
        self._is_gone = np.zeros(self._keys.size, np.bool_)
        self._is_gone[self._keys.numbers[:gone_count]] = True
        self._open = None if waiting is None else OpenRows(waiting, task.columns)
        self._open_of = np.full(self._keys.size, -1, np.int64)
        origins = self._keys.numbers[gone_count:]
        self._open_of[origins] = np.arange(len(origins))

    def choose(self, data: DataFile, group: int, rows: Ints, numbers: Ints) -> Ints:
        if self._open is not None:
            completes = self._open_of[numbers]
            has_open = completes >= 0
            read: Callable[[LakeColumn], pa.Array] = partial(data.read, group)
            self._open.take(completes[has_open], rows[has_open], read)
        return rows[self._is_gone[numbers]]

    def write_completed(self) -> tuple[NewFile, ...]:
        if self._open is None or not self._open.completed_count:
            return ()
        task = self._task
        self.completed_count = self._open.completed_count
        location = f"{task.data_folder}/{task.token}-{secrets.token_hex(4)}"
        columns = [column for column in task.columns if column is not None]
        with open_rows_writer(
            location, columns, task.storage, task.partition, table=task.table
        ) as writer:
            writer.write(self._open.complete())
        return writer.new_files


class _RowSearch(_Search):
    """Search for whole rows, each as often as it was deleted."""

    def __init__(self, task: LookupTask) -> None:
        rows = _read_sides(task, [part.keys for part in task.staged])
        if rows is None:
            raise _make_error(task, "has no rows")
        kept = [index for index, column in enumerate(task.columns) if column is not None]
        values = [_join(rows.column(row_field(index))) for index in kept]
        columns = [column for column in task.columns if column is not None]
        super().__init__(task, KeySet(values, whole_rows=True), columns)
        self._left = np.zeros(self._keys.size, np.int64)
        np.add.at(self._left, self._keys.numbers, _join(rows.column(COUNT)).to_numpy())

    @property
    def is_done(self) -> bool:
        return not self._left.any()

    def choose(self, data: DataFile, group: int, rows: Ints, numbers: Ints) -> Ints:
        del data, group
        order = np.argsort(numbers, kind="stable")
        grouped = numbers[order]
        starts = np.searchsorted(grouped, grouped, side="left")
        is_wanted = np.arange(len(grouped)) - starts < self._left[grouped]
        chosen = order[is_wanted]
        np.subtract.at(self._left, numbers[chosen], 1)
        return np.sort(rows[chosen])


def _read_sides(task: LookupTask, locations: Iterable[str]) -> pa.Table | None:
    """Return the rows of all side files with a name; None if there are none."""
    try:
        found = [read_side_file(one, task.storage) for one in locations if one]
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise _make_error(task, f"cannot be read: {error}") from error
    return pa.concat_tables(found) if found else None


def _make_error(task: LookupTask, what: str) -> StagingChanged:
    return StagingChanged(
        f"a staged part of {task.table} {what}",
        hint="penstock stages the batch again.",
        table=str(task.table),
    )


def _join(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
