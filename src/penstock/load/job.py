"""The task code of the one Spark job per batch: read frames, fold, stage. Runs in the workers.

One task fills one merge table (or one bucket of it) over a connection that the worker keeps.
Nothing here touches a base table: what a dying worker leaves behind is emptied before the next
try. Not here: what tasks there are (`plan.py`), starting the job (`loader.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.host import faults
from penstock.load.fold import Fold
from penstock.load.folded import Folded
from penstock.load.plan import FrameRef, Task
from penstock.load.prepare import prepared_batch
from penstock.log.segment import Segment, open_segment
from penstock.model import PenstockError
from penstock.ports.target import Counts, Outgoing, RowsFile, engine_of

faults.declare("load.copy.before", "load.copy.after")

# Frames of a task are kept decoded up to this size; above it they are read twice.
CACHE_BYTES_MAX = 64 * 2**20
# Rows are put in order of their keys when all frames of a task take no more than this, decoded.
ORDER_BYTES_MAX = 256 * 2**20
NICENESS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task with what its worker must know.

    stamp: its merge table's. extension: of segments. prepare: by column what is done to its values,
    see `preparations`.
    """

    task: Task
    url: str
    stamp: int = 0
    extension: str = "ckt"
    prepare: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a task did. counts: of the whole table, not of the bucket. error: instead of all.

    file: upserts that are not among the staged rows.
    """

    phase: int
    staging: str
    bucket: int
    counts: Counts = field(default_factory=Counts)
    absent_columns: frozenset[int] = frozenset()
    staged_rows: int = 0
    file: RowsFile | None = None
    seconds: float = 0.0
    error: PenstockError | None = None


def run_tasks(works: Iterator[Work]) -> Iterable[Outcome]:
    """Do the tasks of one partition; the function that Spark calls.

    A typed error becomes the outcome of its task, since Spark would pass on only its text; the
    rest of the partition is then left undone.
    """
    segments: dict[Path, Segment] = {}
    _give_way()
    try:
        for work in works:
            began = time.monotonic()
            try:
                yield _run(work, segments, began)
            except PenstockError as error:
                task = work.task
                yield Outcome(
                    phase=task.phase, staging=task.staging, bucket=task.bucket, error=error
                )
                return
    finally:
        for segment in segments.values():
            segment.close()


def _give_way() -> None:
    """Let the target's server go first where it shares the machine with this worker.

    What is staged here waits for the batch that the server is applying at the same time.
    """
    if (missing := NICENESS - os.nice(0)) > 0:
        os.nice(missing)


def _run(work: Work, segments: dict[Path, Segment], began: float) -> Outcome:
    task = work.task
    for ref in task.frames:
        if ref.path not in segments:
            segments[ref.path] = open_segment(ref.path, extension=work.extension)
    frames = _Frames(task, segments, work.prepare)
    layout = engine_of(work.url).layout(task.relation)
    fold = Fold(task.relation, layout, overlaps=task.overlaps)
    for frame in frames:
        fold.add(frame)
    folded = fold.finish()
    counts = folded.counts()
    file = None
    if task.rows_path is not None and not counts.absent:
        file = _write(task.rows_path, work, folded, frames)
    staged = 0
    left = counts.deletes if file is not None else counts.deletes + counts.upserts
    if left and not (file is not None and file.has_deletes):
        staged = _stage(work, fold, folded, frames, deletes_only=file is not None)
    return Outcome(
        phase=task.phase,
        staging=task.staging,
        bucket=task.bucket,
        counts=counts,
        absent_columns=folded.absent_columns(),
        staged_rows=staged,
        file=file,
        seconds=time.monotonic() - began,
    )


class _Frames:
    """The task's rows, frame by frame, as often as asked; kept in memory when they are few."""

    def __init__(
        self, task: Task, segments: dict[Path, Segment], prepare: Mapping[str, str]
    ) -> None:
        self._task = task
        self._prepare = prepare
        self._segments = segments
        self._kept: list[pa.RecordBatch] = []
        self._keeps_all = sum(ref.entry.length_bytes for ref in task.frames) <= CACHE_BYTES_MAX

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._kept:
            yield from self._kept
            return
        kept = []
        for ref in self._task.frames:
            batch = self._read(ref)
            if self._keeps_all:
                kept.append(batch)
            yield batch
        self._kept = kept

    @property
    def are_few(self) -> bool:
        """Whether all of them may be in memory twice; known once they were read."""
        return self._keeps_all and sum(kept.nbytes for kept in self._kept) <= ORDER_BYTES_MAX

    def _read(self, ref: FrameRef) -> pa.RecordBatch:
        batch = self._segments[ref.path].read_rows(ref.entry).batch
        chosen = cut(
            batch,
            gsn_after=self._task.gsn_after,
            gsn_upto=self._task.gsn_upto,
            trx_from=self._task.trx_from,
        )
        return prepared_batch(chosen, self._prepare)


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


# --- staging --------------------------------------------------------------------------------------


def _write(path: Path, work: Work, folded: Folded, frames: _Frames) -> RowsFile | None:
    """Write the rows, or the upserts alone, into a file, if all of them can go that way."""
    task = work.task
    deletes = folded.deletes(bucket=task.bucket, buckets=task.buckets)
    upserts = folded.upserts(
        frames, bucket=task.bucket, buckets=task.buckets, in_key_order=frames.are_few
    )
    engine = engine_of(work.url)
    return engine.write_rows(path, task.relation, task.rows_form, deletes, upserts)


def _stage(work: Work, fold: Fold, folded: Folded, frames: _Frames, *, deletes_only: bool) -> int:
    """Send the merge rows into the merge table; how many."""
    task, count = work.task, 0
    if deletes_only:
        batches = folded.deletes(bucket=task.bucket, buckets=task.buckets)
    else:
        batches = folded.merge_rows(
            frames, bucket=task.bucket, buckets=task.buckets, in_key_order=frames.are_few
        )

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in batches:
            count += batch.num_rows
            yield batch

    reader = pa.RecordBatchReader.from_batches(fold.layout.schema, _raising(counted()))
    faults.point("load.copy.before")
    engine_of(work.url).send(
        work.url,
        Outgoing(
            table=task.table,
            staging=task.staging,
            stamp=work.stamp,
            relation=task.relation,
            reader=reader,
        ),
    )
    faults.point("load.copy.after")
    return count


def _raising(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pull the first batch at once: an error of ours then comes as itself, not through Arrow."""
    first = next(batches, None)

    def chained() -> Iterator[pa.RecordBatch]:
        if first is not None:
            yield first
        yield from batches

    return chained()
