"""Phases, tasks and barriers of a batch, from constructed segments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.changes import relation
from penstock.codec.ckt import FrameEntry, FrameKind
from penstock.load.plan import (
    BUCKETS_MAX,
    PlanImpossible,
    RelationUse,
    SegmentView,
    Task,
    Window,
    plan_batch,
    share_out,
)
from penstock.model import FlushPoint, Marker, MarkerKind, Relation, TableName

A1 = relation(("id", "integer", "int32"), name="a")
A2 = relation(("id", "integer", "int32"), ("x", "text", "string"), name="a", version=2)
B1 = relation(("id", "integer", "int32"), name="b")
A, B = TableName("public", "a"), TableName("public", "b")


def frame(relation_id: int, first: int, last: int, size: int = 100) -> FrameEntry:
    """Return a rows frame; each row is a transaction, and its position is ten times its number."""
    count = last - first + 1
    return FrameEntry(
        FrameKind.ROWS, 0, 0, relation_id, first, size, count, 0, first, last, first, last
    )


def segment(
    *frames: FrameEntry,
    number: int = 0,
    start: int = 0,
    end: int = 100,
    shapes: dict[int, tuple[int, Relation]],
    markers: tuple[Marker, ...] = (),
) -> SegmentView:
    """Return a segment of rows start + 1 to end."""
    return SegmentView(
        number=number,
        path=Path(f"{number}.ckt"),
        start=FlushPoint(position=start * 10, gsn=start, trx=start),
        end=FlushPoint(position=end * 10, gsn=end, trx=end),
        relations=tuple(RelationUse(id=i, gsn=g, relation=r) for i, (g, r) in shapes.items()),
        frames=frames,
        trx_from=lambda position: min(max(-(-position // 10), start + 1), end + 1),
        markers=markers,
    )


def make_emptying(kind: MarkerKind, gsn: int, *tables: TableName) -> Marker:
    """Return a truncate or reload."""
    return Marker(
        kind=kind,
        gsn=gsn,
        trx=1,
        position=gsn * 10 + 5,
        commit_time_us=0,
        tables=tuple(tuple(table) for table in tables),  # type: ignore[misc]
    )


def small_shape(number: int) -> Relation:
    """Return the shape of one more table."""
    return relation(("id", "integer", "int32"), name=f"s{number}")


def spans(tasks: tuple[Task, ...]) -> list[tuple[int, str, int, int]]:
    """Return phase, table and rows of each task."""
    return [(t.phase, t.table.name, t.gsn_after, t.gsn_upto) for t in tasks]


def test_one_phase_when_no_shape_changes() -> None:
    """A relation that the next segment repeats is not a barrier."""
    plan = plan_batch(
        [
            segment(frame(1, 1, 60), frame(2, 2, 99), shapes={1: (0, A1), 2: (1, B1)}),
            segment(frame(7, 101, 120), number=1, start=100, end=120, shapes={7: (100, A1)}),
        ],
        Window(gsn_after=0, gsn_upto=120),
    )
    assert spans(plan.tasks) == [(0, "a", 0, 120), (0, "b", 0, 120)]
    (phase,) = plan.phases
    assert set(phase.relations) == {A1, B1}


def test_a_new_shape_is_a_barrier_for_all_tables() -> None:
    """Foreign keys hold at one place in the log for all tables, so phases divide all tables."""
    plan = plan_batch(
        [
            segment(
                frame(1, 1, 40),
                frame(2, 2, 99),
                frame(3, 51, 98),
                shapes={1: (0, A1), 2: (1, B1), 3: (50, A2)},
            )
        ],
        Window(gsn_after=0, gsn_upto=100),
    )
    assert spans(plan.tasks) == [
        (0, "a", 0, 50),
        (0, "b", 0, 50),
        (1, "a", 50, 100),
        (1, "b", 50, 100),
    ]
    assert plan.phases[1].relations == (A2,)


def test_truncate_makes_earlier_rows_void() -> None:
    """The table is emptied at the start of the phase; only rows after the marker are staged."""
    plan = plan_batch(
        [
            segment(
                frame(1, 1, 40),
                frame(2, 2, 99),
                shapes={1: (0, A1), 2: (1, B1)},
                markers=(
                    make_emptying(MarkerKind.TRUNCATE, 30, A),
                    make_emptying(MarkerKind.TRUNCATE, 99, B),
                ),
            )
        ],
        Window(gsn_after=0, gsn_upto=100),
    )
    assert spans(plan.tasks) == [(0, "a", 30, 100)]
    assert plan.phases[0].truncated == (A, B)


def test_marker_at_the_applied_row_counts_again_and_older_ones_do_not() -> None:
    """The marker follows that row; applied twice it has the same effect."""
    markers = tuple(make_emptying(MarkerKind.TRUNCATE, gsn, A) for gsn in (9, 10))
    plan = plan_batch(
        [segment(frame(1, 1, 100), shapes={1: (0, A1)}, markers=markers)],
        Window(gsn_after=10, gsn_upto=100),
    )
    assert plan.phases[0].truncated == (A,)
    plan = plan_batch(
        [segment(frame(1, 1, 100), shapes={1: (0, A1)}, markers=markers[:1])],
        Window(gsn_after=10, gsn_upto=100),
    )
    assert plan.phases[0].truncated == ()


def test_reload_with_a_new_shape_is_one_barrier() -> None:
    """The table is empty when it is altered, however far after the marker its rows begin."""
    plan = plan_batch(
        [
            segment(
                frame(1, 1, 20),
                frame(2, 25, 60),
                frame(3, 61, 98),
                shapes={1: (0, A1), 2: (24, B1), 3: (60, A2)},
                markers=(make_emptying(MarkerKind.RELOAD, 24, A),),
            )
        ],
        Window(gsn_after=0, gsn_upto=100),
    )
    assert [p.gsn_upto for p in plan.phases] == [24, 100]
    assert plan.phases[1].reloaded == (A,)
    assert plan.phases[1].relations == (A2, B1)
    # Rows of the old shape are void, so the first phase has no task.
    assert spans(plan.tasks) == [(1, "a", 24, 100), (1, "b", 24, 100)]


def test_shape_without_rows_is_applied_last() -> None:
    """The shape is not applied in a batch that is cut, nor if the bulk load may be newer."""
    one = segment(frame(1, 1, 100), shapes={1: (0, A1), 2: (100, B1)})
    plan = plan_batch([one], Window(gsn_after=0, gsn_upto=100))
    assert B1 in plan.phases[-1].relations
    assert len(plan.phases) == 1
    cut = plan_batch([one], Window(gsn_after=0, gsn_upto=100, position_before=10**6))
    assert all(B1 not in phase.relations for phase in cut.phases)
    later = plan_batch([one], Window(gsn_after=0, gsn_upto=100, starts={B: 5}))
    assert all(B1 not in phase.relations for phase in later.phases)
    changed = segment(frame(1, 1, 100), shapes={1: (0, A1), 2: (100, A2)})
    plan = plan_batch([changed], Window(gsn_after=0, gsn_upto=100))
    assert [phase.relations for phase in plan.phases] == [(A1,), (A2,)]


def test_rows_and_shapes_from_before_a_tables_start_do_not_count() -> None:
    """The bulk load has the rows; an old shape must not undo a newer one."""
    plan = plan_batch(
        [
            segment(
                frame(1, 1, 40),
                frame(3, 51, 98),
                shapes={1: (0, A1), 3: (50, A2)},
                markers=(make_emptying(MarkerKind.TRUNCATE, 20, A),),
            )
        ],
        Window(gsn_after=0, gsn_upto=100, starts={A: 450}),
    )
    assert [phase.relations for phase in plan.phases] == [(A2,)]
    assert plan.phases[0].truncated == ()
    assert plan.tasks[0].trx_from == 45


def test_segments_must_follow_one_another() -> None:
    """A number or a start that does not fit is refused."""
    first = segment(frame(1, 1, 100), shapes={1: (0, A1)})
    for number, start in ((2, 100), (1, 99)):
        other = segment(number=number, start=start, end=120, shapes={})
        with pytest.raises(PlanImpossible):
            plan_batch([first, other], Window(gsn_after=0, gsn_upto=120))


def test_an_idle_source_moves_positions_between_segments() -> None:
    """Heartbeats of an idle source advance the log's end without a segment."""
    first = segment(frame(1, 1, 100), shapes={1: (0, A1)})
    second = segment(frame(1, 101, 110), number=1, start=100, end=110, shapes={1: (100, A1)})
    second = replace(second, start=replace(second.start, position=5000))
    plan = plan_batch([first, second], Window(gsn_after=0, gsn_upto=110))
    assert len(plan.tasks[0].frames) == 2


def test_nothing_to_do_is_an_empty_plan() -> None:
    """The segments have only heartbeats."""
    plan = plan_batch([segment(shapes={}, end=0)], Window(gsn_after=0, gsn_upto=0))
    assert plan.is_empty


def test_a_cluster_splits_sooner() -> None:
    """Executors of a cluster have their own processors; a single machine also runs the servers."""
    log = [segment(frame(1, 1, 100, size=40_000_000), shapes={1: (0, A1)})]
    window = Window(gsn_after=0, gsn_upto=100)
    assert len(plan_batch(log, window, buckets_max=7).tasks) == 1
    assert len(plan_batch(log, window, buckets_max=7, on_cluster=True).tasks) == 7
    many = plan_batch(log, window, buckets_max=99, on_cluster=True)
    assert len(many.tasks) == BUCKETS_MAX


def test_large_tables_are_split_and_small_ones_share() -> None:
    """Partitions have about equal cost, and are no more than allowed, few for little work."""
    plan = plan_batch(
        [
            segment(
                frame(1, 1, 100, size=500_000_000),
                *[frame(n, n, n + 90) for n in range(2, 8)],
                shapes={1: (0, A1)}
                | {n: (n, relation(("id", "integer", "int32"), name=f"s{n}")) for n in range(2, 8)},
            )
        ],
        Window(gsn_after=0, gsn_upto=100),
        buckets_max=3,
    )
    large = [task for task in plan.tasks if task.table == A]
    assert [(t.bucket, t.buckets) for t in large] == [(0, 3), (1, 3), (2, 3)]
    partitions = share_out(plan.tasks, partitions_max=5)
    assert len(partitions) == 5
    assert sorted(len(p) for p in partitions) == [1, 1, 1, 3, 3]
    small = [task for task in plan.tasks if task.table != A]
    assert len(share_out(small[:3], partitions_max=5)) == 1
    assert share_out([], partitions_max=5) == []


def test_changes_that_a_copy_may_have_are_marked() -> None:
    """A table copied at several moments is marked up to the last one; a single one always."""
    one = segment(frame(1, 1, 5), frame(2, 6, 9), end=9, shapes={1: (0, A1), 2: (0, B1)})
    late = segment(frame(1, 10, 12), number=1, start=9, end=12, shapes={1: (9, A1)})

    def plan_overlaps(window: Window, *segments: SegmentView) -> dict[str, bool]:
        return {task.table.name: task.overlaps for task in plan_batch(segments, window).tasks}

    window = Window(gsn_after=0, gsn_upto=9, settled={A: 40})
    assert plan_overlaps(window, one) == {"a": True, "b": False}
    assert plan_overlaps(replace(window, settled={A: 10}), one) == {"a": False, "b": False}
    assert plan_overlaps(replace(window, only=B), one) == {"b": True}
    assert plan_overlaps(replace(window, gsn_after=9, gsn_upto=12), late) == {"a": False}


def test_rows_of_a_relation_that_a_segment_does_not_describe_stop_the_plan() -> None:
    """Such rows would otherwise be mistaken for another table's."""
    with pytest.raises(PlanImpossible, match="which it does not describe"):
        plan_batch([segment(frame(7, 1, 1), shapes={})], Window(gsn_after=0, gsn_upto=100))


@pytest.mark.parametrize(("start", "count"), [(50, 1), (51, 0)])
def test_a_frame_that_ends_where_a_table_begins_still_counts(start: int, count: int) -> None:
    """Rows at the start's own position are not in the bulk load; frame() has ten times the gsn."""
    one = segment(frame(1, 1, 5), end=5, shapes={1: (0, A1)})
    window = Window(gsn_after=0, gsn_upto=5, starts={A: start})
    assert len(plan_batch([one], window).tasks) == count


def test_rows_that_await_a_reload_are_left_out() -> None:
    """The table stays as it was; changes after the reload are applied to the new rows."""
    waiting = replace(A2, awaits_reload="a type was converted")
    known = replace(A2, version=3)
    plan = plan_batch(
        [
            segment(
                frame(1, 1, 10),
                frame(2, 11, 20),
                frame(3, 21, 30),
                shapes={1: (0, A1), 2: (10, waiting), 3: (20, known)},
                markers=(make_emptying(MarkerKind.RELOAD, 20, A),),
            )
        ],
        Window(gsn_after=0, gsn_upto=30),
    )
    assert [phase.reloaded for phase in plan.phases] == [(), (A,)]
    assert [phase.relations for phase in plan.phases] == [(A1,), (known,)]
    assert spans(plan.tasks) == [(1, "a", 20, 30)]  # the reload makes earlier rows void


def test_two_shapes_at_one_place_come_in_the_order_of_versions() -> None:
    """One is a shape without rows so far, the other one is what a statement turned it into."""
    plan = plan_batch(
        [segment(end=5, shapes={1: (5, A2), 2: (5, A1)})],
        Window(gsn_after=5, gsn_upto=5),
    )
    assert [phase.relations for phase in plan.phases] == [(A1, A2)]
