"""Data files of a lake: Parquet files that workers write, and the columns of live ones.

A file is written whole under a name that no other attempt has, and durable when its `NewFile` is
returned. Columns of live files are found by field id where the format has ids, else by their
physical name, and are read with the table's present types, also from files that are older than a
change of type. Not here: which rows are written (`writer.py`) or looked for (`lookup.py`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.codec.columns import cast_exactly
from penstock.codec.types import ValueUnfit, lake_arrow_type, parse_value
from penstock.engines.lake.format import (
    ColumnStatistics,
    CommitRefused,
    LakeColumn,
    LiveFile,
    NewFile,
    Partition,
)
from penstock.engines.lake.partitions import constant_array
from penstock.engines.lake.storage import file_system, is_local, path_in, remove_file
from penstock.model import PenstockError, Retry

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 * 2**20
"""Size of rows in memory at which a row group ends, if it has fewer rows than the other limit."""

SAMPLED_ROWS = 1024
"""Number of rows of a new file whose values are compared with each other."""

CACHE_BYTES_MAX = 64 * 2**20
"""Size of the footers and key columns that a worker keeps."""

CACHED_BYTES_MAX = 8 * 2**20
"""Size of a column of a row group above which it is not kept."""

_FIELD_ID = b"PARQUET:field_id"


class DataFileUnfit(PenstockError):
    """A live data file cannot be read as the table's columns."""

    code = "LK08"
    retry: ClassVar[Retry] = "operator"


def file_schema(columns: Sequence[LakeColumn]) -> pa.Schema:
    """Return the schema of a new data file: physical names, and field ids if there are any."""
    return pa.schema(
        [
            pa.field(
                column.file_name,
                lake_arrow_type(column.type),
                nullable=column.nullable,
                metadata={_FIELD_ID: b"%d" % column.field_id} if column.field_id else None,
            )
            for column in columns
        ]
    )


@contextmanager
def open_output(location: str, storage: Mapping[str, str]) -> Iterator[BinaryIO]:
    """Open a new file, which is durable after the block; an error in the block removes it.

    Raises OSError; FileExistsError on local disk if the name is taken.
    """
    path = path_in(location)
    try:
        if is_local(location):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with Path(path).open("xb") as file:
                yield file
                file.flush()
                os.fdatasync(file.fileno())
        else:
            with file_system(location, storage).open_output_stream(path) as stream:
                yield stream
    except FileExistsError:
        raise
    except BaseException:
        with contextlib.suppress(OSError):
            remove_file(location, storage)
        raise


def write_file(location: str, data: bytes, storage: Mapping[str, str]) -> int:
    """Write a file whole; return its size. Raises OSError."""
    with open_output(location, storage) as file:
        file.write(data)
    return len(data)


# -- writing ---------------------------------------------------------------------------------------


class DataWriter:
    """Writer of one data file, to be used as a context manager; an error removes the file.

    Attributes:
        row_count: Rows so far.
        new_file: The file, once the block has ended; None if it has no rows, and does not exist.
        waiting_bytes: Size in memory of the rows that wait for their row group.
    """

    def __init__(
        self,
        location: str,
        columns: Sequence[LakeColumn],
        storage: Mapping[str, str],
        partition: Partition = (),
    ) -> None:
        """Keep the place; the file is created with the first rows. partition: of all rows."""
        self._partition = partition
        self.row_count = 0
        self.new_file: NewFile | None = None
        self._location = location
        self._columns = tuple(columns)
        self._schema = file_schema(columns)
        self._storage = storage
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self.waiting_bytes = 0
        self._nan_counts = [0] * len(self._columns)
        self._footers: list[pq.FileMetaData] = []
        self._opened = contextlib.ExitStack()
        self._sink: BinaryIO | None = None
        self._writer: pq.ParquetWriter | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes written so far, without the rows that wait for their row group."""
        return 0 if self._sink is None or self._sink.closed else self._sink.tell()

    @property
    def new_files(self) -> tuple[NewFile, ...]:
        """The file, once the block has ended; nothing if it has no rows."""
        return () if self.new_file is None else (self.new_file,)

    def write(self, columns: Sequence[pa.Array]) -> None:
        """Write rows, given as arrays of the lake's types. Raises OSError, pa.ArrowInvalid."""
        batch = pa.RecordBatch.from_arrays(list(columns), schema=self._schema)
        if not batch.num_rows:
            return
        for place, values in enumerate(columns):
            if not self._schema.field(place).nullable and values.null_count:
                raise pa.ArrowInvalid(f"column {self._columns[place].name} has a NULL")
            if pa.types.is_floating(values.type):
                self._nan_counts[place] += pc.sum(pc.is_nan(values)).as_py() or 0
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        self.row_count += batch.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS or self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the waiting rows as row groups."""
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, self._schema)
        if self._writer is None:
            self._sink = self._opened.enter_context(open_output(self._location, self._storage))
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=_repeated_columns(table),
                store_decimal_as_integer=True,
                store_schema=False,
                metadata_collector=self._footers,
            )
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._waiting.clear()
        self._waiting_rows = self.waiting_bytes = 0

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Complete the file, or remove it after an error."""
        if kind is not None:
            if self._writer is not None:
                with contextlib.suppress(OSError, pa.ArrowException):
                    self._writer.close()
            self._opened.__exit__(kind, error, trace)
            return
        with self._opened:
            self.flush()
            if self._writer is None or self._sink is None:
                return
            self._writer.close()
            size_bytes = self._sink.tell()
        self.new_file = NewFile(
            location=self._location,
            size_bytes=size_bytes,
            row_count=self.row_count,
            statistics=_statistics(self._footers[0], self._columns, self._nan_counts),
            split_offsets=_split_offsets(self._footers[0]),
            partition=self._partition,
        )


def _repeated_columns(table: pa.Table) -> list[str]:
    """Return the names of the columns whose values repeat.

    A dictionary makes those smaller. It makes the others larger, and costs as much time as all the
    rest of the writing.
    """
    sample = table.slice(0, SAMPLED_ROWS)
    return [
        name
        for name, values in zip(sample.column_names, sample.columns, strict=True)
        if pc.count_distinct(values).as_py() * 2 <= sample.num_rows
    ]


def _statistics(
    footer: pq.FileMetaData, columns: Sequence[LakeColumn], nan_counts: Sequence[int]
) -> dict[str, ColumnStatistics]:
    """Return the statistics of each column, from the file's footer."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    found = {}
    for place, column in enumerate(columns):
        chunks = [group.column(place) for group in groups]
        low, high = _bounds(chunks)
        found[column.name] = ColumnStatistics(
            low=low,
            high=high,
            null_count=sum(chunk.statistics.null_count for chunk in chunks if chunk.statistics),
            nan_count=nan_counts[place],
            value_count=sum(chunk.num_values for chunk in chunks),
            size_bytes=sum(chunk.total_compressed_size for chunk in chunks),
        )
    return found


def _bounds(chunks: Sequence[Any]) -> tuple[Any, Any]:
    """Return the lowest and highest value, or None twice if one is not known or there is none."""
    lows, highs = [], []
    for chunk in chunks:
        one = chunk.statistics
        if one is None:
            return None, None
        if one.has_min_max:
            lows.append(one.min)
            highs.append(one.max)
        elif one.null_count < chunk.num_values:
            return None, None
    return (min(lows), max(highs)) if lows else (None, None)


def _split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    """Return the offset at which each row group begins."""
    found = []
    for number in range(footer.num_row_groups):
        first = footer.row_group(number).column(0)
        has_dictionary = first.has_dictionary_page and first.dictionary_page_offset is not None
        found.append(first.dictionary_page_offset if has_dictionary else first.data_page_offset)
    return tuple(found)


# -- reading ---------------------------------------------------------------------------------------


class _Cache:
    """Footers and key columns of live files, which never change, in one worker.

    Those that were not used for the longest time are dropped first.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def get(self, name: tuple[Any, ...]) -> Any:
        """Return what is kept under a name, or None."""
        with self._lock:
            if name not in self._kept:
                return None
            self._kept.move_to_end(name)
            return self._kept[name][0]

    def keep(self, name: tuple[Any, ...], value: Any, size_bytes: int) -> None:
        """Keep a value, unless it is too large."""
        if size_bytes > CACHED_BYTES_MAX:
            return
        with self._lock:
            if name in self._kept:
                return
            self._kept[name] = value, size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > CACHE_BYTES_MAX:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._size_bytes -= dropped

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self._size_bytes = 0


_cache = _Cache()


class DataFile:
    """Live data file; to be closed. It is opened with the first columns that are not cached.

    Attributes:
        scanned_bytes: Compressed bytes of the columns that were read.
    """

    def __init__(self, file: LiveFile, storage: Mapping[str, str]) -> None:
        """Read the footer.

        Raises CommitRefused if the file is gone, DataFileUnfit if it has other rows than the table
        says.
        """
        self.scanned_bytes = 0
        self._file = file
        self._storage = storage
        self._source: pa.NativeFile | None = None
        self._opened: pq.ParquetFile | None = None
        self._name = (file.location, file.size_bytes, file.row_count)
        self._footer = _cache.get(self._name)
        if self._footer is None:
            self._footer = self._parquet.metadata
            if self._footer.num_rows != file.row_count:
                self.close()
                raise self._unfit(f"it has {self._footer.num_rows} rows, expected {file.row_count}")
            _cache.keep(self._name, self._footer, self._footer.serialized_size)
        schema = self._footer.schema
        self._leaves = {schema.column(place).path: place for place in range(len(schema.names))}
        self._by_id = {
            int(field.metadata[_FIELD_ID]): field.name
            for field in schema.to_arrow_schema()
            if field.metadata and _FIELD_ID in field.metadata
        }

    @property
    def _parquet(self) -> pq.ParquetFile:
        """The opened file. Raises CommitRefused, DataFileUnfit."""
        if self._opened is not None:
            return self._opened
        location = self._file.location
        try:
            files = file_system(location, self._storage)
            self._source = files.open_input_file(path_in(location))
            self._opened = pq.ParquetFile(
                self._source, metadata=self._footer, coerce_int96_timestamp_unit="us"
            )
        except FileNotFoundError as error:
            raise CommitRefused(
                f"{location} is gone: another client has replaced the table's files",
                hint="penstock looks at the table again.",
            ) from error
        except pa.ArrowInvalid as error:
            self.close()
            raise self._unfit(str(error)) from error
        return self._opened

    def close(self) -> None:
        """Close the file."""
        if self._source is not None:
            self._source.close()

    @property
    def group_count(self) -> int:
        """Number of row groups."""
        return int(self._footer.num_row_groups)

    def rows_in(self, group: int) -> int:
        """Return the number of rows of a row group."""
        return int(self._footer.row_group(group).num_rows)

    def bounds(self, group: int, column: LakeColumn) -> tuple[Any, Any] | None:
        """Return the low and high value of a column in a row group; None if they are not known."""
        place = self._place(column)
        if place is None:
            return None
        try:
            found = _bounds([self._footer.row_group(group).column(place)])
        except (ValueError, pa.ArrowException):
            return None  # text that another writer has cut inside of a character
        return None if found[0] is None else found

    def read_key(self, group: int, column: LakeColumn) -> pa.Array:
        """Return the values of a column by which rows are found; see `read`.

        They are kept for later batches, because files do not change.
        """
        name = (*self._name, group, column)
        found = _cache.get(name)
        if found is None:
            found = self.read(group, column)
            _cache.keep(name, found, found.nbytes)
        return found

    def read(self, group: int, column: LakeColumn) -> pa.Array:
        """Return the values of a column in a row group, with the column's present type.

        A column that was added after the file was written has its initial value in all rows.
        Raises CommitRefused, DataFileUnfit.
        """
        kind = lake_arrow_type(column.type)
        place = self._place(column)
        if place is None:
            constants = self._file.constants
            if column.file_name in constants:
                return constant_array(constants[column.file_name], column.type, self.rows_in(group))
            return _initial(column, kind, self.rows_in(group))
        parquet = self._parquet
        try:
            table = parquet.reader.read_row_group(group, column_indices=[place], use_threads=False)
            self.scanned_bytes += self._footer.row_group(group).column(place).total_compressed_size
            return _one_array(table.column(0), kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._unfit(f"column {column.name}: {error}") from error

    def _place(self, column: LakeColumn) -> int | None:
        """Return the place of a column among the file's leaves; None if the file lacks it."""
        if column.field_id and self._by_id:
            name = self._by_id.get(column.field_id)
            return None if name is None else self._leaves.get(name)
        return self._leaves.get(column.file_name)

    def _unfit(self, reason: str) -> DataFileUnfit:
        return DataFileUnfit(
            f"data file {self._file.location} cannot be read: {reason}",
            hint="Restore the file, or copy the table again: penstock table resync FILE TABLE.",
        )


def _one_array(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    values = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, kind)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(kind):
        # INT96, which Spark writes, has no time zone.
        return values.cast(pa.timestamp("us", values.type.tz)).view(pa.int64()).view(kind)
    return cast_exactly(values, kind)


def _initial(column: LakeColumn, kind: pa.DataType, count: int) -> pa.Array:
    if column.initial is None:
        return pa.nulls(count, kind)
    try:
        value = parse_value(column.initial, column.type)
    except ValueUnfit as error:
        raise DataFileUnfit(
            f"the value of existing rows in column {column.name} is not of its type: {error}",
            hint="Copy the table again: penstock table resync FILE TABLE.",
        ) from error
    return pa.repeat(value, count)
