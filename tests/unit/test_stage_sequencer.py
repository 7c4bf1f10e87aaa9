"""Rows in the right order, once: sweeps and windows over a target in memory.

For real targets, see tests/servers/test_stage_direct.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from harness.feeds.row_target import GROUP, FakeRowTarget
from harness.feeds.sequencer import make_delete, row
from harness.feeds.staging import FakeStaging
from penstock.feeds.apply.sequencer import RowSequencer, SequencerOptions
from penstock.feeds.metrics import ApplyMetrics
from penstock.feeds.position import LeaseLost, TakenOver, take_over
from penstock.feeds.sessions import Sessions
from penstock.host.errors import ConnectFailed
from penstock.model.hlc import Hlc
from penstock.model.sections import StageMode
from penstock.ports.feeds import Mutation, StagedTable, batch_of

LOG = "stage/test/shop.public"
ROW = {"id": 1, "v": 1}


@dataclass
class Stage:
    """A sequencer between two databases in memory."""

    sequencer: RowSequencer
    target: FakeRowTarget
    staging: FakeStaging

    def post(self, **mutations: list[Mutation]) -> None:
        """Post one request."""
        batches = {StagedTable(GROUP, name): batch_of(some) for name, some in mutations.items()}
        self.sequencer.accept(self.staging, GROUP, batches, "p")

    def resolve(self, time: int) -> None:
        """Receive a resolved timestamp."""
        self.staging.advance(GROUP, "p", Hlc(time))

    def waiting(self, name: str) -> list[int]:
        """Return the times of a table's staged mutations that are not applied."""
        kept = self.staging.tables.get(StagedTable(GROUP, name), {})
        return sorted(time.nanos for (time, _), one in kept.items() if not one.applied)

    def sweep(self) -> Hlc:
        """Take over, and run one round of best effort."""
        holder = take_over(LOG, self.target)
        return self.sequencer.sweep(self.staging, GROUP, lambda: holder)

    def round(self, holder: TakenOver) -> None:
        """Do what the holder of the lease does repeatedly."""
        self.sequencer.round(self.staging, GROUP, lambda: holder)


def stage_of(mode: StageMode) -> Iterator[Stage]:
    """Return a stage with two empty databases."""
    target = FakeRowTarget()
    with Sessions(target, 3) as sessions:  # type: ignore[type-var]
        sequencer = RowSequencer(
            sessions,  # type: ignore[arg-type]
            metrics=ApplyMetrics(CollectorRegistry()),
            log_id=lambda _group: LOG,
            options=SequencerOptions(mode=mode),
        )
        yield Stage(sequencer, target, FakeStaging())


@pytest.fixture
def windows() -> Iterator[Stage]:
    """A stage in mode consistent."""
    yield from stage_of(StageMode.CONSISTENT)


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A stage in mode best effort, with a batch per time."""
    monkeypatch.setattr("penstock.feeds.apply.sequencer.FLUSH_ROWS", 1)
    yield from stage_of(StageMode.BEST_EFFORT)


def lose_staging(*_: object, **__: object) -> Any:
    """Raise as if the staging server were gone."""
    raise ConnectFailed("it is gone", hint="")


# --- windows --------------------------------------------------------------------------------------


def test_a_window_that_was_not_marked_is_only_marked(
    windows: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target alone decides; later rows are applied after it."""
    windows.post(t=[row(1, 1, v=1)])
    windows.resolve(5)
    with monkeypatch.context() as broken:
        broken.setattr(windows.staging, "mark_applied_through", lose_staging)
        holder = take_over(LOG, windows.target)
        with pytest.raises(ConnectFailed):
            windows.round(holder)
    assert windows.target.counts == {"[1]": 1}
    assert windows.waiting("t") == [1]
    windows.post(t=[row(6, 2, v=1)])
    windows.resolve(7)
    windows.round(take_over(LOG, windows.target))
    assert windows.target.counts == {"[1]": 1, "[2]": 1}
    assert windows.waiting("t") == []
    assert windows.staging.window(GROUP).committed == Hlc(7)


def test_who_was_taken_over_writes_nothing(windows: Stage) -> None:
    """The old holder's data may be older than what is there now."""
    before = take_over(LOG, windows.target)
    windows.post(t=[row(1, 1, v=1)])
    windows.resolve(5)
    now = take_over(LOG, windows.target)
    with pytest.raises(LeaseLost, match="another instance has taken over"):
        windows.round(before)
    assert windows.target.rows["t"] == {}
    assert windows.waiting("t") == [1]
    windows.round(now)
    assert windows.target.rows["t"] == {"[1]": ROW}


# --- sweeps ---------------------------------------------------------------------------------------


def test_what_was_applied_while_a_sweep_reads_is_left_out(
    sweeps: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such rows are checked again under the lock of the table."""
    sweeps.post(p=[row(1, 1, v=1)])
    read = sweeps.staging.read

    def late(*arguments: Any, **more: Any) -> Any:
        found = list(read(*arguments, **more))
        sweeps.staging.mark_applied_through(sweeps.staging.tables, Hlc(9))
        return found

    monkeypatch.setattr(sweeps.staging, "read", late)
    sweeps.resolve(5)
    sweeps.sweep()
    assert sweeps.target.counts == {}


def test_a_key_that_waits_keeps_its_order(sweeps: Stage) -> None:
    """New mutations of a staged key are staged after them; other keys are written at once."""
    table = StagedTable(GROUP, "t")
    sweeps.staging.stage({table: batch_of([row(1, 1, v=0)])})
    sweeps.post(t=[row(2, 1, v=1), row(3, 2, v=1)])
    assert list(sweeps.target.rows["t"]) == ["[2]"]
    sweeps.resolve(4)
    sweeps.sweep()
    assert sweeps.target.rows["t"]["[1]"] == ROW
    assert sweeps.waiting("t") == []


def test_a_row_without_its_parent_holds_up_its_key_and_the_checkpoints(sweeps: Stage) -> None:
    """Later rows of this key with an existing parent wait too; nothing else does."""
    sweeps.post(p=[row(1, 1), row(5, 3)], c=[row(3, 5, p=2), row(4, 5, p=1)])
    for time in (2, 3, 4, 6):
        sweeps.resolve(time)
    assert sweeps.sweep() == Hlc(2, 10**10 - 1)
    assert list(sweeps.target.rows["p"]) == ["[1]", "[3]"]
    assert sweeps.target.rows["c"] == {}
    assert sweeps.waiting("c") == [3, 4]
    assert sweeps.staging.window(GROUP).committed == Hlc(2)
    sweeps.target.rows["p"]["[2]"] = {"id": 2}
    assert sweeps.sweep() == Hlc(6)
    assert sweeps.target.rows["c"] == {"[5]": {"id": 5, "p": 1}}
    assert sweeps.staging.window(GROUP).committed == Hlc(6)


def test_children_are_deleted_in_front_of_their_parents(sweeps: Stage) -> None:
    """Deletes of one time are in order, whichever line came first."""
    sweeps.post(p=[row(1, 1)], c=[row(1, 5, p=1)])
    sweeps.post(p=[make_delete(2, 1)], c=[make_delete(2, 5)])
    sweeps.resolve(3)
    assert sweeps.sweep() == Hlc(3)
    assert sweeps.target.rows["p"] == sweeps.target.rows["c"] == {}
