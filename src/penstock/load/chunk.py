"""Run one task of the bulk load: write a chunk's rows and its DL row in one target transaction.

Runs in Spark's Python workers. Whatever happens to a task, its rows are in the target exactly if
its DL row is, and only once: a second copy waits for the DL row's key and then sees the first. Not
here: the list of chunks and the consequences of their outcomes (`bulk.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import replace

from penstock.codec.errors import CellUnfit
from penstock.host.retry import Backoff, retrying
from penstock.model import PenstockError
from penstock.ports.bulk import (
    BulkReader,
    BulkWriter,
    ChunkOutcome,
    ChunkStatus,
    ChunkTask,
    SnapshotUnreachable,
    bulk_source,
    open_writer,
)

BACKOFF = Backoff(first_s=0.2, longest_s=10.0, attempts=6)


def copy_chunks(tasks: Iterator[ChunkTask], *, streams: int = 1) -> Iterable[ChunkOutcome]:
    """Copy the chunks of one Spark partition; an error becomes the outcome of its chunk.

    streams: number of chunks at a time. A chunk waits for its servers most of the time, so one per
    core would leave the cores idle. Each has its own connections and thread.
    """
    waiting = deque(tasks)
    count = min(streams, len(waiting))
    if count <= 1:
        yield from _stream(waiting)
        return
    with ThreadPoolExecutor(count, thread_name_prefix="chunks") as executor:
        ends = [executor.submit(lambda: list(_stream(waiting))) for _ in range(count)]
        for end in as_completed(ends):
            yield from end.result()


def _stream(waiting: deque[ChunkTask]) -> Iterator[ChunkOutcome]:
    """Copy the waiting chunks, one after the other."""
    with ChunkCopier() as copier:
        while waiting:
            try:
                task = waiting.popleft()
            except IndexError:  # another thread has taken the last one in between
                return
            yield copier.copy(task)


# Data exceptions and violated constraints: errors of the table's rows, not of the server.
_OF_ROWS = ("22", "23")


def _name_table(error: PenstockError, task: ChunkTask) -> None:
    """Add the table to a server's error about its rows, so that it can be left behind alone."""
    if str(error.fields.get("sqlstate") or "")[:2] in _OF_ROWS:
        error.fields.setdefault("table", str(task.table))


class ChunkCopier:
    """Connections that the chunks of one stream share."""

    def __init__(self) -> None:
        self._source = ExitStack()
        self._target = ExitStack()
        self._snapshot = ""
        self._reader: BulkReader | None = None
        self._writer: BulkWriter | None = None
        self._unreachable: dict[str, SnapshotUnreachable] = {}

    def __enter__(self) -> ChunkCopier:
        return self

    def __exit__(self, *_ignored: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both connections; the servers roll back uncommitted rows."""
        self._source.close()
        self._target.close()
        self._reader = self._writer = None
        self._snapshot = ""

    def copy(self, task: ChunkTask) -> ChunkOutcome:
        """Copy one chunk; retry with new connections if that may help."""
        outcome = ChunkOutcome(
            table=task.table, number=task.chunk.number, status=ChunkStatus.FAILED
        )
        began = time.monotonic()
        try:
            status, rows = retrying(lambda: self._attempt(task), backoff=BACKOFF)
        except PenstockError as error:
            return replace(outcome, error=error, seconds=time.monotonic() - began)
        return replace(outcome, status=status, rows=rows, seconds=time.monotonic() - began)

    def _attempt(self, task: ChunkTask) -> tuple[ChunkStatus, int]:
        try:
            writer = self._open_target(task)
            if writer.read_action() != "RUN":
                return ChunkStatus.HELD, 0
            reader = self._open_source(task)
            if reader is None:
                return ChunkStatus.SNAPSHOT_GONE, 0
            if reader.was_rewritten(task):
                return ChunkStatus.REWRITTEN, 0
            return writer.write(task, reader)
        except BaseException as error:
            reader = self._reader
            self.close()  # a broken copy leaves no connection that could be used again
            if reader and isinstance(error, PenstockError) and reader.tells_rewritten(error):
                return ChunkStatus.REWRITTEN, 0
            if isinstance(error, CellUnfit):
                raise with_names(error, task) from error
            if isinstance(error, PenstockError):
                _name_table(error, task)
            raise

    def _open_source(self, task: ChunkTask) -> BulkReader | None:
        """Return a session that sees the task's snapshot; None if that is gone."""
        if self._reader is not None and self._snapshot == task.snapshot_id:
            return self._reader
        self._source.close()
        self._reader = None
        if task.snapshot_id in self._unreachable:  # the next chunk need not find that out again
            raise self._unreachable[task.snapshot_id]
        source = bulk_source(task.source_url)
        try:
            reader = source.open_reader(task.source_url, task.snapshot_id, task.snapshot_text)
        except SnapshotUnreachable as error:
            self._unreachable[task.snapshot_id] = error
            raise
        if reader is not None:
            self._source.enter_context(closing(reader))
            self._reader, self._snapshot = reader, task.snapshot_id
        return reader

    def _open_target(self, task: ChunkTask) -> BulkWriter:
        if self._writer is None:
            self._writer = open_writer(task)
            self._target.enter_context(closing(self._writer))
        return self._writer


def with_names(error: CellUnfit, task: ChunkTask) -> CellUnfit:
    """Return the error with the names of table and column in place of a number."""
    column, row = task.columns[error.fields["column"]], error.fields["row"]
    return CellUnfit(
        f"column {column} of {task.table} (chunk {task.chunk.number}, row {row}): "
        f"{error.fields['reason']}",
        hint=error.hint,
        table=str(task.table),
        **error.fields,
    )
