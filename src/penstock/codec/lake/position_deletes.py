"""Parquet files with the deleted positions of Iceberg 2.

A file has a row for each deleted row: the location of the data file and the position in it, under
reserved field ids. One file names one data file here, because some readers understand only that.
"""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.codec.lake.errors import corrupt
from penstock.codec.lake.roaring import Positions

FILE_PATH_ID, POSITION_ID = 2147483546, 2147483545
_FILE_PATH, _POSITION = "file_path", "pos"


def _field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={b"PARQUET:field_id": b"%d" % number})


_SCHEMA = pa.schema(
    [
        _field(_FILE_PATH, pa.string(), FILE_PATH_ID),
        _field(_POSITION, pa.int64(), POSITION_ID),
    ]
)


def make_position_deletes(data_file: str, positions: Positions) -> bytes:
    """Return a file of the deleted positions of one data file, strictly ascending.

    data_file: its location as the table's metadata has it.
    """
    paths = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(positions), np.int32)), pa.array([data_file], pa.string())
    )
    table = pa.table([paths.cast(pa.string()), pa.array(positions)], schema=_SCHEMA)
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=[_FILE_PATH],
        column_encoding={_POSITION: "DELTA_BINARY_PACKED"},
    )
    return sink.getvalue()


def parse_position_deletes(content: bytes | memoryview, data_file: str, what: str) -> Positions:
    """Return the positions that a file deletes in one data file; it may name others as well.

    what: name of the file, for errors. Raises DeletionCorrupt.
    """
    try:
        table = pq.read_table(pa.BufferReader(content), columns=[_FILE_PATH, _POSITION])
        chosen = table.filter(pc.equal(table.column(_FILE_PATH), data_file))
        positions = chosen.column(_POSITION).cast(pa.int64()).to_numpy()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise corrupt(what, f"{error}") from error
    if len(positions) and positions.min() < 0:
        raise corrupt(what, "it has a negative position")
    return np.unique(positions)
