"""Writer of rows into data files of a table with or without partitions.

A file has rows of one partition. Files are not in folders of their partitions, because both formats
know a file's partition by the table's metadata. Not here: which partition a row is in
(`partitions.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from penstock.engines.lake.format import LakeColumn, NewFile, Partition, PartitionField
from penstock.engines.lake.parquet import DataWriter
from penstock.engines.lake.partitions import split_rows
from penstock.model import TableName

OPEN_MAX = 64
"""Number of files that one writer has open, of those that have more than waiting rows."""

WAITING_BYTES_MAX = 128 * 2**20
"""Size of rows in memory, of all partitions, at which those of the largest are written."""


class RowsWriter(Protocol):
    """Writer of rows, to be used as a context manager; an error removes its files."""

    @property
    def new_files(self) -> tuple[NewFile, ...]:
        """The files, once the block has ended."""
        ...

    def write(self, columns: Sequence[pa.Array]) -> None:
        """Write rows, given as arrays of the lake's types."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_rows_writer(
    location: str,
    columns: Sequence[LakeColumn],
    storage: Mapping[str, str],
    partition: Sequence[PartitionField] = (),
    *,
    table: TableName,
) -> RowsWriter:
    """Return a writer.

    Args:
        location: The file, without `.parquet`; in a table with partitions numbers follow.
        columns: Of the rows.
        storage: See `storage.file_system`.
        partition: The table's fields.
        table: The source's table, for messages.
    """
    if partition:
        return PartitionedWriter(location, columns, storage, partition, table=table)
    return DataWriter(f"{location}.parquet", columns, storage)


class PartitionedWriter:
    """Writer of one or more files for each partition."""

    def __init__(
        self,
        location: str,
        columns: Sequence[LakeColumn],
        storage: Mapping[str, str],
        partition: Sequence[PartitionField],
        *,
        table: TableName,
        file_bytes: int | None = None,
    ) -> None:
        """Keep the place; see `open_rows_writer`. file_bytes: size at which a file is ended."""
        self.new_files: tuple[NewFile, ...] = ()
        self._location = location
        self._columns = tuple(columns)
        self._storage = storage
        self._fields = tuple(partition)
        self._table = table
        self._file_bytes = file_bytes
        self._open: dict[Partition, DataWriter] = {}  # the one that was written to last is last
        self._count = 0

    def write(self, columns: Sequence[pa.Array]) -> None:
        """Write rows. Raises OSError, pa.ArrowInvalid, ValueRefused."""
        for partition, rows in split_rows(self._fields, self._columns, columns, table=self._table):
            file = self._open.pop(partition, None) or self._begin(partition)
            self._open[partition] = file
            file.write(rows)
            if self._file_bytes is not None and file.size_bytes >= self._file_bytes:
                self._end(partition)
        while sum(file.waiting_bytes for file in self._open.values()) > WAITING_BYTES_MAX:
            max(self._open.values(), key=lambda file: file.waiting_bytes).flush()
        begun = [one for one, file in self._open.items() if file.size_bytes]
        for partition in begun[: max(len(begun) - OPEN_MAX, 0)]:
            self._end(partition)

    def _begin(self, partition: Partition) -> DataWriter:
        location = f"{self._location}-{self._count}.parquet"
        self._count += 1
        return DataWriter(location, self._columns, self._storage, partition)

    def _end(self, partition: Partition) -> None:
        file = self._open.pop(partition)
        file.__exit__(None, None, None)
        self.new_files += file.new_files

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Complete the files, or remove those that are open after an error."""
        if kind is None:
            try:
                for partition in list(self._open):
                    self._end(partition)
                return
            except BaseException as failed:
                self._abandon(failed)
                raise
        assert error is not None, "it has a kind"
        self._abandon(error)

    def _abandon(self, error: BaseException) -> None:
        for file in self._open.values():
            with contextlib.suppress(OSError, pa.ArrowException):
                file.__exit__(type(error), error, error.__traceback__)
