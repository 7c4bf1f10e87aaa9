"""Live rows of a lake's data files, read in this process: for `penstock verify` and for tests.

Not here: finding keys in files (`lookup.py`), which reads key columns alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.codec.columns import cast_exactly
from penstock.codec.lake.deletion_vectors import FRAME_BYTES, parse_vector, unframe_vector
from penstock.codec.lake.position_deletes import parse_position_deletes
from penstock.codec.lake.puffin import parse_blob
from penstock.codec.types import lake_arrow_type, parse_value
from penstock.engines.lake.format import (
    DeleteForm,
    DeletionRef,
    LakeColumn,
    LakeUnreachable,
    LiveFile,
)
from penstock.engines.lake.partitions import constant_array
from penstock.engines.lake.storage import file_system, path_in

BATCH_ROWS = 65_536
Places = npt.NDArray[np.int64]
"""Positions of rows in a file, ascending."""

_FIELD_ID = b"PARQUET:field_id"


def read_rows(
    file: LiveFile, columns: Sequence[LakeColumn], storage: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a data file that are not deleted, with the columns' present names.

    Columns that are younger than the file have their initial values. storage: see
    `storage.file_system`. Raises DeletionCorrupt, LakeUnreachable.
    """
    return (batch for batch, _ in read_placed_rows(file, columns, storage))


def read_placed_rows(
    file: LiveFile, columns: Sequence[LakeColumn], storage: Mapping[str, str]
) -> Iterator[tuple[pa.RecordBatch, Places]]:
    """Yield the same rows as `read_rows`, with their positions in the file."""
    try:
        dead = _dead_positions(file, storage)
        with file_system(file.location, storage).open_input_file(path_in(file.location)) as source:
            opened = pq.ParquetFile(source)
            places = _places(opened.schema_arrow, columns)
            names = [opened.schema_arrow.field(at).name for at in places if at is not None]
            begin = 0
            for batch in opened.iter_batches(batch_size=BATCH_ROWS, columns=names):
                yield _live_rows(
                    batch, columns, places, opened.schema_arrow, dead, begin, file.constants
                )
                begin += batch.num_rows
    except OSError as error:
        raise LakeUnreachable(
            f"cannot read {file.location}: {error}",
            hint="Check that the storage answers; a file that is gone was removed by VACUUM or an "
            "expiry, or by hand.",
        ) from error


def _places(schema: pa.Schema, columns: Sequence[LakeColumn]) -> list[int | None]:
    """Return the column of the file for each column of the table; None if the file is older."""
    by_id = {
        int(field.metadata[_FIELD_ID]): at
        for at, field in enumerate(schema)
        if field.metadata and _FIELD_ID in field.metadata
    }
    by_name = {field.name: at for at, field in enumerate(schema)}
    return [
        by_id.get(column.field_id) if column.field_id and by_id else by_name.get(column.file_name)
        for column in columns
    ]


def _live_rows(
    batch: pa.RecordBatch,
    columns: Sequence[LakeColumn],
    places: Sequence[int | None],
    schema: pa.Schema,
    dead: Places,
    begin: int,
    constants: Mapping[str, str | None],
) -> tuple[pa.RecordBatch, Places]:
    positions = np.arange(begin, begin + batch.num_rows)
    first, last = np.searchsorted(dead, [begin, begin + batch.num_rows])
    if last > first:
        keep = np.ones(batch.num_rows, dtype=bool)
        keep[dead[first:last] - begin] = False
        batch, positions = batch.filter(pa.array(keep)), positions[keep]
    arrays = [
        _initial(column, batch.num_rows, constants)
        if at is None
        else cast_exactly(batch.column(schema.field(at).name), lake_arrow_type(column.type))
        for column, at in zip(columns, places, strict=True)
    ]
    names = [column.name for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=names), positions


def _initial(column: LakeColumn, count: int, constants: Mapping[str, str | None]) -> pa.Array:
    if column.file_name in constants:
        return constant_array(constants[column.file_name], column.type, count)
    if column.initial is None:
        return pa.nulls(count, lake_arrow_type(column.type))
    return pa.repeat(parse_value(column.initial, column.type), count)


def _dead_positions(file: LiveFile, storage: Mapping[str, str]) -> Places:
    """Return the deleted positions of a data file, ascending."""
    found = [_positions(ref, file, storage) for ref in file.deletes]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _positions(ref: DeletionRef, file: LiveFile, storage: Mapping[str, str]) -> Places:
    what = f"the deletions of {file.name}"
    if ref.inline is not None:
        return np.asarray(parse_vector(ref.inline, what, count=ref.cardinality), np.int64)
    files, path = file_system(ref.location, storage), path_in(ref.location)
    with files.open_input_file(path) as opened:
        if ref.form is DeleteForm.POSITIONS:
            return np.asarray(parse_position_deletes(opened.read(), file.name, what), np.int64)
        opened.seek(ref.offset)
        size = ref.size_bytes + (FRAME_BYTES if ref.form is DeleteForm.DELTA else 0)
        frame = opened.read(size)
    if ref.form is DeleteForm.DELTA:
        found = parse_vector(unframe_vector(frame, what), what, count=ref.cardinality)
    else:
        found = parse_blob(frame, what, count=ref.cardinality)
    return np.asarray(found, np.int64)
