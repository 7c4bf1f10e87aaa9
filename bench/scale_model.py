"""Effect of more executors, computed from measured costs. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.codec.ckt import FrameEntry, FrameKind
from penstock.load.plan import BUCKETS_MAX, CLUSTER_BUCKET_BYTES, FrameRef, Task, share_out
from penstock.model import Column, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured costs. _us: CPU microseconds per row, _ms: milliseconds.

    Attributes:
        read: of a row that a task reads, its own or not.
        split: of deciding whose row it is.
        own: the rest of the worker's work for a row of its own.
        staged, applied: of the target's server, per row.
        task, table: per task in the worker, and per table in the server that applies it.
        job: wall time of a job without work.
        row_bytes: bytes of a row in the log.
    """

    read_us: float
    split_us: float
    own_us: float
    staged_us: float
    applied_us: float
    task_ms: float
    table_ms: float
    job_ms: float
    row_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one batch. seconds: of executors, of the server while staging, and of applying.

    cpu_us: of the executors, per row.
    """

    executors_s: float
    staging_s: float
    applying_s: float
    cpu_us: float
    tasks: int

    @property
    def seconds(self) -> float:
        """Return seconds from batch to batch, when the next is staged while one is applied."""
        return max(self.executors_s, self.staging_s, self.applying_s)

    @property
    def limit(self) -> str:
        """Return the longest step."""
        found = {
            self.executors_s: "executors",
            self.staging_s: "the target, staging",
            self.applying_s: "the target, applying",
        }
        return found[self.seconds]


def simulate(
    costs: Costs,
    *,
    rows: Sequence[int],
    executors: int,
    server_processors: int,
    splits: bool = True,
) -> Outcome:
    """Compute a batch of tables with so many rows each. splits: False: no table has more than
    one task.
    """
    tasks = [
        task
        for number, count in enumerate(rows)
        for task in _tasks(number, count, costs, executors if splits else 1)
    ]
    free = [costs.job_ms / 1e3] * executors
    used_s = 0.0
    for partition in share_out(tasks, partitions_max=executors):
        seconds = sum(_seconds(task, costs) for task in partition)
        used_s += seconds
        heapq.heapreplace(free, free[0] + seconds)
    total = sum(rows)
    return Outcome(
        executors_s=max(free),
        staging_s=total * costs.staged_us / 1e6 / server_processors,
        applying_s=total * costs.applied_us / 1e6 + len(rows) * costs.table_ms / 1e3,
        cpu_us=used_s * 1e6 / total,
        tasks=len(tasks),
    )


def _tasks(number: int, rows: int, costs: Costs, buckets_max: int) -> list[Task]:
    size = int(rows * costs.row_bytes)
    buckets = max(1, min(buckets_max, BUCKETS_MAX, size // CLUSTER_BUCKET_BYTES))
    entry = FrameEntry(FrameKind.ROWS, 0, 0, 1, 0, size, rows, 0, 1, rows, 1, rows)
    shape = Relation(
        schema="public",
        name=f"t{number}",
        columns=(Column(name="id", source_type="integer", neutral="int32"),),
        key=(0,),
        before=(0,),
    )
    return [
        Task(
            phase=0,
            relation=shape,
            frames=(FrameRef(path=Path("0.ckt"), entry=entry),),
            gsn_after=0,
            gsn_upto=rows,
            bucket=bucket,
            buckets=buckets,
        )
        for bucket in range(buckets)
    ]


def _seconds(task: Task, costs: Costs) -> float:
    (frame,) = task.frames
    rows = frame.entry.row_count
    each_us = costs.read_us + (costs.split_us if task.buckets > 1 else 0.0)
    return costs.task_ms / 1e3 + rows * (each_us + costs.own_us / task.buckets) / 1e6
