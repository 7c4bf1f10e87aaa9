"""Task code of the Spark job of a batch: read frames, fold, stage. Runs in the workers.

One task fills one merge table (or one bucket of it) over a connection that the worker keeps. A task
is a pipeline: it reads its frames (here), selects the rows of its bucket (`split.py`), or gets them
from frames that the buckets of a table divide once (`shared_rows.py`), folds them
(`base/fold.py`), and passes the remaining rows to the writer of the target's engine. It
never touches a base table: rows of a worker that died are deleted before the next attempt. Not
here: the list of tasks (`plan.py`), starting the job (`sql_target.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pyarrow as pa
import structlog
from pyspark import TaskContext

from penstock.base.fold import FoldedRows, fold
from penstock.codec.ckt import RowsFlag
from penstock.host import faults
from penstock.host.files import FileFailed, ReadFile
from penstock.load import chunk
from penstock.load.plan import FrameRef, Task
from penstock.load.shared_rows import SharedRows
from penstock.load.shipping import Freight, Shipped
from penstock.load.split import Bucket
from penstock.log.frames import FrameReader, read_batch, read_transactions
from penstock.log.segment import open_either
from penstock.log.transactions import Transactions
from penstock.model import PenstockError, Retry
from penstock.ports.bulk import ChunkOutcome, ChunkTask
from penstock.ports.target import Counts, HistoryWriter, StagedRows, StagingWriter

faults.declare("load.copy.before", "load.copy.after")

logger = structlog.get_logger(__name__)

# Frames of a task are kept decoded up to this size; above it they are read twice.
CACHE_BYTES_MAX = 64 * 2**20
# Rows are put in order of their keys when all frames of a task take no more than this, decoded.
ORDER_BYTES_MAX = 256 * 2**20
NICENESS = 5


class TaskRepeated(PenstockError):
    """Spark retries a task whose first attempt may have staged its rows."""

    code = "LD08"
    retry: ClassVar[Retry] = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task with all that its worker needs.

    Attributes:
        writer: receives the rows.
        extension: file extension of segments.
        shipped: frames of all tasks of the partition, if workers cannot read the log.
        shared: directory in which the buckets of the task's table share their rows; None if each
            bucket reads all frames.
    """

    task: Task
    writer: StagingWriter | HistoryWriter
    extension: str = "ckt"
    shipped: Freight | Shipped | None = None
    shared: Path | None = None

    @property
    def read_bytes(self) -> int:
        """Return the size of the frames that the task reads, on average of its table's buckets."""
        size = self.task.size_bytes
        return size if self.shared is None else size // self.task.buckets

    def open(self, path: Path) -> ReadFile:
        """Open a segment as the worker can read it. Raises FileMissing."""
        if self.shipped is None:
            return open_either(path)
        assert isinstance(self.shipped, Shipped), "it was pickled"
        return self.shipped.open(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """Outcome of a task. error: if set, the other fields are empty."""

    phase: int
    staging: str
    bucket: int
    counts: Counts = field(default_factory=Counts)
    absent_columns: frozenset[int] = frozenset()
    staged: StagedRows = field(default_factory=StagedRows)
    seconds: float = 0.0
    error: PenstockError | None = None


def run_tasks(works: Iterator[Work]) -> Iterable[TaskOutcome]:
    """Run the tasks of one partition; Spark calls this function.

    A typed error becomes the outcome of its task, because Spark would pass on only its text. The
    other tasks of the partition are then skipped.
    """
    files: dict[Path, FrameReader] = {}
    give_way()
    try:
        for work in works:
            began = time.monotonic()
            try:
                _check_first_try()
                yield _run(work, files, began)
            except PenstockError as error:
                task = work.task
                yield TaskOutcome(
                    phase=task.phase, staging=task.staging, bucket=task.bucket, error=error
                )
                return
    finally:
        for reader in files.values():
            reader.file.close()


def _check_first_try() -> None:
    """Raise TaskRepeated unless this is a task's first attempt, the only one that may stage rows.

    A lost executor may have committed its rows before it could report that, or may still be
    writing. Rows of a second attempt would be duplicates. When the batch is staged again, it begins
    with empty merge tables, which refuse the rows of an older attempt.
    """
    if _is_repeated():
        raise TaskRepeated(
            "an executor of the cluster was lost while it staged rows",
            hint="penstock stages the batch again; if it recurs, look at the executors' logs.",
        )


def _is_repeated() -> bool:
    """Return whether Spark has abandoned an earlier attempt of this task."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def copy_chunks(tasks: Iterator[ChunkTask], *, streams: int = 1) -> Iterable[ChunkOutcome]:
    """Copy the chunks of one partition like `chunk.copy_chunks`, and mark them as repeated in a
    retry.

    The writer ends what an earlier attempt may have left open at the target.
    """
    repeated = _is_repeated()
    return chunk.copy_chunks(
        (replace(task, repeated=task.repeated or repeated) for task in tasks), streams=streams
    )


def give_way() -> None:
    """Give the target's server priority if it shares the machine with this worker.

    The rows that are staged here wait for the batch that the server is applying at the same time.
    """
    if (missing := NICENESS - os.nice(0)) > 0:
        os.nice(missing)


def _run(work: Work, files: dict[Path, FrameReader], began: float) -> TaskOutcome:
    task = work.task
    for ref in (*task.frames, *task.transactions):
        if ref.path not in files:
            files[ref.path] = FrameReader(work.open(ref.path))
    if task.is_history:
        return _stage_history(work, files, began)
    writer = cast("StagingWriter", work.writer)
    every = _Frames(task, files, writer.prepare_rows)
    frames: Iterable[pa.RecordBatch] = every if task.buckets == 1 else _own_rows(work, every)
    are_few = task.size_bytes <= CACHE_BYTES_MAX * task.buckets
    if are_few:
        frames = list(frames)
        are_few = sum(frame.nbytes for frame in frames) <= ORDER_BYTES_MAX
    net = fold(task.relation, frames, overlaps=task.overlaps)
    rows = FoldedRows(
        net=net,
        layout=writer.layout,
        frames=frames,
        part=task.bucket,
        in_key_order=are_few,
        any_unsent=bool(net.counts.absent) if task.buckets == 1 else _lack_columns(task),
    )
    counts, absent_columns = net.counts, rows.absent_columns
    staged = StagedRows()
    if counts.deletes or counts.upserts:
        faults.point("load.copy.before")
        staged = writer.write(rows)
        faults.point("load.copy.after")
    return TaskOutcome(
        phase=task.phase,
        staging=task.staging,
        bucket=task.bucket,
        counts=counts,
        absent_columns=absent_columns,
        staged=staged,
        seconds=time.monotonic() - began,
    )


def _stage_history(work: Work, files: dict[Path, FrameReader], began: float) -> TaskOutcome:
    """Stage all changes of a table, each with the time of its commit."""
    task, writer = work.task, cast("HistoryWriter", work.writer)
    frames = _Frames(task, files, _Commits(task, files).add)
    faults.point("load.copy.before")
    staged = writer.write_changes(frames, any_unsent=_lack_columns(task))
    faults.point("load.copy.after")
    return TaskOutcome(
        phase=task.phase,
        staging=task.staging,
        bucket=task.bucket,
        staged=staged,
        seconds=time.monotonic() - began,
    )


def _lack_columns(task: Task) -> bool:
    """Return whether the source left out columns of some row, in whichever bucket."""
    return any(ref.entry.flags & RowsFlag.ABSENT for ref in task.frames)


class _Commits:
    """Commits of a task's rows, which the driver has chosen from all segments."""

    def __init__(self, task: Task, files: dict[Path, FrameReader]) -> None:
        paths = {(ref.entry.trx_first, ref.entry.trx_last): ref.path for ref in task.transactions}
        entries = sorted((ref.entry for ref in task.transactions), key=lambda one: one.trx_first)
        self._transactions = Transactions.of_frames(
            entries,
            lambda entry: read_transactions(files[paths[entry.trx_first, entry.trx_last]], entry),
        )

    def add(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the columns `position` and `commit_time`."""
        return self._transactions.add_commit(rows)


def _own_rows(work: Work, every: _Frames) -> Iterable[pa.RecordBatch]:
    """Return the rows of the task's bucket, one of several."""
    if work.shared is not None:
        try:
            return SharedRows(work.task, work.shared, every.read)
        except FileFailed as error:
            logger.warning("each bucket reads all frames", reason=error.message)
    return _bucket(work.task, every)


def _bucket(task: Task, frames: Iterable[pa.RecordBatch]) -> Bucket:
    """Return the task's own rows, which are chosen from all of its table's frames."""
    changes_keys = any(ref.entry.updates_with_before for ref in task.frames)
    if changes_keys and task.size_bytes <= CACHE_BYTES_MAX:
        frames = list(frames)  # they are looked at twice
    return Bucket(
        task.relation,
        frames,
        number=task.bucket,
        count=task.buckets,
        changes_keys=changes_keys,
    )


class _Frames:
    """The task's rows, frame by frame; iteration can be repeated."""

    def __init__(
        self,
        task: Task,
        files: dict[Path, FrameReader],
        prepare: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> None:
        self._task = task
        self._prepare = prepare
        self._files = files

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return map(self.read, self._task.frames)

    def read(self, ref: FrameRef) -> pa.RecordBatch:
        """Return the rows of one frame that count."""
        # All frames of a task have its relation's shape.
        batch = read_batch(self._files[ref.path], ref.entry, self._task.relation)
        chosen = cut(
            batch,
            gsn_after=self._task.gsn_after,
            gsn_upto=self._task.gsn_upto,
            trx_from=self._task.trx_from,
        )
        return self._prepare(chosen)


def cut(
    batch: pa.RecordBatch, *, gsn_after: int, gsn_upto: int, trx_from: int = 0
) -> pa.RecordBatch:
    """Return the rows with gsn_after < gsn <= gsn_upto and trx >= trx_from.

    Both columns ascend in a batch, so the rows are one slice, without a copy.
    """
    gsn = batch.column("gsn").to_numpy()
    low = int(np.searchsorted(gsn, gsn_after, side="right"))
    high = int(np.searchsorted(gsn, gsn_upto, side="right"))
    if trx_from:
        trx = batch.column("trx").to_numpy()
        low = max(low, int(np.searchsorted(trx, trx_from, side="left")))
    return batch.slice(low, max(0, high - low))
