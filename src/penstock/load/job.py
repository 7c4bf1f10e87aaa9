"""The task code of the one Spark job per batch: read frames, fold, stage. Runs in the workers.

One task fills one merge table (or one bucket of it) over a connection that the worker keeps.
A task is a pipeline: its frames (here), of which a bucket takes its own rows (`split.py`), are
folded (`fold.py`), and the rows that are left (`net_rows.py`) are handed to the writer of the
target's engine.
Nothing here touches a base table: what a dying worker leaves behind is emptied before the next
try. Not here: what tasks there are (`plan.py`), starting the job (`stage.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from penstock.base.fold import fold
from penstock.base.net_rows import FoldedRows
from penstock.host import faults
from penstock.host.files import ReadFile
from penstock.load import chunk
from penstock.load.plan import FrameRef, Task
from penstock.load.shipping import Freight, Shipped
from penstock.load.split import Bucket
from penstock.log.frames import FrameReader, read_batch
from penstock.log.tail import open_either
from penstock.model import PenstockError, Retry
from penstock.ports.bulk import ChunkOutcome, ChunkTask
from penstock.ports.target import Counts, StagedRows, StagingWriter

faults.declare("load.copy.before", "load.copy.after")

# Frames of a task are kept decoded up to this size; above it they are read twice.
CACHE_BYTES_MAX = 64 * 2**20
# Rows are put in order of their keys when all frames of a task take no more than this, decoded.
ORDER_BYTES_MAX = 256 * 2**20
NICENESS = 5


class TaskRepeated(PenstockError):
    """Spark tries a task once more whose first try may have staged its rows."""

    code = "LD08"
    retry: ClassVar[Retry] = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task with what its worker must know. writer: takes its rows. extension: of segments.

    shipped: the frames of all tasks of its partition, where workers cannot read the log.
    """

    task: Task
    writer: StagingWriter
    extension: str = "ckt"
    shipped: Freight | Shipped | None = None

    def open(self, path: Path) -> ReadFile:
        """A segment, as the worker can read it. Raises FileMissing."""
        if self.shipped is None:
            return open_either(path)
        assert isinstance(self.shipped, Shipped), "it was pickled"
        return self.shipped.open(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """What a task did. error: instead of all."""

    phase: int
    staging: str
    bucket: int
    counts: Counts = field(default_factory=Counts)
    absent_columns: frozenset[int] = frozenset()
    staged: StagedRows = field(default_factory=StagedRows)
    seconds: float = 0.0
    error: PenstockError | None = None


def run_tasks(works: Iterator[Work]) -> Iterable[TaskOutcome]:
    """Do the tasks of one partition; the function that Spark calls.

    A typed error becomes the outcome of its task, since Spark would pass on only its text; the
    rest of the partition is then left undone.
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
    """Only a task's first try stages rows. Raises TaskRepeated.

    An executor that was lost may have committed its rows before it could say so, or may still be
    at it. Those of a second try would come on top; a batch that is staged again begins with empty
    merge tables, for which an older try's rows are refused.
    """
    if _is_repeated():
        raise TaskRepeated(
            "an executor of the cluster was lost while it staged rows",
            hint="The batch is staged again by itself; if it goes on, look at the executors' logs.",
        )


def _is_repeated() -> bool:
    """Whether Spark has given up an earlier attempt of this task."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def copy_chunks(tasks: Iterator[ChunkTask], *, streams: int = 1) -> Iterable[ChunkOutcome]:
    """Copy the chunks of one partition; as `chunk.copy_chunks`, and they know whether it is anew.

    What an earlier attempt may have left open at the target is the writer's to end.
    """
    repeated = _is_repeated()
    return chunk.copy_chunks(
        (replace(task, repeated=task.repeated or repeated) for task in tasks), streams=streams
    )


def give_way() -> None:
    """Let the target's server go first where it shares the machine with this worker.

    What is staged here waits for the batch that the server is applying at the same time.
    """
    if (missing := NICENESS - os.nice(0)) > 0:
        os.nice(missing)


def _run(work: Work, files: dict[Path, FrameReader], began: float) -> TaskOutcome:
    task = work.task
    for ref in task.frames:
        if ref.path not in files:
            files[ref.path] = FrameReader(work.open(ref.path))
    frames: Iterable[pa.RecordBatch] = _Frames(task, files, work.writer)
    bucket = _bucket(task, frames) if task.buckets > 1 else None
    frames = frames if bucket is None else bucket
    are_few = task.size_bytes <= CACHE_BYTES_MAX * task.buckets
    if are_few:
        frames = list(frames)
        are_few = sum(frame.nbytes for frame in frames) <= ORDER_BYTES_MAX
    net = fold(task.relation, frames, overlaps=task.overlaps)
    rows = FoldedRows(
        net=net,
        layout=work.writer.layout,
        frames=frames,
        part=task.bucket,
        in_key_order=are_few,
        any_unsent=bool(net.counts.absent) if bucket is None else bucket.any_unsent,
    )
    counts, absent_columns = net.counts, rows.absent_columns
    staged = StagedRows()
    if counts.deletes or counts.upserts:
        faults.point("load.copy.before")
        staged = work.writer.write(rows)
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


def _bucket(task: Task, frames: Iterable[pa.RecordBatch]) -> Bucket:
    """The task's own rows of its table's frames."""
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
    """The task's rows, frame by frame, read as often as asked."""

    def __init__(self, task: Task, files: dict[Path, FrameReader], writer: StagingWriter) -> None:
        self._task = task
        self._writer = writer
        self._files = files

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return map(self._read, self._task.frames)

    def _read(self, ref: FrameRef) -> pa.RecordBatch:
        # All frames of a task have its relation's shape.
        batch = read_batch(self._files[ref.path], ref.entry, self._task.relation)
        chosen = cut(
            batch,
            gsn_after=self._task.gsn_after,
            gsn_upto=self._task.gsn_upto,
            trx_from=self._task.trx_from,
        )
        return self._writer.prepare_rows(chosen)


def cut(
    batch: pa.RecordBatch, *, gsn_after: int, gsn_upto: int, trx_from: int = 0
) -> pa.RecordBatch:
    """The rows with gsn_after < gsn <= gsn_upto and trx >= trx_from.

    Both columns rise in a batch, so it is one slice, made without a copy.
    """
    gsn = batch.column("gsn").to_numpy()
    low = int(np.searchsorted(gsn, gsn_after, side="right"))
    high = int(np.searchsorted(gsn, gsn_upto, side="right"))
    if trx_from:
        trx = batch.column("trx").to_numpy()
        low = max(low, int(np.searchsorted(trx, trx_from, side="left")))
    return batch.slice(low, max(0, high - low))
