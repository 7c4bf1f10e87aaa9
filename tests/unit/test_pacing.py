"""When the open segment is read: at once, but not more than four times a second where many rows come."""

from __future__ import annotations

from fix_hands import Hands
from penstock.load.pacing import INTERVAL_S, MANY_ROWS, PAUSE_S, Pacing


def _pacing() -> tuple[Pacing, Hands]:
    clock = Hands()
    return Pacing(clock), clock


def test_few_rows_are_read_at_once() -> None:
    """Whatever came before the first batch, and behind small ones."""
    pacing, _ = _pacing()
    assert pacing.is_due(5)
    pacing.staged(MANY_ROWS - 1)
    assert pacing.is_due(6)


def test_many_rows_are_read_four_times_a_second_while_they_come() -> None:
    """Each look finds the log grown: they wait for the rest of the interval."""
    pacing, clock = _pacing()
    pacing.staged(MANY_ROWS)
    trx = 1
    end_s = clock.now_s + INTERVAL_S
    while clock.now_s < end_s - 0.06:
        trx += 1
        assert not pacing.is_due(trx)
        clock.sleep(0.05)
    clock.sleep(0.06)
    assert pacing.is_due(trx + 1)


def test_a_pause_of_the_flow_ends_the_waiting() -> None:
    """The last rows are not kept for the rest of the interval."""
    pacing, clock = _pacing()
    pacing.staged(MANY_ROWS)
    assert not pacing.is_due(7)
    clock.sleep(PAUSE_S / 2)
    assert not pacing.is_due(7)
    clock.sleep(PAUSE_S / 2 + 0.001)
    assert pacing.is_due(7)
