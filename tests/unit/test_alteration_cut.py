"""Division of a batch: one row was numbered with a gap because its shape is new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.consume import write
from harness.pipelines.log import ITEM, ITEM_2, Change, inserts, number_rows, run_of
from penstock.load.alteration_cut import cut_at_alteration
from penstock.load.plan import Window, plan_batch
from penstock.load.sql_target import view
from penstock.model import Op, Run
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
    assert (part.markers_before, after.segment) == (200, -1)


def test_a_transaction_with_both_shapes_goes_into_the_next_batch_whole(tmp_path: Path) -> None:
    """The whole transaction moves, together with its first row, which has two numbers."""
    old = Change(relation=ITEM, op=Op.UPDATE, after=(9, "x"), before=(0,))
    groups = number_rows([inserts(2), [old, PLAIN]], keys_have_two=True)
    with write(tmp_path, *(run_of(group) for group in groups)) as segment:
        window = Window(gsn_after=0, gsn_upto=segment.end.gsn)
        plan = plan_batch([view(segment)], window)
        found = cut_at_alteration([segment], window, plan, applied=Applied(segment=-1))
    assert found is not None
    assert (found[1].gsn, found[1].trx, found[0].markers_before) == (2, 1, 200)


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
