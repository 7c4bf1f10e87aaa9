"""Task code of the base's Spark jobs: write chunks of the source to files, and update files.

Runs in Spark's Python workers. A task only writes files with new names: no manifest lists the files
of a worker that died. Not here: the list of tasks (`base.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock.base.changes import Window, changes_of, first_trx
from penstock.base.manifest import (
    FILE_BYTES,
    BaseFile,
    BaseTable,
    read_file,
    write_files,
)
from penstock.base.state import Piece, last_shape, needs_old_rows, state
from penstock.codec.lines import LineDialect
from penstock.host.faults import declare, point
from penstock.host.retry import Backoff, retrying
from penstock.load.job import give_way
from penstock.log.segment import Segment, open_segment
from penstock.model import FlushPoint, PenstockError, Relation, TableName
from penstock.ports.bulk import ChunkTask, bulk_source
from penstock.ports.chunk_rows import read_rows

declare("base.read.chunk", "base.compact.task")
BACKOFF = Backoff(first_s=0.2, longest_s=5.0, attempts=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Files of one shape."""

    relation: Relation
    files: tuple[BaseFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """A chunk to read. relation: the table in the log. directory: directory of the base."""

    chunk: ChunkTask
    relation: Relation
    dialect: LineDialect
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a task.

    Attributes:
        is_gone: whether the point is no longer readable, or not for this table.
        kept: whether the files of its group are unchanged.
        error: set instead of all others.
    """

    table: TableName
    group: int = 0
    written: tuple[Written, ...] = ()
    kept: bool = False
    is_gone: bool = False
    error: PenstockError | None = None


def read_chunks(tasks: Iterator[ReadTask]) -> Iterable[Outcome]:
    """Read the chunks of one partition; an error becomes the outcome of its chunk."""
    give_way()
    for task in tasks:
        try:
            yield retrying(partial(_read, task), backoff=BACKOFF)
        except PenstockError as error:
            yield Outcome(table=task.chunk.table, error=error)


def _read(task: ReadTask) -> Outcome:
    chunk, table = task.chunk, task.chunk.table
    reader = bulk_source(chunk.source_url).open_reader(
        chunk.source_url, chunk.snapshot_id, chunk.snapshot_text
    )
    if reader is None:
        return Outcome(table=table, is_gone=True)
    try:
        if reader.was_rewritten(chunk):
            return Outcome(table=table, is_gone=True)
        written = _Shaped(task.directory)
        for relation, batch in read_rows(reader, chunk, task.relation, task.dialect):
            written.add(relation, batch)
        point("base.read.chunk")
        return Outcome(table=table, written=written.finish())
    except PenstockError as error:
        if reader.tells_rewritten(error):
            return Outcome(table=table, is_gone=True)
        raise
    finally:
        reader.close()


class _Shaped:
    """Writer of rows to files, with a new file if the shape changes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: list[Written] = []
        self._relation: Relation | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, relation: Relation, batch: pa.RecordBatch) -> None:
        if self._relation is not None and not relation.same_shape(self._relation):
            self._flush()
        self._relation = relation
        self._waiting.append(batch)
        self._size += batch.nbytes
        if self._size >= FILE_BYTES:
            self._flush()

    def finish(self) -> tuple[Written, ...]:
        self._flush()
        return tuple(self._written)

    def _flush(self) -> None:
        if self._relation is not None and self._waiting:
            files = tuple(write_files(self._directory, self._relation, self._waiting))
            self._written.append(Written(relation=self._relation, files=files))
        self._waiting, self._size = [], 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactTask:
    """Files of a table to update, or rows to add to them.

    Attributes:
        files: indexes in the table's files; empty for the new rows alone.
        segments: closed ones, whose changes are added.
        adds_rows: whether the changed rows are written as well.
    """

    table: BaseTable
    files: tuple[int, ...]
    adds_rows: bool
    directory: Path
    segments: tuple[Path, ...]
    extension: str
    end: FlushPoint
    gsn_after: int
    group: int = 0
    cost: int = field(default=0, compare=False)


def compact(tasks: Iterator[CompactTask]) -> Iterable[Outcome]:
    """Run the tasks of one partition; an error becomes the outcome of its task."""
    give_way()
    for task in tasks:
        try:
            point("base.compact.task")
            yield _compact(task)
        except PenstockError as error:
            yield Outcome(table=task.table.table, group=task.group, error=error)


def _compact(task: CompactTask) -> Outcome:
    table = task.table
    with ExitStack() as stack:
        segments: list[Segment] = [
            stack.enter_context(open_segment(path, extension=task.extension))
            for path in task.segments
        ]
        window = Window(
            end=task.end,
            gsn_after=task.gsn_after,
            trx_from=first_trx(segments, int(table.ordinal)),
            position=int(table.ordinal),
            settled_trx=first_trx(segments, int(table.settled)),
        )
        changes = changes_of(segments, table.table, window)
        shape = last_shape(changes, table.relations)
        alone = task.adds_rows and not task.files and bool(table.files)
        places = list(task.files)
        if alone and not changes.is_emptied and needs_old_rows(changes):
            places = list(range(len(table.files)))
        pieces = (_piece(task, place) for place in places)
        found = state(pieces, changes, shapes=table.relations, adds_rows=task.adds_rows)
        if task.adds_rows:
            batches = (piece.rows for piece in found if not (alone and piece.is_old))
            files = tuple(write_files(task.directory, shape, batches))
            return _make_outcome(task, shape, files)
        rows = [piece.rows for piece in found]
        before = sum(table.files[place].row_count for place in places)
        shapes = {table.relations[table.files[place].relation] for place in places}
        is_same = all(shape.same_shape(one) for one in shapes)
        unchanged = len(places) == 1 and is_same
        if unchanged and sum(batch.num_rows for batch in rows) == before:
            return Outcome(table=table.table, group=task.group, kept=True)
        return _make_outcome(task, shape, tuple(write_files(task.directory, shape, rows)))


def _make_outcome(task: CompactTask, shape: Relation, files: tuple[BaseFile, ...]) -> Outcome:
    written = (Written(relation=shape, files=files),)
    return Outcome(table=task.table.table, group=task.group, written=written)


def _piece(task: CompactTask, place: int) -> Piece:
    file = task.table.files[place]
    relation = task.table.relations[file.relation]
    return Piece(relation=relation, rows=read_file(task.directory, file, relation))
