"""Place of a merge in its logs: what is saved, in which order, and what a crash leaves of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from harness.pipelines.log import ITEM, ITEM_2
from penstock.host import faults
from penstock.merge.shapes import Shapes, ShapeState
from penstock.merge.state import (
    KEPT,
    SHAPES_FILE,
    STATE_FILE,
    MergeState,
    MergeStateLost,
    MergeStates,
)
from penstock.model import Relation


@dataclass
class Files:
    """Files in memory, with the names of the written ones, in order."""

    kept: dict[str, Any] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)

    def load(self, name: str, _kind: Any) -> Any:
        """Return what was saved last."""
        return self.kept.get(name)

    def save(self, name: str, state: Any) -> None:
        """Keep the state, and note its name."""
        self.written.append(name)
        self.kept[name] = state


@pytest.fixture
def files() -> Files:
    """Files without a state."""
    return Files()


def shapes(trx: int, relation: Relation = ITEM) -> ShapeState:
    """Return shapes that hold since a transaction of the merged log."""
    found = Shapes()
    found.apply("s1", relation)
    return found.state(trx)


def at(files: Files, trx: int) -> tuple[int, list[str]]:
    """Return what a starting merge finds after a transaction: its number, the table's columns."""
    state, found = MergeStates(files).at(trx)
    return state.trx, [column.name for one in found.merged for column in one.columns]


def test_a_merge_goes_on_behind_the_transaction_that_its_log_ends_with(files: Files) -> None:
    """Each of the last states can be the one at which the merge continues."""
    states = MergeStates(files)
    for trx in range(1, 9):
        states.save(MergeState(trx=trx), shapes(trx) if trx == 1 else None)
    for trx in range(8 - KEPT, 9):
        assert at(files, trx) == (trx, ["id", "note"])
    assert at(files, 0) == (0, [])


@pytest.mark.parametrize("trx", [1, 4, 6, 9])
def test_a_state_of_another_time_is_refused(files: Files, trx: int) -> None:
    """Rows would be lost or repeated: neither an earlier state nor a later one is usable."""
    states = MergeStates(files)
    for saved in (3, 5, 7):
        states.save(MergeState(trx=saved), shapes(3) if saved == 3 else None)
    with pytest.raises(MergeStateLost, match=f"ends with transaction {trx}"):
        MergeStates(files).at(trx)


def test_a_state_without_its_shapes_is_refused(files: Files) -> None:
    """The merge would have to guess which column is which."""
    MergeStates(files).save(MergeState(trx=3), shapes(3))
    del files.kept[SHAPES_FILE]
    with pytest.raises(MergeStateLost):
        MergeStates(files).at(3)


def test_shapes_are_those_of_the_transaction(files: Files) -> None:
    """Later ones belong to rows that the log may not have; the last valid one is kept."""
    states = MergeStates(files)
    states.save(MergeState(trx=1), shapes(1))
    for trx in range(2, 8):
        states.save(MergeState(trx=trx), None)
    states.save(MergeState(trx=8), shapes(8, ITEM_2))
    assert at(files, 7) == (7, ["id", "note"])
    assert at(files, 8) == (8, ["id", "note", "price"])
    for trx in range(9, 13):
        states.save(MergeState(trx=trx), None)
    states.save(MergeState(trx=13), shapes(13, replace(ITEM, version=3)))
    assert at(files, 12) == (12, ["id", "note", "price"])
    assert at(files, 13) == (13, ["id", "note"])


def test_shapes_are_written_before_the_state_that_needs_them(files: Files) -> None:
    """A crash between the two leaves a state that has its own."""
    states = MergeStates(files)
    states.save(MergeState(trx=1), shapes(1))
    with faults.arming("merge.state.before:1:error"), pytest.raises(faults.FaultInjected):
        states.save(MergeState(trx=2), shapes(2, ITEM_2))
    assert files.written == [SHAPES_FILE, STATE_FILE, SHAPES_FILE]
    assert at(files, 1) == (1, ["id", "note"])


def test_what_a_crash_left_of_later_transactions_is_replaced(files: Files) -> None:
    """The log ends earlier: these numbers are assigned again, to other rows."""
    states = MergeStates(files)
    states.save(MergeState(trx=1), shapes(1))
    states.save(MergeState(trx=2, watermark_us=20), shapes(2, ITEM_2))
    again = MergeStates(files)
    assert again.at(1)[0].trx == 1
    again.save(MergeState(trx=2, watermark_us=30), shapes(2))
    assert [(one.trx, one.watermark_us) for one in again.entries] == [(1, 0), (2, 30)]
    assert at(files, 2) == (2, ["id", "note"])
    again.forget()
    again.save(MergeState(trx=1), None)
    assert [one.trx for one in MergeStates(files).entries] == [1]
    assert at(files, 1) == (1, [])
