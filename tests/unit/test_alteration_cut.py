"""Division of a batch: one row was numbered with a gap because its shape is new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.consume import write
from harness.pipelines.log import (
    COMMIT_TIME_US,
    ITEM,
    ITEM_2,
    Change,
    end_point,
    inserts,
    number_rows,
    run_of,
    truncate,
)
from penstock.codec.columns import transactions_batch
from penstock.load.alteration_cut import cut_at_alteration
from penstock.load.plan import Window, plan_batch
from penstock.load.sql_target import view
from penstock.model import MarkerKind, Op, Run
from penstock.ports.target import Applied

MOVED = Change(relation=ITEM_2, op=Op.UPDATE, after=(9, "x", None), before=(0,))
PLAIN = Change(relation=ITEM_2, op=Op.INSERT, after=(7, "x", None))


@pytest.mark.parametrize("first", [[MOVED], [PLAIN]], ids=["changed key", "insert"])
def test_the_batch_ends_in_front_of_the_new_shape(tmp_path: Path, first: list[Change]) -> None:
    """The cut is right even if the first row has two numbers: no row has the next number."""
    groups = number_rows([inserts(2), [*first, PLAIN]], keys_have_two=True)
    with write(tmp_path, *(run_of(group) for group in groups)) as segment:
        window = Window(gsn_after=0, gsn_upto=segment.end.gsn)
        plan = plan_batch([view(segment)], window)
        assert len(plan.phases) == 2
        found = cut_at_alteration([segment], window, plan, applied=Applied(segment=-1))
    assert found is not None
    part, after = found
    assert (part.gsn_upto, after.gsn, after.trx, after.position) == (2, 2, 1, 100)
    assert (part.markers_before, after.segment) == (2, -1)


def test_a_transaction_with_both_shapes_goes_into_the_next_batch_whole(tmp_path: Path) -> None:
    """The whole transaction moves, together with its first row, which has two numbers."""
    old = Change(relation=ITEM, op=Op.UPDATE, after=(9, "x"), before=(0,))
    groups = number_rows([inserts(2), [old, PLAIN]], keys_have_two=True)
    with write(tmp_path, *(run_of(group) for group in groups)) as segment:
        window = Window(gsn_after=0, gsn_upto=segment.end.gsn)
        plan = plan_batch([view(segment)], window)
        found = cut_at_alteration([segment], window, plan, applied=Applied(segment=-1))
    assert found is not None
    assert (found[1].gsn, found[1].trx, found[0].markers_before) == (2, 1, 2)


def test_a_shape_without_rows_begins_the_next_batch(tmp_path: Path) -> None:
    """The rows before the shape are applied to the table as it was."""
    renamed = replace(ITEM_2, columns=(ITEM.columns[0], replace(ITEM.columns[1], name="title")))
    (rows,) = number_rows([inserts(2)])
    end = run_of(rows).end
    with write(tmp_path, run_of(rows), Run(relations=(renamed,), end=end)) as segment:
        window = Window(gsn_after=0, gsn_upto=segment.end.gsn)
        plan = plan_batch([view(segment)], window)
        found = cut_at_alteration([segment], window, plan, applied=Applied(segment=-1))
        assert found is not None
        part, after = found
        assert after.segment == -1
        (phase,) = plan_batch([view(segment)], part).phases
        assert [one.version for one in phase.relations] == [1]
        rest = plan_batch([view(segment)], Window(gsn_after=after.gsn, gsn_upto=2))
        assert [one.version for phase in rest.phases for one in phase.relations] == [2]


def test_tables_that_are_read_again_at_one_place_are_both_emptied(tmp_path: Path) -> None:
    """Their transactions have one position: a marker belongs to the batch that has its rows."""
    other, other_2 = (replace(one, name="other", source_id=2) for one in (ITEM, ITEM_2))
    first, second, *again = number_rows(
        [inserts(2), inserts(2, other), [PLAIN], [replace(PLAIN, relation=other_2)]]
    )
    told = transactions_batch([(300, 350, COMMIT_TIME_US, 0)])
    runs = [
        replace(
            run_of(
                [replace(row, position=300)],
                markers=[
                    replace(
                        truncate(row.gsn - 1, row.trx, row.change.relation.name),
                        kind=MarkerKind.RELOAD,
                        position=300,
                    )
                ],
            ),
            transactions=told,
            end=replace(end_point(3, row.gsn), trx=row.trx),
        )
        for (row,) in again
    ]
    emptied: list[list[tuple[str, ...]]] = []
    with write(tmp_path, run_of(first), run_of(second), *runs) as segment:
        applied = Applied(segment=-1, gsn=2, trx=1, position=100)
        while applied.gsn < segment.end.gsn:
            window = Window(gsn_after=applied.gsn, gsn_upto=segment.end.gsn)
            plan = plan_batch([view(segment)], window)
            found = cut_at_alteration([segment], window, plan, applied=applied)
            if found is None:
                applied = replace(applied, gsn=segment.end.gsn)
            else:
                window, applied = found
                plan = plan_batch([view(segment)], window)
            emptied.append([tuple(t.name for t in phase.reloaded) for phase in plan.phases])
    assert emptied == [[("item",)], [("other",)]]
