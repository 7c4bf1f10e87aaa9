"""Time and size of the next batch.

A batch costs as much as many thousand rows do, whatever its size. While many rows come without a
pause, batches of what has just become durable would cost the cores that make the changes
and read them. So the more rows a batch had, the later is the next one, by a second at most; at
once where enough rows wait, when the flow pauses, and while a backlog is read: it is a flow that
was made long ago, and the sooner its first rows are applied the sooner are the last.

A batch without rows only ends files that are applied. While it waits for the batch before it, none
with rows is staged: so it is made when the log has rested for longer than an extractor that
catches up is silent.

One connection applies, batch after batch; while it waits for rows nothing is applied. So a batch
that is staged meanwhile is about as large as what can be staged in that time, and the first one
after a pause is small.
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
    """Told of every batch, asked at every look; the two may come from two threads."""

    def __init__(self, clock: Clock = REAL_CLOCK) -> None:
        """Nothing is waited for."""
        self._clock = clock
        self._from_s = float("-inf")
        self._end = -1
        self._grew_s = float("-inf")

    def staged(self, row_count: int) -> None:
        """A batch of so many changes is staged, and the next one is looked for."""
        share = min(1.0, row_count / INTERVAL_ROWS) if row_count >= MANY_ROWS else 0.0
        self._from_s = self._clock.monotonic_s() + share * INTERVAL_S

    def is_due(self, durable: FlushPoint, applied: Applied) -> bool:
        """Whether to make a batch of what is behind `applied`.

        durable: up to where the log is on the disk.
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

    size_bytes: of the last batch that was applied, 0 for none. seconds: what its steps took;
    staging and applying the next one are expected to take as long for a byte.
    """
    stage_s, apply_s = seconds.get("stage", 0.0), seconds.get("apply", 0.0)
    if not size_bytes or stage_s <= 0:
        return FIRST_BYTES
    return min(MAX_BYTES, max(FIRST_BYTES, int(size_bytes * GROWTH * apply_s / stage_s)))
