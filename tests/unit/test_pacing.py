"""Pacing of the open segment: it is read at once, but not at every look if many rows arrive."""

from __future__ import annotations

from harness.faults.turned_clock import Hands
from penstock.load.loader import (
    BACKLOG_S,
    ENOUGH_ROWS,
    INTERVAL_ROWS,
    INTERVAL_S,
    MANY_ROWS,
    PAUSE_S,
    REST_S,
    Pacing,
)
from penstock.model import FlushPoint
from penstock.ports.target import Applied


def _pacing() -> tuple[Pacing, Hands]:
    clock = Hands()
    return Pacing(clock), clock


def _is_due(pacing: Pacing, trx: int, row_count: int = MANY_ROWS, *, committed_us: int = 0) -> bool:
    durable = FlushPoint(position=trx, trx=trx, gsn=row_count, commit_time_us=committed_us)
    return pacing.is_due(durable, Applied())


def test_few_rows_are_read_at_once() -> None:
    """Rows are read at once before the first batch, and after small ones."""
    pacing, _ = _pacing()
    assert _is_due(pacing, 5)
    pacing.note_staged(MANY_ROWS - 1)
    assert _is_due(pacing, 6)


def test_many_rows_are_read_once_a_second_while_they_come() -> None:
    """Each look finds the log grown: rows wait for the rest of the interval."""
    pacing, clock = _pacing()
    pacing.note_staged(INTERVAL_ROWS)
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
    pacing.note_staged(MANY_ROWS)
    assert not _is_due(pacing, 7)
    clock.sleep(PAUSE_S / 2)
    assert not _is_due(pacing, 7)
    clock.sleep(PAUSE_S / 2 + 0.001)
    assert _is_due(pacing, 7)


def test_enough_rows_are_read_at_once() -> None:
    """The fixed cost of the batch is negligible then."""
    pacing, _ = _pacing()
    pacing.note_staged(MANY_ROWS)
    assert not _is_due(pacing, 7, ENOUGH_ROWS - 1)
    assert _is_due(pacing, 8, ENOUGH_ROWS)


def test_fewer_rows_are_followed_sooner() -> None:
    """The fewer rows a batch had, the more of the flow's rows are fresh."""
    pacing, clock = _pacing()
    pacing.note_staged(INTERVAL_ROWS // 4)
    assert not _is_due(pacing, 7)
    clock.sleep(INTERVAL_S / 8)
    assert not _is_due(pacing, 8)
    clock.sleep(INTERVAL_S / 8 + 0.001)
    assert _is_due(pacing, 9)


def test_a_backlog_is_read_at_once() -> None:
    """No current change is delayed by that; a commit without a time is not part of a backlog."""
    pacing, clock = _pacing()
    pacing.note_staged(INTERVAL_ROWS)
    now_us = clock.now_us()
    assert not _is_due(pacing, 7, committed_us=now_us)
    assert not _is_due(pacing, 8, committed_us=now_us - int((BACKLOG_S - 1) * 1e6))
    assert _is_due(pacing, 9, committed_us=now_us - int((BACKLOG_S + 1) * 1e6))


def test_a_batch_without_rows_waits_until_the_log_rests() -> None:
    """The batch would delay the staging of the next one, which has rows."""
    pacing, clock = _pacing()
    durable = FlushPoint(position=7, trx=7, gsn=MANY_ROWS)
    assert pacing.is_due(durable, Applied())
    pacing.note_staged(MANY_ROWS)
    applied = Applied(trx=7, gsn=MANY_ROWS)
    assert not pacing.is_due(durable, applied)
    clock.sleep(REST_S / 2)
    assert not pacing.is_due(durable, applied)
    grown = FlushPoint(position=8, trx=8, gsn=MANY_ROWS + 1)
    assert pacing.is_due(grown, applied)
    clock.sleep(REST_S * 0.9)
    assert not pacing.is_due(grown, Applied(trx=8, gsn=MANY_ROWS + 1))
    clock.sleep(REST_S * 0.2)
    assert pacing.is_due(grown, Applied(trx=8, gsn=MANY_ROWS + 1))


def test_a_lake_waits_between_two_batches_unless_many_rows_wait() -> None:
    """Each batch makes a commit in each table."""
    clock = Hands()
    pacing = Pacing(clock, batch_s=5.0)
    assert _is_due(pacing, 5)
    pacing.note_staged(3)
    clock.sleep(4.9)
    assert not _is_due(pacing, 6)
    assert _is_due(pacing, 6, ENOUGH_ROWS)
    clock.sleep(0.2)
    assert _is_due(pacing, 7)
