"""When the open segment is read: at once, but not at every look where many rows come."""

from __future__ import annotations

from fix_hands import Hands
from penstock.load.pacing import ENOUGH_ROWS, INTERVAL_S, MANY_ROWS, PAUSE_S, Pacing
from penstock.model import FlushPoint


def _pacing() -> tuple[Pacing, Hands]:
    clock = Hands()
    return Pacing(clock), clock


def _is_due(pacing: Pacing, trx: int, row_count: int = MANY_ROWS) -> bool:
    return pacing.is_due(FlushPoint(position=trx, trx=trx), row_count)


def test_few_rows_are_read_at_once() -> None:
    """Whatever came before the first batch, and behind small ones."""
    pacing, _ = _pacing()
    assert _is_due(pacing, 5)
    pacing.staged(MANY_ROWS - 1)
    assert _is_due(pacing, 6)


def test_many_rows_are_read_four_times_a_second_while_they_come() -> None:
    """Each look finds the log grown: they wait for the rest of the interval."""
    pacing, clock = _pacing()
    pacing.staged(MANY_ROWS)
    trx = 1
    end_s = clock.now_s + INTERVAL_S
    while clock.now_s < end_s - 0.06:
        trx += 1
        assert not _is_due(pacing, trx)
        clock.sleep(0.05)
    clock.sleep(0.06)
    assert _is_due(pacing, trx + 1)


def test_a_pause_of_the_flow_ends_the_waiting() -> None:
    """The last rows are not kept for the rest of the interval."""
    pacing, clock = _pacing()
    pacing.staged(MANY_ROWS)
    assert not _is_due(pacing, 7)
    clock.sleep(PAUSE_S / 2)
    assert not _is_due(pacing, 7)
    clock.sleep(PAUSE_S / 2 + 0.001)
    assert _is_due(pacing, 7)


def test_enough_rows_are_read_at_once() -> None:
    """What the batch costs by itself does not matter then."""
    pacing, _ = _pacing()
    pacing.staged(MANY_ROWS)
    assert not _is_due(pacing, 7, ENOUGH_ROWS - 1)
    assert _is_due(pacing, 8, ENOUGH_ROWS)
