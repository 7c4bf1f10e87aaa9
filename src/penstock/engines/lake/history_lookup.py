"""Completion of changes whose values are in old rows of the table, in Spark's workers.

The old rows are those of the version that the batch is applied to: a history is committed before
its table. Not here: which values a change lacks (`history_values.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import cast_exactly
from penstock.codec.types import lake_arrow_type
from penstock.engines.lake.absent import read_bitmaps
from penstock.engines.lake.deletions import read_deleted
from penstock.engines.lake.format import LakeColumn, LakeUnreachable, LiveFile
from penstock.engines.lake.history_shape import HEAD_COUNT
from penstock.engines.lake.history_writer import HistoryRows, HistorySpec, WrittenFile
from penstock.engines.lake.keys import KeySet
from penstock.engines.lake.parquet import DataFile, DataWriter
from penstock.engines.lake.side_files import read_side_file
from penstock.engines.lake.writer import key_field, row_field
from penstock.model import PenstockError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLookup:
    """Task of a worker: complete the changes that wait, of one table.

    Attributes:
        spec: Facts of the table and its history.
        rows: What was staged.
        files: Live files of the table that may have the old rows.
        location: The new file of the history.
    """

    spec: HistorySpec
    rows: HistoryRows
    files: tuple[LiveFile, ...]
    location: str


def complete_changes(tasks: Iterator[HistoryLookup]) -> Iterable[WrittenFile]:
    """Yield the file of each task; Spark calls this function."""
    for task in tasks:
        try:
            yield _complete(task)
        except PenstockError as error:
            yield WrittenFile(error=error)
            return
        except (OSError, pa.ArrowException) as error:
            yield WrittenFile(
                error=LakeUnreachable(
                    f"changes of {task.spec.source.table} cannot be completed: {error}",
                    hint="Check that the storage answers, and that the workers may read and "
                    "write there.",
                )
            )
            return


def _complete(task: HistoryLookup) -> WrittenFile:
    spec = task.spec
    storage = spec.source.storage
    rows = read_side_file(task.rows.open_rows, storage).combine_chunks()
    is_absent = read_bitmaps(rows, len(spec.source.columns))
    old = _OldRows(task, rows, np.flatnonzero(is_absent.any(axis=0)).tolist())
    for file in task.files:
        old.search(file)
    arrays = [_array(rows, row_field(place)) for place in range(len(spec.columns))]
    for index, place in enumerate(spec.places):
        if place is not None and is_absent[:, index].any():
            kind = lake_arrow_type(spec.columns[place].type)
            found = cast_exactly(old.values(index), kind)
            arrays[place] = pc.if_else(pa.array(is_absent[:, index]), found, arrays[place])
    arrays[HEAD_COUNT - 1] = _name_lost(spec, is_absent, old.is_lost)
    with DataWriter(task.location, spec.columns, storage) as writer:
        writer.write(arrays)
    return WrittenFile(file=writer.new_file, lost_count=int(old.is_lost.sum()))


def _array(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _name_lost(
    spec: HistorySpec, is_absent: npt.NDArray[np.bool_], is_lost: npt.NDArray[np.bool_]
) -> pa.Array:
    """Return for each row the names of columns whose values were not found, as JSON."""
    names: list[str | None] = [None] * len(is_lost)
    for row in np.flatnonzero(is_lost).tolist():
        places = [spec.places[index] for index in np.flatnonzero(is_absent[row]).tolist()]
        names[row] = json.dumps([spec.columns[one].name for one in places if one is not None])
    return pa.array(names, pa.string())


class _OldRows:
    """Old rows of changes: searched file by file, and their values."""

    def __init__(self, task: HistoryLookup, rows: pa.Table, needed: list[int]) -> None:
        source = task.spec.source
        self._storage = source.storage
        self._columns = source.columns
        self._needed = [index for index in needed if source.columns[index] is not None]
        self._key = [
            column for index in source.relation.key if (column := source.columns[index]) is not None
        ]
        keys = [_array(rows, key_field(place)) for place in range(len(self._key))]
        self._keys = KeySet(keys)
        self._at = np.full(self._keys.size, -1, np.int64)
        self._found: dict[int, list[pa.Array]] = {index: [] for index in self._needed}
        self._count = 0

    def search(self, file: LiveFile) -> None:
        """Keep the values of the rows of a file that have one of the keys."""
        with closing(DataFile(file, self._storage)) as data:
            dead = None
            start = 0
            for group in range(data.group_count):
                span = self._keys.span(data.bounds(group, self._key[0]))
                if span[0] < span[1]:
                    rows, numbers = self._keys.find(span, partial(self._read, data, group))
                    if len(rows):
                        dead = read_deleted(file, self._storage) if dead is None else dead
                        is_live = ~np.isin(rows + start, dead)
                        self._keep(data, group, rows[is_live], numbers[is_live])
                start += data.rows_in(group)

    def _read(self, data: DataFile, group: int, place: int) -> pa.Array:
        return data.read_key(group, self._key[place])

    def _keep(self, data: DataFile, group: int, rows: Ints, numbers: Ints) -> None:
        _, first = np.unique(numbers, return_index=True)  # a key twice in the lake counts once
        first = first[self._at[numbers[first]] < 0]
        if not len(first):
            return
        self._at[numbers[first]] = self._count + np.arange(len(first))
        self._count += len(first)
        for index in self._needed:
            column: LakeColumn | None = self._columns[index]
            assert column is not None, "the table has it"
            self._found[index].append(data.read(group, column).take(pa.array(rows[first])))

    @property
    def is_lost(self) -> npt.NDArray[np.bool_]:
        """Flag for each change: its old row was not found."""
        lost: npt.NDArray[np.bool_] = self._at[self._keys.numbers] < 0
        return lost

    def values(self, index: int) -> pa.Array:
        """Return a column's values in the old row of each change; NULL if it was not found."""
        places = self._at[self._keys.numbers]
        column = self._columns[index]
        assert column is not None, "the table has it"
        kind = lake_arrow_type(column.type)
        parts: Mapping[int, list[pa.Array]] = self._found
        found = pa.concat_arrays([pa.nulls(0, kind), *parts[index]])
        return found.take(pa.array(np.where(places < 0, 0, places), mask=places < 0))
