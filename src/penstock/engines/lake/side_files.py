"""Files of our own between staging and lookup: keys to look up, and rows to complete.

They are Arrow streams in the lake's folder `_penstock`, written by one worker and read by others;
or Parquet files, which Spark reads. A file that is lost with the machine is staged again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.engines.lake.storage import file_system, is_local, path_in


class SideFile:
    """Writer of one file, which is created with the first rows.

    Attributes:
        location: Place of the file; empty while it has no rows.
        row_count: Rows so far.
        size_bytes: Size of the file, once it is closed.
    """

    def __init__(
        self, location: str, storage: Mapping[str, str], *, is_parquet: bool = False
    ) -> None:
        """Keep the place."""
        self._is_parquet = is_parquet
        self.location = ""
        self.row_count = 0
        self.size_bytes = 0
        self._wanted = location
        self._storage = storage
        self._sink: pa.NativeFile | None = None
        self._writer: pa.RecordBatchStreamWriter | pq.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows, all of one schema. Raises OSError."""
        if not batch.num_rows:
            return
        if self._writer is None:
            path = path_in(self._wanted)
            if is_local(self._wanted):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._sink = file_system(self._wanted, self._storage).open_output_stream(path)
            open_writer = pq.ParquetWriter if self._is_parquet else pa.ipc.new_stream
            self._writer = open_writer(self._sink, batch.schema)
            self.location = self._wanted
        self._writer.write_batch(batch)
        self.row_count += batch.num_rows

    def close(self) -> None:
        """Complete the file. Raises OSError."""
        if self._writer is not None and self._sink is not None:
            self._writer.close()
            self.size_bytes = self._sink.tell()
            self._sink.close()

    def discard(self) -> None:
        """Close the file after an error; the names of its batch are removed later."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self.close()


def read_side_file(location: str, storage: Mapping[str, str]) -> pa.Table:
    """Return all rows of a file. Raises OSError, pa.ArrowException."""
    with file_system(location, storage).open_input_file(path_in(location)) as source:
        return pa.ipc.open_stream(source.read_buffer()).read_all()
