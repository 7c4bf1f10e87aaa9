"""Writer of all changes of one table into its history, in Spark's workers.

Each change is a row. An update that changes the key, and each update of a table without a key, is
two: the delete of the old row and the insert of the new one. A column that the source did not send
has the value of the row's earlier change in the batch. If there is none, the row waits in a side
file until its old row in the table is found (`history_lookup.py`). Not here: commits
(`history.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import cast_exactly
from penstock.codec.types import lake_arrow_type
from penstock.engines.lake.format import LakeColumn, LakeUnreachable, LiveFile, NewFile, WriterSpec
from penstock.engines.lake.history_shape import HEAD_COUNT, OPERATIONS, READ
from penstock.engines.lake.history_values import Patch, UnsentValues, find_unsent
from penstock.engines.lake.parquet import DataWriter
from penstock.engines.lake.rows import read_rows
from penstock.engines.lake.side_files import SideFile
from penstock.engines.lake.writer import BITMAP, Converter, key_field, row_field
from penstock.model import Op, PenstockError
from penstock.ports.target import HistoryWriter, StagedRows, StagingFailed

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

DELETE, INSERT = OPERATIONS[Op.DELETE], OPERATIONS[Op.INSERT]
MOVED_STEP = 1
"""Step of the insert that an update with another key makes."""

EVENT_STEP = 2
"""First step of rows that are no row changes and follow the row change of their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySpec:
    """Facts by which a worker stages the changes of one table and phase.

    Attributes:
        source: Facts of the table: its columns, the shape of the rows, types.
        table_columns: The table's columns that the history was planned for.
        columns: All columns of the history.
        places: For each of the relation's columns the index in `columns`; None if it is left out.
        data_folder: Where data files go.
        token: Beginning of the names of all files.
        stamp: Number of these rows.
        gsn_after: Changes up to this one are in the history already.
    """

    source: WriterSpec
    table_columns: tuple[LakeColumn, ...]
    columns: tuple[LakeColumn, ...]
    places: tuple[int | None, ...]
    data_folder: str
    token: str
    stamp: int
    gsn_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRows(StagedRows):
    """Changes that one task has staged.

    Attributes:
        adds: The data file with the complete ones.
        gsn_first: Number of the first change; 0 without any.
        open_rows: Location of the side file with changes to complete; empty if there are none.
        open_count: Number of those.
        key_bounds: For the key's columns by the table's names, low and high value among them.
    """

    adds: tuple[NewFile, ...] = ()
    gsn_first: int = 0
    open_rows: str = ""
    open_count: int = 0
    key_bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class LakeHistoryWriter(HistoryWriter):
    """Writer of the changes of one table and phase; it is sent to the workers."""

    spec: HistorySpec

    @property
    def stamp(self) -> int:
        return self.spec.stamp

    def write_changes(self, frames: Iterable[pa.RecordBatch], *, any_unsent: bool) -> HistoryRows:
        """Stage changes. Raises StagingFailed, ValueRefused."""
        spec = self.spec
        name = f"{spec.token}-{secrets.token_hex(4)}"
        storage = spec.source.storage
        side = SideFile(f"{spec.source.side_folder}/{name}.history", storage)
        data = DataWriter(f"{spec.data_folder}/{name}.parquet", spec.columns, storage)
        try:
            with data:
                unsent = find_unsent(spec.source, frames) if any_unsent else None
                part = _Part(spec, data, side, unsent)
                for frame in frames:
                    part.add(frame)
            side.close()
        except (OSError, pa.ArrowException) as error:
            side.discard()
            raise StagingFailed(
                f"changes of {spec.source.table} cannot be written to {spec.data_folder}: {error}",
                hint="Check that the workers may write there, and that there is room; penstock "
                "stages the batch again.",
                table=str(spec.source.table),
            ) from error
        except BaseException:
            side.discard()
            raise
        return HistoryRows(
            adds=data.new_files,
            gsn_first=part.gsn_first,
            open_rows=side.location,
            open_count=side.row_count,
            key_bounds=part.key_bounds(),
        )


class _Part:
    """Files that one task fills."""

    def __init__(
        self, spec: HistorySpec, data: DataWriter, side: SideFile, unsent: UnsentValues | None
    ) -> None:
        self._spec = spec
        self._relation = spec.source.relation
        self._converter = Converter(spec.source)
        self._data = data
        self._side = side
        self._unsent = unsent
        self._bounds: dict[str, tuple[Any, Any] | None] = {}
        self.gsn_first = 0

    def add(self, frame: pa.RecordBatch) -> None:
        """Take a frame of changes."""
        patch = Patch() if self._unsent is None else self._unsent.follow(frame)
        gsn = frame.column("gsn").to_numpy()
        start = int(np.searchsorted(gsn, self._spec.gsn_after, side="right"))
        if start == frame.num_rows:
            return
        if not self.gsn_first:
            self.gsn_first = int(gsn[start])
        rows, steps, is_delete, ops = _expand(self._relation, frame, start)
        columns = self._columns(frame, patch, rows, is_delete)
        is_open = np.zeros(frame.num_rows, np.bool_)
        is_open[list(patch.open)] = True
        is_open = is_open[rows] & ~is_delete
        arrays = [*_heads(frame, rows, steps, ops), *columns]
        if not is_open.any():
            self._data.write(arrays)
            return
        self._data.write([one.filter(pa.array(~is_open)) for one in arrays])
        self._wait(patch, rows[is_open], [one.filter(pa.array(is_open)) for one in arrays])

    def _columns(
        self, frame: pa.RecordBatch, patch: Patch, rows: Ints, is_delete: Flags
    ) -> list[pa.Array]:
        """Return the columns of the table here, of all expanded rows."""
        spec, relation = self._spec, self._relation
        found: dict[int, pa.Array] = {}
        after, before = frame.column("after"), frame.column("before")
        index, mask = pa.array(rows), pa.array(is_delete)
        for number, place in enumerate(spec.places):
            if place is None:
                continue
            values = patch.apply(number, after.field(number)).take(index)
            if number in relation.before:
                old = before.field(relation.before.index(number)).take(index)
            else:
                old = pa.nulls(len(rows), values.type)
            values = pc.if_else(mask, old, values)
            values = self._converter.convert(values, number)
            found[place] = cast_exactly(values, lake_arrow_type(spec.columns[place].type))
        return [
            found[place] if place in found else pa.nulls(len(rows), lake_arrow_type(column.type))
            for place, column in enumerate(spec.columns)
            if place >= HEAD_COUNT
        ]

    def _wait(self, patch: Patch, rows: Ints, arrays: Sequence[pa.Array]) -> None:
        """Keep changes until their old rows are found."""
        assert self._unsent is not None, "something was not sent"
        key = self._relation.key
        bitmaps = pa.array([patch.open[row][0] for row in rows.tolist()], pa.binary())
        origins = np.array([patch.open[row][1] for row in rows.tolist()])
        keys = [
            self._converter.convert(self._unsent.old_key(place, origins), index)
            for place, index in enumerate(key)
        ]
        names = [BITMAP, *map(key_field, range(len(key))), *map(row_field, range(len(arrays)))]
        self._side.write(pa.RecordBatch.from_arrays([bitmaps, *keys, *arrays], names=names))
        for index, values in zip(key, keys, strict=True):
            column = self._spec.source.columns[index]
            assert column is not None, "the table has its key"
            self._widen(column.name, values)

    def _widen(self, name: str, values: pa.Array) -> None:
        """Widen the bounds of a column. One of floats has none."""
        if pa.types.is_floating(values.type):
            self._bounds[name] = None
            return
        low, high = pc.min_max(values).as_py().values()
        known = self._bounds.get(name, (low, high))
        if known is not None:
            self._bounds[name] = min(low, known[0]), max(high, known[1])

    def key_bounds(self) -> dict[str, tuple[Any, Any]]:
        """Return the bounds of the key's columns among the changes that wait."""
        return {name: bounds for name, bounds in self._bounds.items() if bounds is not None}


def _expand(
    relation: Any, frame: pa.RecordBatch, start: int
) -> tuple[Ints, Ints, Flags, npt.NDArray[Any]]:
    """Return the rows that changes become.

    Returns for each row the place of its change in the frame, its step, whether it shows the row
    before the change, and its operation.
    """
    op = frame.column("op").to_numpy()
    is_split = _moves(relation, frame, op)
    is_split[:start] = False
    counts = np.where(is_split, 2, 1)
    counts[:start] = 0
    rows = np.repeat(np.arange(frame.num_rows), counts)
    is_second = np.zeros(len(rows), np.bool_)
    is_second[1:] = rows[1:] == rows[:-1]
    is_moved = is_split[rows]
    is_delete = (op[rows] == Op.DELETE) | (is_moved & ~is_second)
    names = np.array([OPERATIONS.get(number, "") for number in range(256)], dtype=object)
    ops = names[op[rows]]
    ops[is_moved & ~is_second] = DELETE
    ops[is_moved & is_second] = INSERT
    return rows, np.where(is_second, MOVED_STEP, 0), is_delete, ops


def _moves(relation: Any, frame: pa.RecordBatch, op: npt.NDArray[Any]) -> Flags:
    """Return which updates change what identifies their row."""
    before = frame.column("before")
    has_before = np.asarray(before.is_valid())
    may_move: Flags = (op == Op.UPDATE) & has_before
    if not relation.key:
        return may_move
    moves = np.zeros(frame.num_rows, np.bool_)
    if not set(relation.key) <= set(relation.before):
        return moves
    after = frame.column("after")
    for index in relation.key:
        old = before.field(relation.before.index(index))
        differs = pc.fill_null(pc.not_equal(old, after.field(index)), True)
        moves |= np.asarray(differs)
    moves &= may_move
    return moves


def _heads(
    frame: pa.RecordBatch, rows: Ints, steps: Ints, ops: npt.NDArray[Any]
) -> Iterator[pa.Array]:
    """Yield the columns of the change, in order."""
    index = pa.array(rows)
    yield frame.column("gsn").take(index)
    yield pa.array(steps.astype(np.int32))
    yield frame.column("trx").take(index)
    yield frame.column("commit_time").take(index)
    yield pa.array(ops, pa.string())
    yield pa.nulls(len(rows), pa.string())


# --- rows that the table had already --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Files of a table whose rows enter its history.

    Attributes:
        files: Live files of one version.
        table_columns: The table's columns in that version.
        columns: All columns of the history.
        places: For each of the table's columns the index in `columns`.
        heads: Values of the change's columns, the same in each row.
        location: The new file.
        storage: See `WriterSpec`.
    """

    files: tuple[LiveFile, ...]
    table_columns: tuple[LakeColumn, ...]
    columns: tuple[LakeColumn, ...]
    places: tuple[int, ...]
    heads: tuple[Any, ...]
    location: str
    storage: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """Result of a task: the new file, None if it has no rows. error: if set, there is no file."""

    file: NewFile | None = None
    lost_count: int = 0
    error: PenstockError | None = None


def write_reads(tasks: Iterator[ReadTask]) -> Iterable[WrittenFile]:
    """Yield the file of each task; Spark calls this function."""
    for task in tasks:
        try:
            with DataWriter(task.location, task.columns, task.storage) as writer:
                for file in task.files:
                    for batch in read_rows(file, task.table_columns, task.storage):
                        writer.write(_read_arrays(task, batch))
        except PenstockError as error:
            yield WrittenFile(error=error)
            return
        except OSError as error:
            yield WrittenFile(
                error=LakeUnreachable(
                    f"cannot write {task.location}: {error}",
                    hint="Check that the storage answers, has room, and that the workers may "
                    "write there.",
                )
            )
            return
        yield WrittenFile(file=writer.new_file)


def head_arrays(columns: Sequence[LakeColumn], values: Sequence[Any], count: int) -> list[pa.Array]:
    """Return the columns of the change with one value each."""
    kinds = [lake_arrow_type(column.type) for column in columns[:HEAD_COUNT]]
    return [
        pa.repeat(pa.scalar(value, kind), count) for value, kind in zip(values, kinds, strict=True)
    ]


def read_heads(gsn: int, step: int, trx: int, time_us: int) -> tuple[Any, ...]:
    """Return the values of the change's columns for rows that a table had already."""
    return gsn, step, trx, time_us or None, READ, None


def _read_arrays(task: ReadTask, batch: pa.RecordBatch) -> list[pa.Array]:
    found = dict(zip(task.places, batch.columns, strict=True))
    rest = [
        cast_exactly(found[place], kind) if place in found else pa.nulls(batch.num_rows, kind)
        for place, column in enumerate(task.columns)
        if place >= HEAD_COUNT
        for kind in [lake_arrow_type(column.type)]
    ]
    return [*head_arrays(task.columns, task.heads, batch.num_rows), *rest]
