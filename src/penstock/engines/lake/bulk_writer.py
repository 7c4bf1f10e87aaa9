"""Writer of a chunk into a lake: its rows as data files, then its record. Runs in Spark's workers.

Rows have the log's shape (`ports/chunk_rows.py`), and are Arrow from the beginning if the source's
engine decodes them. Files have new names and belong to no table until the driver commits them, so
an attempt that ends early leaves files that no record names. Not here: the commit (`bulk.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa

from penstock.codec.lines import LineDialect
from penstock.codec.types import LakeMapping, map_lake_column
from penstock.codec.types.lake_values import ValueUnfit, convert_values
from penstock.engines.lake.chunk_records import ChunkRecord, ChunkRecords
from penstock.engines.lake.format import LakeColumn, LakeUnreachable, NewFile, WriterSpec
from penstock.engines.lake.parquet import DataWriter
from penstock.engines.lake.partitioned_files import PartitionedWriter
from penstock.engines.lake.progress import read_action
from penstock.engines.lake.refusals import value_refused
from penstock.engines.lake.storage import Folder
from penstock.engines.lake.url import parse_url
from penstock.host import faults
from penstock.model import Column, Relation, TableName
from penstock.ports.bulk import BulkReader, BulkWriter, ChunkStatus, ChunkTask, ShapedRows
from penstock.ports.chunk_rows import read_rows

faults.declare("lake.bulk.file")


class LakeBulkWriter(BulkWriter):
    """Writer of one worker; see `BulkWriter`."""

    def __init__(self, url: str, *, replica_role: bool) -> None:
        """Keep the places that the URL names. replica_role: ignored, a lake has no triggers."""
        del replica_role
        lake = parse_url(url)
        self._file_bytes = lake.file_bytes
        self._folder = Folder(lake.state, lake.s3)
        self._records = ChunkRecords(self._folder)

    def read_action(self) -> str:
        return read_action(self._folder)

    def write(self, task: ChunkTask, reader: BulkReader) -> tuple[ChunkStatus, int]:
        """Write the chunk's files, and then its record; return the outcome and number of rows."""
        spec: WriterSpec = task.details
        number = task.chunk.number
        mark = self._records.read_mark(task.table)
        if mark is None or mark.plan != task.plan:
            return ChunkStatus.PLAN_GONE, 0
        known = self._records.read(task.table, task.plan, number)
        if known is not None:
            return ChunkStatus.DONE_BEFORE, known.row_count
        # PostgreSQL's own lines, or those that can have every character, also the zero.
        dialect = LineDialect.COPY if task.read_plan is None else LineDialect.LOAD_DATA
        files = ChunkFiles(spec, number, file_bytes=self._file_bytes)
        try:
            for rows in read_rows(reader, task, spec.relation, dialect):
                files.add(rows)
            written = files.finish()
        except BaseException as error:
            files.abandon(error)
            raise
        count = sum(file.row_count for file in written)
        faults.point("bulk.chunk.copied")
        self._records.write(
            task.table, task.plan, number, ChunkRecord(row_count=count, files=written)
        )
        faults.point("bulk.chunk.committed")
        return ChunkStatus.DONE, count

    def close(self) -> None:
        """Do nothing: files are closed when a chunk ends."""


def open_writer(url: str, *, replica_role: bool) -> LakeBulkWriter:
    """Return the writer of a worker: the part `bulk_writer`."""
    return LakeBulkWriter(url, replica_role=replica_role)


class ChunkFiles:
    """Data files of one chunk, each ended when it has its size."""

    def __init__(self, spec: WriterSpec, number: int, *, file_bytes: int) -> None:
        """Prepare. number: of the chunk; file_bytes: size above which a file is ended."""
        self._spec = spec
        self._file_bytes = file_bytes
        self._name = f"{number}-{secrets.token_hex(8)}"
        self._columns = [column for column in spec.columns if column is not None]
        self._mappings = map_columns(spec)
        self._written: list[NewFile] = []
        self._file: DataWriter | PartitionedWriter | None = None

    def add(self, rows: ShapedRows) -> None:
        """Add rows. Raises ValueRefused, LakeUnreachable."""
        arrays = convert_rows(rows.relation, rows.batch, self._spec, self._mappings)
        with self._storage_errors():
            if self._file is None:
                self._file = self._open_file()
            self._file.write(arrays)
            if isinstance(self._file, DataWriter) and self._file.size_bytes >= self._file_bytes:
                self._end_file()

    def finish(self) -> tuple[NewFile, ...]:
        """Return all files, whole. A chunk without rows has none."""
        with self._storage_errors():
            self._end_file()
        return tuple(self._written)

    def abandon(self, error: BaseException) -> None:
        """Remove the file that is being written; the load removes the others."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(BaseException):
                file.__exit__(type(error), error, error.__traceback__)

    def _open_file(self) -> DataWriter | PartitionedWriter:
        spec, place = self._spec, f"{self._spec.data_folder}/{self._name}"
        if not spec.partition:
            location = f"{place}-{len(self._written)}.parquet"
            return DataWriter(location, self._columns, dict(spec.storage))
        return PartitionedWriter(
            place,
            self._columns,
            dict(spec.storage),
            spec.partition,
            table=spec.table,
            file_bytes=self._file_bytes,
        )

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        file.__exit__(None, None, None)
        self._written += file.new_files
        faults.point("lake.bulk.file")

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LakeUnreachable(
                f"cannot write to {self._spec.data_folder}: {error}",
                hint="Check that the storage answers and has room, and that this account may write "
                "there.",
            ) from error


def map_columns(spec: WriterSpec) -> list[LakeMapping]:
    """Return how each column of the relation is held in the lake."""
    return [
        map_lake_column(
            column,
            spec.source_engine,
            choices=spec.choices,
            table=spec.table,
            identifies=place in spec.relation.key,
        )
        for place, column in enumerate(spec.relation.columns)
    ]


def convert_rows(
    relation: Relation,
    batch: pa.RecordBatch,
    spec: WriterSpec,
    mappings: Sequence[LakeMapping],
) -> list[pa.Array]:
    """Return the columns of the log's rows with the lake's types, without those that it lacks.

    relation: their shape; columns may be text in it that are not in `WriterSpec.relation`. Raises
    ValueRefused with the column's name.
    """
    return list(
        _convert_columns(relation.columns, batch.columns, spec.columns, mappings, spec.table)
    )


def _convert_columns(
    columns: Sequence[Column],
    arrays: Sequence[pa.Array],
    lake: Sequence[LakeColumn | None],
    mappings: Sequence[LakeMapping],
    table: TableName,
) -> Iterator[pa.Array]:
    for column, values, wanted, mapping in zip(columns, arrays, lake, mappings, strict=True):
        if wanted is None:
            continue
        try:
            yield convert_values(values, wanted.type, neutral=column.neutral, mapping=mapping)
        except ValueUnfit as error:
            raise value_refused(error, column, wanted, table) from error
