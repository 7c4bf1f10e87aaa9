"""When the open segment is read for the next batch.

A batch costs some 0.05 s of CPU whatever its size, as much as 10,000 rows do. While many rows come
without a pause, batches of what has just become durable would cost the cores that make the changes
and read them. So they are made four times a second then; at once again when the flow pauses. Closed
segments are never waited with.
"""

from __future__ import annotations

from penstock.host.clock import REAL_CLOCK, Clock

MANY_ROWS = 10_000
INTERVAL_S = 0.25
PAUSE_S = 0.15  # longer than the log is silent between two flushes of a flow


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
        wait_s = INTERVAL_S if row_count >= MANY_ROWS else 0.0
        self._from_s = self._clock.monotonic_s() + wait_s

    def is_due(self, durable_trx: int) -> bool:
        """Whether to read the open segment. durable_trx: the last transaction on the disk."""
        now_s = self._clock.monotonic_s()
        if durable_trx != self._end:
            self._end, self._grew_s = durable_trx, now_s
        return now_s >= self._from_s or now_s - self._grew_s >= PAUSE_S
