"""Interval between the flushes of an extractor while changes arrive without a pause."""

from __future__ import annotations

import pytest

from penstock.extract.report import FLUSH_INTERVAL_S_MAX, FLUSH_SHARE, Pace

SHORTEST_S = 0.1


def test_flushes_that_are_quick_come_as_often_as_configured() -> None:
    """An idle machine with a fast disk is never slower than the configuration says."""
    pace = Pace()
    for began_s in range(5):
        pace.note_flush(began_s, began_s + SHORTEST_S * FLUSH_SHARE / 2)
        assert pace.flush_interval_s(SHORTEST_S) == SHORTEST_S


def test_slow_flushes_come_less_often_until_they_are_quick_again() -> None:
    """A single slow one changes nothing."""
    pace = Pace()
    slow_s = 3 * SHORTEST_S * FLUSH_SHARE
    pace.note_flush(0.0, slow_s)
    assert pace.flush_interval_s(SHORTEST_S) == SHORTEST_S
    pace.note_flush(1.0, 1.0 + slow_s)
    assert pace.flush_interval_s(SHORTEST_S) == pytest.approx(3 * SHORTEST_S)
    pace.note_flush(2.0, 2.0 + slow_s)
    pace.note_flush(3.0, 3.001)
    assert pace.flush_interval_s(SHORTEST_S) == SHORTEST_S


@pytest.mark.parametrize(("shortest_s", "interval_s"), [(0.1, FLUSH_INTERVAL_S_MAX), (5.0, 5.0)])
def test_the_interval_has_a_bound(shortest_s: float, interval_s: float) -> None:
    """A longer interval in the configuration stays as it is."""
    pace = Pace()
    for began_s in (0.0, 30.0):
        pace.note_flush(began_s, began_s + 20.0)
    assert pace.flush_interval_s(shortest_s) == interval_s


def test_a_flush_begins_the_interval_and_the_count() -> None:
    """The next interval begins at the end of a flush."""
    pace = Pace(rows_since_flush=7)
    pace.note_flush(1.0, 2.5)
    assert (pace.rows_since_flush, pace.flushed_s) == (0, 2.5)
