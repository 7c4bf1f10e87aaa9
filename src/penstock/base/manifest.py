"""The base: per table a set of columnar files, equal to the fold of the log up to a position.

One manifest, replaced as a whole, lists the files and their position. Files are written once,
under names that were never used, and are durable before a manifest names them. A crash leaves the
old base or the new one, and files that no manifest names, which the next writer removes. A file is
Arrow's IPC format with a checksum over all of it in the manifest; its columns are those of one
relation, in order.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa

from penstock.codec.columns import after_type
from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.host.state_file import StateFile
from penstock.model import PenstockError, Relation, TableName

NAME = "base"
"""Name of its directory in the pipeline's, and of its links among those of consumers."""
FILE_NAME = "BASE.json"
HELD = "held"
SUFFIX = ".arrow"
FILE_BYTES = 48 << 20  # of rows in memory; a reader holds this much at once
declare("base.manifest.before", "base.manifest.after", "base.file.written", "base.others.removed")


class BaseCorrupt(PenstockError):
    """A file of the base was damaged: its content is not what was written. Fields: path."""

    code = "BA01"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePlace:
    """Directories of a base.

    Attributes:
        links: the base's names of segments.
        extension: of segments.
    """

    directory: Path
    links: Path
    extension: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFile:
    """One file.

    Attributes:
        size_bytes: of the whole file.
        crc32c: checksum of the whole file.
        relation: index into the relations of its table.
    """

    name: str
    row_count: int
    size_bytes: int
    crc32c: int
    relation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTable:
    """One table.

    Attributes:
        relations: shapes of its files; the last one is that of the table.
        ordinal: changes of transactions at or after this position of the source count; earlier
            ones are in the files. Text, as a number may be longer than readers of JSON accept.
        settled: up to here changes may be in the files, too. Text, like ordinal.
        capture_id: number of the request to capture it that its rows are read after; 0: none.
    """

    schema: str
    name: str
    relations: tuple[Relation, ...]
    files: tuple[BaseFile, ...] = ()
    ordinal: str = "0"
    settled: str = "0"
    capture_id: int = 0

    @property
    def table(self) -> TableName:
        """Name of the table."""
        return TableName(self.schema, self.name)

    @property
    def row_count(self) -> int:
        """Rows in its files."""
        return sum(file.row_count for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Total size of its files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of the base.

    Attributes:
        number: one higher than the previous one.
        segment: later changes begin at the start of this segment.
        gsn: later changes begin after this row.
        unread: tables without rows in the base of a merged log, because their shape has changed
            otherwise than the base can follow. Each is complete again once the log has emptied it.
    """

    log_id: str
    number: int
    segment: int
    gsn: int
    tables: tuple[BaseTable, ...] = ()
    unread: tuple[BaseTable, ...] = ()

    def of(self, table: TableName) -> BaseTable | None:
        """Return a table; None if it is not in the base."""
        return next((one for one in self.tables if one.table == table), None)

    @property
    def is_empty(self) -> bool:
        """Return whether it knows no table."""
        return not self.tables and not self.unread

    @property
    def size_bytes(self) -> int:
        """Total size of all files."""
        return sum(table.size_bytes for table in self.tables)

    @property
    def complete_at(self) -> int:
        """Position of the source from which the base with the log is one state."""
        return max((max(int(t.ordinal), int(t.settled)) for t in self.tables), default=0)


def _manifest_file(directory: Path, files: Files) -> StateFile[Manifest]:
    return StateFile(directory / FILE_NAME, Manifest, files=files)


def load_manifest(directory: Path, files: Files = REAL_FILES) -> Manifest | None:
    """Return the base in a directory; None if there is none yet. Raises CheckpointCorrupt."""
    return _manifest_file(directory, files).load()


def save_manifest(directory: Path, manifest: Manifest, files: Files = REAL_FILES) -> None:
    """Make a new base the valid one; its files are durable. Raises DiskFull, FileFailed."""
    point("base.manifest.before")
    _manifest_file(directory, files).save(manifest)
    point("base.manifest.after")


def remove_others(directory: Path, manifest: Manifest | None, files: Files = REAL_FILES) -> int:
    """Remove files that a base does not name; return their number.

    Only the writer may do so. Readers have links of their own.
    """
    kept = {file.name for table in manifest.tables for file in table.files} if manifest else set()
    count = 0
    for name in files.listdir(directory):
        if name not in kept and not name.startswith(FILE_NAME) and name != HELD:
            with suppress(FileMissing):
                files.unlink(directory / name)
            count += 1
            point("base.others.removed")
    return count


# -- files -------------------------------------------------------------------------------------


def columns_schema(relation: Relation) -> pa.Schema:
    """Return the schema of a file with rows of this relation."""
    return pa.schema(list(after_type(relation)))


def rows_batch(relation: Relation, columns: Sequence[Any]) -> pa.RecordBatch:
    """Return columns, in the given order, as one batch."""
    return pa.RecordBatch.from_arrays(list(columns), schema=columns_schema(relation))


def empty(relation: Relation) -> pa.RecordBatch:
    """Return a batch of this relation without rows."""
    return rows_batch(relation, [pa.nulls(0, field.type) for field in columns_schema(relation)])


def write_files(
    directory: Path,
    relation: Relation,
    batches: Iterable[pa.RecordBatch],
    *,
    place: int = 0,
    files: Files = REAL_FILES,
) -> Iterator[BaseFile]:
    """Write rows to files, durably, in pieces of FILE_BYTES; yield each file.

    Args:
        directory: of the base.
        relation: the shape of the rows.
        batches: the rows.
        place: index of the relation in its table's.
        files: the disk.
    """
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= FILE_BYTES:
            yield _write(directory, relation, waiting, place, files)
            waiting, size = [], 0
    if waiting:
        yield _write(directory, relation, waiting, place, files)


def _write(
    directory: Path,
    relation: Relation,
    batches: Sequence[pa.RecordBatch],
    place: int,
    files: Files,
) -> BaseFile:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, columns_schema(relation), options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    name = secrets.token_hex(12) + SUFFIX
    files.replace(directory / name, data)
    point("base.file.written")
    return BaseFile(
        name=name,
        row_count=sum(batch.num_rows for batch in batches),
        size_bytes=len(data),
        crc32c=google_crc32c.value(data),
        relation=place,
    )


def read_file(
    directory: Path, file: BaseFile, relation: Relation, files: Files = REAL_FILES
) -> pa.RecordBatch:
    """Return all rows of a file, verified. Raises BaseCorrupt, FileMissing."""
    path = directory / file.name
    data = files.read_whole(path)
    if len(data) != file.size_bytes or google_crc32c.value(data) != file.crc32c:
        raise _corrupt(path, "its checksum is not the one in the manifest")
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    if not table.schema.equals(columns_schema(relation)) or table.num_rows != file.row_count:
        raise _corrupt(path, "its columns or rows are not those in the manifest")
    found = table.combine_chunks().to_batches()
    return found[0] if found else empty(relation)


def _corrupt(path: Path, why: str) -> BaseCorrupt:
    return BaseCorrupt(
        f"file {path} of the base is damaged: {why}",
        hint="Remove the directory base of the pipeline and start it again: the base is read "
        "again from the source.",
        path=str(path),
    )
