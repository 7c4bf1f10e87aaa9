"""Determine time and size of the next batch.

A batch has a fixed cost of as much as many thousand rows. While many rows arrive without a pause,
batches of rows that have just become durable would take processor time from the processes that
write and read them. So the more rows a batch had, the later the next one begins, by at most a
second. It begins at once if enough rows wait, if the flow pauses, and while a backlog is read:
those rows are old, so an early first batch makes the last one early as well.

A batch without rows only ends files that are applied. While it waits for the previous batch, none
with rows is staged. So it is created once the log has rested longer than an extractor that catches
up is silent.

One connection applies batch after batch, and applies nothing while it waits for rows. So a batch
that is staged meanwhile is about as large as the amount that can be staged in that time, and the
first one after a pause is small.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import FlushPoint
from penstock.ports.target import Applied

MANY_ROWS = 10_000
ENOUGH_ROWS = 100_000
INTERVAL_S = 1.0
INTERVAL_ROWS = 50_000  # of a batch that are followed by the whole interval; fewer by a part of it
PAUSE_S = 0.15  # longer than the log is silent between two flushes of a flow
REST_S = 1.0
BACKLOG_S = 5.0  # what was committed so long ago was not committed beside us

FIRST_BYTES = 8 * 2**20  # of segments; a batch may always have so many
MAX_BYTES = 512 * 2**20
# Part of a batch's cost is fixed: its size may grow a little faster than its cost.
GROWTH = 1.25


class Pacing:
    """Pace of batches. Two threads may use it: one reports batches, the other asks."""

    def __init__(self, clock: Clock = REAL_CLOCK) -> None:
        """Begin without a wait."""
        self._clock = clock
        self._from_s = float("-inf")
        self._end = -1
        self._grew_s = float("-inf")

    def note_staged(self, row_count: int) -> None:
        """Record that a batch of this many changes is staged, and the next one is due to be looked
        for.
        """
        share = min(1.0, row_count / INTERVAL_ROWS) if row_count >= MANY_ROWS else 0.0
        self._from_s = self._clock.monotonic_s() + share * INTERVAL_S

    def is_due(self, durable: FlushPoint, applied: Applied) -> bool:
        """Return whether to create a batch of the rows after `applied`.

        durable: end of the log on disk.
        """
        now_s = self._clock.monotonic_s()
        if durable.trx != self._end:
            self._end, self._grew_s = durable.trx, now_s
        rested_s = now_s - self._grew_s
        if durable.trx <= applied.trx:
            return rested_s >= REST_S
        if now_s >= self._from_s or durable.gsn - applied.gsn >= ENOUGH_ROWS:
            return True
        age_us = self._clock.now_us() - durable.commit_time_us if durable.commit_time_us else 0
        return rested_s >= PAUSE_S or age_us >= BACKLOG_S * 1e6


def next_batch_bytes(size_bytes: int, seconds: Mapping[str, float]) -> int:
    """Return the bytes of segments that the next batch may have.

    size_bytes: size of the last applied batch, 0 for none. seconds: duration of its steps; staging
    and applying the next one are expected to take as long for each byte.
    """
    stage_s, apply_s = seconds.get("stage", 0.0), seconds.get("apply", 0.0)
    if not size_bytes or stage_s <= 0:
        return FIRST_BYTES
    return min(MAX_BYTES, max(FIRST_BYTES, int(size_bytes * GROWTH * apply_s / stage_s)))
