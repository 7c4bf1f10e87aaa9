"""The task code of the one Spark job per batch: read frames, fold, stage. Runs in the workers.

One task fills one merge table (or one bucket of it) over a connection that the worker keeps.
Nothing here touches a base table: what a dying worker leaves behind is emptied before the next
try. Not here: what tasks there are (`plan.py`), starting the job (`loader.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import adbc_driver_manager
import numpy as np
import pyarrow as pa
from adbc_driver_postgresql import dbapi
from psycopg import conninfo

from penstock.host import faults
from penstock.host.connect import connect_error, quoted
from penstock.load import LOAD_AFRESH
from penstock.load.fold import Fold
from penstock.load.folded import Counts, Folded
from penstock.load.plan import FrameRef, Task
from penstock.load.postgres.progress import SCHEMA
from penstock.log.segment import Segment, open_segment
from penstock.model import PenstockError, Retry

faults.declare("load.copy.before", "load.copy.after")

# Frames of a task are kept decoded up to this size; above it they are read twice.
CACHE_BYTES_MAX = 64 * 2**20
# Rows are put in order of their keys when all frames of a task take no more than this, decoded.
ORDER_BYTES_MAX = 256 * 2**20
NICENESS = 5


class StagingFailed(PenstockError):
    """The target refused rows of a merge table."""

    code = "LD11"
    retry: ClassVar[Retry] = "never"


class StagingLost(PenstockError):
    """A worker's connection to the target broke."""

    code = "LD12"
    retry: ClassVar[Retry] = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task with what its worker must know. extension: of segment files."""

    task: Task
    url: str
    extension: str = "ckt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a task did. counts: of the whole table, not of the bucket. error: instead of all."""

    phase: int
    staging: str
    bucket: int
    counts: Counts = field(default_factory=Counts)
    absent_columns: frozenset[int] = frozenset()
    staged_rows: int = 0
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
    frames = _Frames(task, segments)
    fold = Fold(task.relation)
    for frame in frames:
        fold.add(frame)
    folded = fold.finish()
    staged = 0
    if folded.counts().upserts or folded.counts().deletes:
        staged = _stage(work, fold, folded, frames)
    return Outcome(
        phase=task.phase,
        staging=task.staging,
        bucket=task.bucket,
        counts=folded.counts(),
        absent_columns=folded.absent_columns(),
        staged_rows=staged,
        seconds=time.monotonic() - began,
    )


class _Frames:
    """The task's rows, frame by frame, as often as asked; kept in memory when they are few."""

    def __init__(self, task: Task, segments: dict[Path, Segment]) -> None:
        self._task = task
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
        return cut(
            batch,
            gsn_after=self._task.gsn_after,
            gsn_upto=self._task.gsn_upto,
            position_from=self._task.position_from,
        )


def cut(
    batch: pa.RecordBatch, *, gsn_after: int, gsn_upto: int, position_from: int = 0
) -> pa.RecordBatch:
    """The rows with gsn_after < gsn <= gsn_upto and position >= position_from.

    Both columns rise in a batch, so it is one slice, made without a copy.
    """
    gsn = batch.column("gsn").to_numpy()
    low = int(np.searchsorted(gsn, gsn_after, side="right"))
    high = int(np.searchsorted(gsn, gsn_upto, side="right"))
    if position_from:
        position = batch.column("position").to_numpy()
        low = max(low, int(np.searchsorted(position, np.uint64(position_from), side="left")))
    return batch.slice(low, max(0, high - low))


# --- staging --------------------------------------------------------------------------------------

_connections: dict[tuple[int, str], Any] = {}


def _stage(work: Work, fold: Fold, folded: Folded, frames: _Frames) -> int:
    """Send the merge rows into the merge table; how many."""
    task, count = work.task, 0
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
    connection = _connection(work.url)
    try:
        with connection.cursor() as cursor:
            cursor.adbc_ingest(task.staging, reader, mode="append", db_schema_name=SCHEMA)
    except (adbc_driver_manager.Error, pa.ArrowException) as error:
        _forget(work.url)
        raise _staging_error(task, error) from error
    except BaseException:
        _forget(work.url)
        raise
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


def _staging_error(task: Task, error: Exception) -> PenstockError:
    state = getattr(error, "sqlstate", None) or ""
    said = " ".join(str(error).split())
    message = f"staging {task.table} into {quoted(SCHEMA, task.staging)}: {said}"
    # Without a word of the server behind it, this one tells of a value that has no binary form.
    unsendable = said.endswith("Error occurred writing COPY data:")
    lost = not state or state.startswith(("08", "57", "53"))
    if isinstance(error, adbc_driver_manager.OperationalError) and lost and not unsendable:
        return StagingLost(message, hint="It is tried again by itself.")
    return StagingFailed(
        message,
        hint=f"Please report it. {LOAD_AFRESH}",
        table=str(task.table),
    )


def _connection(url: str) -> Any:
    """The worker's connection to the target; a forked child does not share its parent's."""
    place = (os.getpid(), url)
    if place not in _connections:
        given = conninfo.conninfo_to_dict(url)
        options = str(given.get("options") or "")
        given["options"] = f"{options} -c statement_timeout=0 -c lock_timeout=60000".strip()
        given["application_name"] = "penstock worker"
        given.setdefault("connect_timeout", 10)
        text = conninfo.make_conninfo("", **given)
        try:
            _connections[place] = dbapi.connect(text, autocommit=True)
        except adbc_driver_manager.Error as error:
            raise connect_error(url, str(error)) from error
    return _connections[place]


def _forget(url: str) -> None:
    """Drop a connection after an error: it may stand in the middle of a COPY."""
    connection = _connections.pop((os.getpid(), url), None)
    if connection is not None:
        try:
            connection.close()
        except adbc_driver_manager.Error:
            return  # it is broken; the server ends its side when the socket goes
