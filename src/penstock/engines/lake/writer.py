"""Writer of a batch's rows into a lake, in Spark's workers.

Complete rows become a Parquet file in the table's folder, which no reader sees until a commit names
it. Keys that may have a row in the lake go into a side file, without those that the log calls NEW.
A row with columns that the source did not send waits in another side file until its old row is
found. Not here: finding rows (`lookup.py`), committing (`apply.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.types import LakeMapping, ValueUnfit, convert_values, map_lake_column
from penstock.engines.lake.format import LakeColumn, LakeRows, WriterSpec
from penstock.engines.lake.keys import LakeLayout
from penstock.engines.lake.partitioned_files import RowsWriter, open_rows_writer
from penstock.engines.lake.refusals import value_refused
from penstock.engines.lake.side_files import SideFile
from penstock.ports.target import NEW, NetRows, StagingFailed, StagingWriter

Flags = npt.NDArray[np.bool_]

BITMAP, COUNT = "absent", "count"
"""Names of the columns of side files that are not columns of the table."""


def unpack_bitmaps(bitmaps: pa.Array, column_count: int) -> Flags:
    """Return one row of flags for each bitmap: true if a column was not sent."""
    width = (column_count + 7) // 8
    joined = b"".join(one.ljust(width, b"\0")[:width] for one in bitmaps.to_pylist())
    packed = np.frombuffer(joined, np.uint8).reshape(-1, width)
    bits = np.unpackbits(packed, axis=1, count=column_count, bitorder="little")
    return bits.astype(np.bool_)


def key_field(place: int) -> str:
    """Return the name of a key column in a side file. place: in the key."""
    return f"key{place}"


def row_field(index: int) -> str:
    """Return the name of a table's column in a side file. index: in the relation."""
    return f"row{index}"


def flag_field(name: str) -> str:
    """Return the name of the column that says whether another one was not sent."""
    return f"absent_{name}"


def staged_columns(
    columns: Sequence[LakeColumn | None], *, merges: bool
) -> tuple[LakeColumn | None, ...]:
    """Return a table's columns as rows are staged with. merges: see `WriterSpec`."""
    if not merges:
        return tuple(columns)
    return tuple(
        None if one is None else replace(one, physical=row_field(index), field_id=0, initial=None)
        for index, one in enumerate(columns)
    )


class Converter:
    """Conversion of a relation's columns to those of a lake's table.

    Attributes:
        kept: Indexes of the relation's columns that the table has.
        columns: The table's column for each of them.
    """

    def __init__(self, spec: WriterSpec) -> None:
        """Read the mapping of each column."""
        self._spec = spec
        relation = spec.relation
        self._mappings: dict[int, LakeMapping] = {}
        self.kept = [index for index, column in enumerate(spec.columns) if column is not None]
        self.columns: list[LakeColumn] = [one for one in spec.columns if one is not None]
        for index in self.kept:
            self._mappings[index] = map_lake_column(
                relation.columns[index],
                spec.source_engine,
                choices=spec.choices,
                table=spec.table,
                identifies=index in relation.key,
            )

    def convert(self, values: pa.Array, index: int) -> pa.Array:
        """Return a column's values in the lake's type. Raises ValueRefused."""
        column = self._spec.columns[index]
        assert column is not None, "columns that are left out are not converted"
        own = self._spec.relation.columns[index]
        try:
            return convert_values(
                values, column.type, neutral=own.neutral, mapping=self._mappings[index]
            )
        except ValueUnfit as error:
            raise value_refused(error, own, column, self._spec.table) from error


@dataclass(frozen=True)
class LakeWriter(StagingWriter):
    """Writer of the rows of one table and phase; it is sent to the workers."""

    spec: WriterSpec

    @property
    def stamp(self) -> int:
        return self.spec.stamp

    @cached_property
    def layout(self) -> LakeLayout:
        return LakeLayout(self.spec.relation)

    def prepare_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows: values are converted once they are folded."""
        return rows

    def write(self, rows: NetRows) -> LakeRows:
        """Stage the rows of a task. Raises StagingFailed, ValueRefused."""
        spec = self.spec
        name = f"{spec.token}-{rows.part}-{secrets.token_hex(4)}"
        keys = SideFile(f"{spec.side_folder}/{name}.keys", spec.storage, is_parquet=spec.merges)
        open_rows = SideFile(
            f"{spec.side_folder}/{name}.open", spec.storage, is_parquet=spec.merges
        )
        converter = Converter(spec)
        data = open_rows_writer(
            f"{spec.data_folder}/{name}",
            converter.columns,
            spec.storage,
            spec.partition,
            table=spec.table,
        )
        part = _Part(spec, self.layout, converter, data, keys, open_rows)
        with converted_errors(spec), closed_after(keys), closed_after(open_rows), data:
            for batch in rows.deletes():
                part.delete(batch)
            for batch in rows.upserts():
                part.upsert(batch)
        counts = rows.counts
        key_count = part.key_count
        return LakeRows(
            in_table=counts.upserts + counts.deletes,
            adds=data.new_files,
            keys=keys.location,
            key_count=key_count,
            required_count=0 if spec.overlaps else key_count,
            key_bounds=part.key_bounds(),
            open_rows=open_rows.location,
            open_count=open_rows.row_count,
            side_bytes=keys.size_bytes + open_rows.size_bytes,
        )


@contextmanager
def converted_errors(spec: WriterSpec) -> Iterator[None]:
    """Convert errors of files and of Arrow."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StagingFailed(
            f"rows of {spec.table} cannot be written to {spec.data_folder}: {error}",
            hint="Check that the workers may write there, and that there is room; penstock stages "
            "the batch again.",
            table=str(spec.table),
        ) from error


@contextmanager
def closed_after(file: SideFile) -> Iterator[None]:
    """Complete a side file at the end of the block; after an error only close it."""
    try:
        yield
    except BaseException:
        file.discard()
        raise
    file.close()


class _Part:
    """The three files that one task fills."""

    def __init__(
        self,
        spec: WriterSpec,
        layout: LakeLayout,
        converter: Converter,
        data: RowsWriter,
        keys: SideFile,
        open_rows: SideFile,
    ) -> None:
        self._spec = spec
        self._layout = layout
        self._converter = converter
        self._data = data
        self._keys = keys
        self._open_rows = open_rows
        self._bounds: dict[str, tuple[Any, Any] | None] = {}
        self.key_count = 0

    def delete(self, batch: pa.RecordBatch) -> None:
        """Take deleted keys; of a table without a key, rows to delete and to insert."""
        relation = self._spec.relation
        if relation.key:
            self._look_up([self._column(batch, index) for index in relation.key])
            return
        counts = batch.column(0).to_numpy()
        columns = [self._column(batch, index) for index in self._converter.kept]
        inserted = np.repeat(np.arange(len(counts)), np.maximum(counts, 0))
        self._data.write([one.take(pa.array(inserted)) for one in columns])
        is_gone = pa.array(counts < 0)
        if self._spec.is_emptied or not is_gone.true_count:
            return
        copies = pa.array(-counts).filter(is_gone)
        gone = [one.filter(is_gone) for one in columns]
        names = [COUNT, *map(row_field, self._converter.kept)]
        self._keys.write(pa.RecordBatch.from_arrays([copies, *gone], names=names))
        self.key_count += pc.sum(copies).as_py()
        for column, values in zip(self._converter.columns, gone, strict=True):
            self._widen(column, values)

    def upsert(self, batch: pa.RecordBatch) -> None:
        """Take whole rows, and rows without some of their columns."""
        spec, converter = self._spec, self._converter
        bitmaps = batch.column(1)
        columns = {index: self._column(batch, index) for index in converter.kept}
        if not spec.is_emptied:
            counts = batch.column(0).to_numpy()
            may_be_there = np.ones(len(counts), np.bool_) if spec.overlaps else counts != NEW
            key = [columns[index] for index in spec.relation.key]
            if not may_be_there.all():
                key = [one.filter(pa.array(may_be_there)) for one in key]
            self._look_up(key, is_deleted=False)
        if bitmaps.null_count < len(bitmaps):
            is_open = bitmaps.is_valid()
            self._wait(batch, columns, bitmaps, is_open)
            is_whole = pc.invert(is_open)
            columns = {index: one.filter(is_whole) for index, one in columns.items()}
        self._data.write([columns[index] for index in converter.kept])

    def _wait(
        self,
        batch: pa.RecordBatch,
        columns: dict[int, pa.Array],
        bitmaps: pa.Array,
        is_open: pa.Array,
    ) -> None:
        """Keep rows until their old rows are found."""
        key = self._spec.relation.key
        origin = [
            self._converter.convert(batch.column(2 + place), index).filter(is_open)
            for place, index in enumerate(key)
        ]
        names = [key_field(place) for place in range(len(key))]
        names += map(row_field, columns)
        rows = [one.filter(is_open) for one in columns.values()]
        absent = bitmaps.filter(is_open)
        if self._spec.merges:
            flags = unpack_bitmaps(absent, len(self._spec.relation.columns))
            names = [*(flag_field(row_field(index)) for index in columns), *names]
            arrays = [*(pa.array(flags[:, index]) for index in columns), *origin, *rows]
        else:
            names = [BITMAP, *names]
            arrays = [absent, *origin, *rows]
        self._open_rows.write(pa.RecordBatch.from_arrays(arrays, names=names))
        self._widen_key(origin)

    def _column(self, batch: pa.RecordBatch, index: int) -> pa.Array:
        return self._converter.convert(batch.column(self._layout.first + index), index)

    def _look_up(self, key: Sequence[pa.Array], *, is_deleted: bool = True) -> None:
        """Take keys that may have a row in the lake. Spark finds those of rows by the rows."""
        if self._spec.is_emptied or not len(key[0]):
            return
        names = [key_field(place) for place in range(len(key))]
        if is_deleted or not self._spec.merges:
            self._keys.write(pa.RecordBatch.from_arrays(list(key), names=names))
        self.key_count += len(key[0])
        self._widen_key(key)

    def _widen_key(self, key: Sequence[pa.Array]) -> None:
        for index, values in zip(self._spec.relation.key, key, strict=True):
            column = self._spec.columns[index]
            assert column is not None, "the table has its key"
            self._widen(column, values)

    def _widen(self, column: LakeColumn, values: pa.Array) -> None:
        """Widen the bounds of a column. A column with NULL, or of floats, has none."""
        if self._bounds.get(column.name, ()) is None:
            return
        if values.null_count or pa.types.is_floating(values.type):
            self._bounds[column.name] = None
            return
        low, high = pc.min_max(values).as_py().values()
        if low is None:
            return
        before = self._bounds.get(column.name)
        if before is not None:
            low, high = min(low, before[0]), max(high, before[1])
        self._bounds[column.name] = (low, high)

    def key_bounds(self) -> dict[str, tuple[Any, Any]]:
        """Return the low and high value of each column of the key among the keys."""
        return {name: bounds for name, bounds in self._bounds.items() if bounds is not None}
