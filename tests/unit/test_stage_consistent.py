"""Start of a group's log, and the rows that are marked applied: the target alone decides both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.feeds.row_target import GROUP, FakeRowTarget
from harness.feeds.sequencer import row
from harness.feeds.staging import FakeStaging
from penstock.feeds.position import Marking, begin_log, forget_log
from penstock.host.files import REAL_FILES
from penstock.log.layout import LogState, load_state, save_state
from penstock.model import FlushPoint
from penstock.model.hlc import Hlc
from penstock.model.layout import PipelineLayout
from penstock.ports.feeds import StagedTable, batch_of, position_behind
from penstock.ports.target import Applied

LOG = "stage/test/shop.public"
TABLE = StagedTable(GROUP, "t")
SOURCE = {"engine": "staged"}


@pytest.fixture
def target() -> FakeRowTarget:
    """A target without rows."""
    return FakeRowTarget()


def test_rows_are_marked_as_far_as_the_target_has_them(target: FakeRowTarget) -> None:
    """The checkpoints are marked after the rows; later staged rows wait."""
    staging = FakeStaging()
    staging.stage({TABLE: batch_of([row(1, 1), row(2, 2), row(3, 3)])})
    for time in (2, 3):
        staging.advance(GROUP, "p", Hlc(time))
    marking = Marking(staging, GROUP, LOG, target=lambda: target)
    marking.mark(staging, target)
    assert not any(one.applied for one in staging.tables[TABLE].values())
    target.positions[LOG] = Applied(position=position_behind(Hlc(2)))
    marking.mark(staging, target)
    applied = sorted(time.nanos for (time, _), one in staging.tables[TABLE].items() if one.applied)
    assert applied == [1, 2]
    assert staging.window(GROUP).committed == Hlc(2)


def begin_work(root: Path, target: FakeRowTarget) -> LogState:
    """Begin a log in an empty directory, and return its state."""
    layout = PipelineLayout(root=root)
    REAL_FILES.make_directory(layout.log)
    begin_log(layout, LOG, SOURCE, target)
    found = load_state(layout.log)
    assert found is not None
    return found


def test_a_log_begins_where_the_target_is(tmp_path: Path, target: FakeRowTarget) -> None:
    """The log begins with the next segment: no holder of another one can commit after it."""
    target.positions[LOG] = Applied(segment=4, gsn=70, trx=7, position=9, commit_time_us=8)
    state = begin_work(tmp_path, target)
    end = FlushPoint(position=9, gsn=70, trx=7, commit_time_us=8)
    assert (state.log_id, state.number_next, state.end) == (LOG, 6, end)
    assert target.positions[LOG].segment == 5


def test_our_own_log_goes_on(tmp_path: Path, target: FakeRowTarget) -> None:
    """The loader applies it from the target's position on, whatever it contains."""
    state = replaced = begin_work(tmp_path, target)
    replaced = LogState(
        log_id=LOG, source=SOURCE, number_next=9, end=FlushPoint(position=3, gsn=2, trx=1)
    )
    save_state(tmp_path / "log", replaced)
    assert begin_work(tmp_path, target) == replaced != state


def test_a_log_that_another_has_taken_over_is_begun_anew(
    tmp_path: Path, target: FakeRowTarget
) -> None:
    """The old log may end before the target's present position."""
    begin_work(tmp_path / "one", target)
    begin_work(tmp_path / "two", target)
    there = replace(target.positions[LOG], gsn=50, position=5, segment=8)
    target.positions[LOG] = there
    (tmp_path / "one" / "log" / "0.ckt").write_bytes(b"old")
    state = begin_work(tmp_path / "one", target)
    assert (state.end.gsn, state.number_next) == (50, 10)
    assert not (tmp_path / "one" / "log" / "0.ckt").exists()


def test_a_log_that_was_forgotten_is_begun_anew(tmp_path: Path, target: FakeRowTarget) -> None:
    """Rows were written beside it meanwhile."""
    first = begin_work(tmp_path, target)
    forget_log(PipelineLayout(root=tmp_path))
    assert begin_work(tmp_path, target).number_next == first.number_next + 1
