"""Distribution of chunks to tasks: each one once, halves first, small ones together."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.chunks import chunk_task
from penstock.host.errors import ConnectionLost
from penstock.load import bulk, chunk
from penstock.load.bulk import BulkOptions, partitions, partitions_beside, streams_per_task
from penstock.load.ledger import Ledger, write_ledger
from penstock.model import TableName
from penstock.ports.bulk import Chunk, ChunkOutcome, ChunkStatus, ChunkTask, TablePlan

MIB = 2**20


def task(table: str, number: int, size_bytes: int) -> ChunkTask:
    """Return a chunk of a table."""
    name = TableName("s", table)
    return ChunkTask(
        source_url="",
        target_url="",
        table=name,
        target=name,
        chunk=Chunk(number=number, relation=name, copy_out="", size_bytes=size_bytes),
        columns=(),
        binary=True,
        snapshot_id="",
        snapshot_text="",
        plan="",
        replica_role=True,
    )


def numbers(groups: list[list[ChunkTask]]) -> list[list[int]]:
    """Return the chunks' numbers."""
    return [[t.chunk.number for t in group] for group in groups]


def test_half_of_the_work_comes_first_and_single_chunks_last() -> None:
    """There are few tasks, and yet the slots end together."""
    six = [task("w", n, 55 * MIB) for n in range(1, 7)]
    assert numbers(partitions(six, 2, 5)) == [[1, 2], [3, 4], [5], [6]]
    many = numbers(partitions([task("w", n, 64 * MIB) for n in range(100)], 2, 5))
    assert [len(group) for group in many] == [25, 25, 13, 13, 6, 6, 3, 3, 2, 2, 1, 1]


def test_small_tables_share_tasks() -> None:
    """A thousand empty tables do not need a thousand tasks; the largest table begins."""
    tasks = [task(f"t{n:03}", 1, 0) for n in range(1000)] + [task("big", 1, 90 * MIB)]
    groups = partitions(tasks, 2, 5)
    assert len(groups) < 40
    assert groups[0][0].table.name == "big"


def test_fewer_threads_than_slots_are_kept_to() -> None:
    """The setting maxThreads limits the tasks that run at the same time; the load is even."""
    tasks = [task("a", n, 10 * MIB) for n in range(8)] + [task("b", 1, 40 * MIB)]
    groups = partitions(tasks, 16, 3)
    sizes = sorted(sum(t.chunk.size_bytes for t in group) // MIB for group in groups)
    assert len(groups) == 3
    assert sizes == [40, 40, 40]


def test_no_more_streams_than_threads_where_executors_come_meanwhile() -> None:
    """The call of `load.bulk` on a cluster asks for a task per thread, each of one stream."""
    for threads in (1, 5, 8):
        found = partitions([task("t", n, MIB) for n in range(40)], threads + 1, threads)
        assert len(found) * streams_per_task(threads + 1, threads) == threads


def test_streams_share_what_threads_are_allowed() -> None:
    """Exactly as many chunks run at once as maxThreads says, however few cores Spark has."""
    assert [streams_per_task(slots, 5) for slots in (1, 2, 3, 5, 16)] == [5, 2, 1, 1, 1]
    assert streams_per_task(2, 1) == 1


def test_a_task_copies_chunks_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk is copied once, two at a time; each stream has connections of its own."""
    together = threading.Barrier(2)
    opened: list[int] = []

    class Fake(chunk.ChunkCopier):
        def __enter__(self) -> Fake:
            opened.append(threading.get_ident())
            return self

        def copy(self, task: ChunkTask) -> ChunkOutcome:
            together.wait(timeout=60)
            return ChunkOutcome(table=task.table, number=task.chunk.number, status=ChunkStatus.DONE)

    monkeypatch.setattr(chunk, "ChunkCopier", Fake)
    tasks = [task("w", n, MIB) for n in range(1, 7)]
    outcomes = list(chunk.copy_chunks(iter(tasks), streams=2))
    assert sorted(outcome.number for outcome in outcomes) == [1, 2, 3, 4, 5, 6]
    assert len(set(opened)) == len(opened) == 2


@pytest.mark.parametrize(
    ("slots", "threads", "groups"), [(4, 8, 3), (8, 2, 2), (2, 5, 1), (1, 5, 9)]
)
def test_a_copy_beside_the_changes_leaves_them_a_slot(
    slots: int, threads: int, groups: int
) -> None:
    """The copy never has as many tasks as there are slots; with one slot it takes single chunks."""
    found = numbers(partitions_beside([task("t", n, MIB) for n in range(9)], slots, threads))
    assert len(found) == groups
    assert sorted(number for group in found for number in group) == list(range(9))


@given(
    sizes=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 200 * MIB)), max_size=60),
    slots=st.integers(1, 9),
    max_threads=st.integers(1, 9),
)
def test_every_chunk_is_in_one_group(
    sizes: list[tuple[str, int]], slots: int, max_threads: int
) -> None:
    """No chunk is lost or repeated, no group is empty, and without chunks there is no group."""
    tasks = [task(table, number, size) for number, (table, size) in enumerate(sizes)]
    groups = partitions(tasks, slots, max_threads)
    assert all(groups)
    assert sorted(n for group in numbers(groups) for n in group) == list(range(len(tasks)))
    if max_threads < slots:
        assert len(groups) <= max_threads


def test_the_read_plan_has_its_name_in_the_file() -> None:
    """A bulk.json that was written before a name in the code changed is still read."""
    fields = {field.name: field.encode_name for field in msgspec.structs.fields(TablePlan)}
    assert fields["read_plan"] == "way"


# -- chunks that were handed out before ----------------------------------------------------------


def plan_of(table: str, name: str) -> TablePlan:
    """Return a plan of two chunks."""
    target = TableName("s", table)
    return TablePlan(
        source=target,
        target=target,
        columns=("id",),
        binary=False,
        position="0/1",
        snapshot_id="",
        snapshot_text="",
        chunks=tuple(Chunk(number=n, relation=target, copy_out="") for n in (1, 2)),
        name=name,
    )


class Jobs:
    """Fake session whose jobs are lost, like those of a driver that loses its executors."""

    parallelism, slots_are_fixed, alive = 2, True, True

    def __init__(self) -> None:
        """Begin without noted jobs."""
        self.repeated: list[dict[str, bool]] = []

    def cancel(self) -> None:
        """Do nothing: no test cancels."""

    def run(self, groups: Any, _work: object, *, description: str) -> Any:
        """Note by plan whether chunks are marked as repeated."""
        assert description.startswith("bulk load at 0/1: s.")
        self.repeated.append({t.plan: t.repeated for group in groups for t in group})
        raise ConnectionLost("an executor was lost")


def test_chunks_of_an_earlier_job_are_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The job was in this process or, by the ledger, an earlier one; new plans are not repeated."""
    monkeypatch.setattr(bulk, "Watch", lambda *_, **__: nullcontext())
    options = BulkOptions(
        source_url="x", target_url="x", state_directory=tmp_path, run_directory=tmp_path
    )
    write_ledger(tmp_path, Ledger(plans=[plan_of("a", "before")]))
    jobs, target = Jobs(), cast(Any, SimpleNamespace(marks=dict, details_of=lambda _: None))
    load = bulk._Load(cast(Any, jobs), options, [], cast(Any, None), target, None, lambda: False)
    load.ledger.put([plan_of("b", "now")])
    for _ in range(2):
        assert load.copy_round([TableName("s", "a"), TableName("s", "b")]) == []
    load.ledger.put([plan_of("b", "again")])
    assert load.copy_round([TableName("s", "b")]) == []
    assert jobs.repeated == [
        {"before": True, "now": False},
        {"before": True, "now": True},
        {"again": False},
    ]


def test_what_attempts_at_a_chunk_have_in_common() -> None:
    """Another table, chunk or plan is another claim; each fits into the name of a MySQL lock."""
    one = chunk_task(1, table=TableName("s", "t"), plan="p")
    assert one.claim == replace(one, snapshot_id="x", repeated=True).claim
    others = [
        chunk_task(1, table=TableName("s", "u"), plan="p"),
        chunk_task(2, table=TableName("s", "t"), plan="p"),
        chunk_task(1, table=TableName("s", "t"), plan="q"),
    ]
    assert len({task.claim for task in [one, *others]}) == 4
    assert len(f"penstock {chunk_task().claim}") <= 64
