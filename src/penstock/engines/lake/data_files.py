"""Data files of a lake: Parquet written row group by row group, with the statistics of its footer.

A file that is not finished has no footer, so no reader takes it for a whole one. On local disk a
finished file is durable. Not here: the conversion of values (`codec/types/lake_values.py`), names
of files, and what names them for a table.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.codec.columns import arrow_type
from penstock.engines.lake.format import ColumnStatistics, LakeColumn, LakeUnreachable, NewFile
from penstock.engines.lake.storage import file_system, is_local, path_in, remove_file

COMPRESSION = "zstd"
LEVEL = 1
BOUND_BYTES_MAX = 256
"""Length of a text or of bytes above which a bound is left out of the statistics."""


def file_schema(columns: Sequence[LakeColumn]) -> pa.Schema:
    """Return the schema of a data file: physical names, and ids where the table has them."""
    return pa.schema([_field(column) for column in columns])


def _field(column: LakeColumn) -> pa.Field:
    metadata = {"PARQUET:field_id": str(column.field_id)} if column.field_id else None
    return pa.field(column.file_name, arrow_type(column.type), metadata=metadata)


class DataFile:
    """Data file that is being written. It is used by one thread."""

    def __init__(
        self, location: str, columns: Sequence[LakeColumn], storage: Mapping[str, str]
    ) -> None:
        """Create the file. columns: in the order of its rows. Raises LakeUnreachable."""
        self.location = location
        self.row_count = 0
        self._columns = columns
        self._storage = storage
        self._schema = file_schema(columns)
        self._nan_counts = [0] * len(columns)
        try:
            if is_local(location):
                Path(path_in(location)).parent.mkdir(parents=True, exist_ok=True)
            self._sink = file_system(location, storage).open_output_stream(path_in(location))
        except OSError as error:
            raise self._failed(error) from error
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=COMPRESSION,
            compression_level=LEVEL,
            version="2.6",
            coerce_timestamps="us",
            store_schema=False,
        )

    @property
    def size_bytes(self) -> int:
        """Number of bytes written so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Write rows as one row group; columns are in order, under any names.

        Raises LakeUnreachable.
        """
        rows = pa.Table.from_arrays(rows.columns, schema=self._schema)
        for place, values in enumerate(rows.columns):
            if pa.types.is_floating(values.type):
                self._nan_counts[place] += pc.sum(pc.is_nan(values)).as_py() or 0
        self.row_count += rows.num_rows
        try:
            self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        except OSError as error:
            raise self._failed(error) from error

    def finish(self) -> NewFile:
        """Write the footer; return the file, which is whole and durable. Raises LakeUnreachable."""
        try:
            self._writer.close()
            size = self.size_bytes
            self._sink.close()
            if is_local(self.location):
                _sync(path_in(self.location))
        except OSError as error:
            raise self._failed(error) from error
        footer = self._writer.writer.metadata
        return NewFile(
            location=self.location,
            size_bytes=size,
            row_count=self.row_count,
            statistics=self._statistics(footer),
            split_offsets=tuple(_start(footer.row_group(n)) for n in range(footer.num_row_groups)),
        )

    def abandon(self) -> None:
        """Remove the file; an error leaves it for a later removal."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._sink.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            remove_file(self.location, self._storage)

    def _statistics(self, footer: Any) -> dict[str, ColumnStatistics]:
        return {
            column.name: _column_statistics(footer, place, self._nan_counts[place])
            for place, column in enumerate(self._columns)
        }

    def _failed(self, error: OSError) -> LakeUnreachable:
        return LakeUnreachable(
            f"cannot write {self.location}: {error}",
            hint="Check that the storage answers, has room, and that this account may write there.",
        )


def _sync(path: str) -> None:
    for place, flags in ((path, os.O_RDONLY), (os.path.dirname(path), os.O_RDONLY)):  # noqa: PTH120
        descriptor = os.open(place, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _start(group: Any) -> int:
    """Return the offset of a row group: of its first column's first page."""
    column = group.column(0)
    pages = (column.dictionary_page_offset, column.data_page_offset)
    return int(min(offset for offset in pages if offset))


def _column_statistics(footer: Any, place: int, nan_count: int) -> ColumnStatistics:
    lows, highs = [], []
    null_count = value_count = size = 0
    is_known = True
    for number in range(footer.num_row_groups):
        chunk = footer.row_group(number).column(place)
        size += chunk.total_compressed_size
        value_count += chunk.num_values
        found = chunk.statistics
        nulls = found.null_count if found is not None and found.has_null_count else 0
        null_count += nulls
        if found is not None and found.has_min_max:
            lows.append(found.min)
            highs.append(found.max)
        elif nulls < chunk.num_values:
            is_known = False
    has_bounds = is_known and bool(lows)
    low, high = (min(lows), max(highs)) if has_bounds else (None, None)
    if _is_long(low) or _is_long(high):
        low = high = None
    return ColumnStatistics(
        low=low,
        high=high,
        null_count=null_count,
        nan_count=nan_count,
        value_count=value_count,
        size_bytes=size,
    )


def _is_long(value: Any) -> bool:
    return isinstance(value, (str, bytes)) and len(value) > BOUND_BYTES_MAX
