"""Distribute the chunks of a bulk load among Spark's tasks, and describe their results. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from penstock.load.job_figures import TaskFigures
from penstock.load.plan import list_names
from penstock.model import TableName
from penstock.model.words import count_words
from penstock.ports.bulk import Chunk, ChunkOutcome, ChunkTask, TablePlan

# Small chunks share a task: a task costs time, and so do new connections.
SMALL_TASK_BYTES = 16 * 2**20
CHUNK_COST_BYTES = 2**20  # what a chunk costs even if it is empty, in bytes that could be copied


def streams_per_task(slots: int, max_threads: int) -> int:
    """Return how many chunks a Spark task copies at once, so that all have at most max_threads.

    Spark runs as many tasks as there are cores. The two servers do the work, and a task waits for
    them: one chunk per core does not keep them busy.
    """
    return max(max_threads // slots, 1)


def chunk_tasks(
    plan: TablePlan,
    chunks: Sequence[Chunk],
    *,
    source_url: str,
    target_url: str,
    is_replica: bool,
    is_repeated: bool,
) -> list[ChunkTask]:
    """Return the tasks that copy these chunks of a plan.

    is_replica: whether the target receives rows as a replica. is_repeated: whether an earlier job
    may have copied them.
    """
    return [
        ChunkTask(
            source_url=source_url,
            target_url=target_url,
            table=plan.source,
            target=plan.target,
            chunk=chunk,
            columns=plan.columns,
            binary=plan.binary,
            snapshot_id=plan.snapshot_id,
            snapshot_text=plan.snapshot_text,
            plan=plan.name,
            replica_role=is_replica,
            read_plan=plan.read_plan,
            repeated=is_repeated,
        )
        for chunk in chunks
    ]


def partitions(tasks: Sequence[ChunkTask], slots: int, max_threads: int) -> list[list[ChunkTask]]:
    """Group tasks into Spark partitions, the largest tables first.

    With fewer threads than slots there are as many partitions as threads, loaded evenly. Otherwise
    each round of slots gets half of the rest: few partitions while there is much to do, and small
    ones at the end, so that all slots end together, whatever the tasks cost.
    """
    tables: dict[TableName, int] = {}
    for task in tasks:
        tables[task.table] = tables.get(task.table, 0) + task.chunk.size_bytes
    ordered = sorted(tasks, key=lambda t: (-tables[t.table], t.table, t.chunk.number))
    if max_threads < slots:
        return _evenly(ordered, max_threads)
    waiting = deque(ordered)
    left = sum(_cost(task) for task in ordered)
    least = min(SMALL_TASK_BYTES, left // (slots * 4))
    groups: list[list[ChunkTask]] = []
    while waiting:
        share = max(least, left / (2 * slots))
        for _ in range(slots):
            group, size = [], 0
            while waiting and size < share:
                size += _cost(waiting[0])
                group.append(waiting.popleft())
            left -= size
            if group:
                groups.append(group)
    return groups


def partitions_beside(
    tasks: Sequence[ChunkTask], slots: int, max_threads: int
) -> list[list[ChunkTask]]:
    """Group tasks so that other jobs always find a slot, or get the only one after each chunk."""
    ordered = sorted(tasks, key=lambda t: (t.table, t.chunk.number))
    if slots == 1:
        return [[task] for task in ordered]
    return _evenly(ordered, min(slots - 1, max_threads))


def describe_job(plans: Sequence[TablePlan], tasks: Sequence[ChunkTask]) -> str:
    """Return the description of a job for Spark's web pages."""
    size = sum(task.chunk.size_bytes for task in tasks)
    return (
        f"bulk load at {' '.join(sorted({plan.position for plan in plans}))}: "
        f"{list_names(plan.source for plan in plans)}, {count_words(len(tasks), 'chunk')}, "
        f"{size:,} bytes"
    )


def chunk_figures(
    tasks: Sequence[ChunkTask], outcomes: Sequence[ChunkOutcome]
) -> list[TaskFigures]:
    """Return the figures of each chunk's copy; bytes are those of the plan."""
    sizes = {(task.table, task.chunk.number): task.chunk.size_bytes for task in tasks}
    return [
        TaskFigures(
            of=f"{one.table} chunk {one.number}",
            rows=one.rows,
            size_bytes=sizes[one.table, one.number],
            seconds=one.seconds,
        )
        for one in outcomes
    ]


def _cost(task: ChunkTask) -> int:
    return task.chunk.size_bytes + CHUNK_COST_BYTES


def _evenly(ordered: Sequence[ChunkTask], count: int) -> list[list[ChunkTask]]:
    bins: list[tuple[int, int, list[ChunkTask]]] = [(0, i, []) for i in range(count)]
    for task in sorted(ordered, key=lambda t: -_cost(t)):
        size, index, held = heapq.heappop(bins)
        held.append(task)
        heapq.heappush(bins, (size + _cost(task), index, held))
    return [held for _, _, held in sorted(bins, key=lambda b: b[1]) if held]
