"""Tables for which the target may already have changes that are to be applied, or lack some.

This happens for a while after a copy without a lock, and if another program writes to a table.
Strict replay fails there (`replay.py`).
"""

from __future__ import annotations

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import TableName

UNSURE_FOR_S = 600.0


class UnsureTables:
    """Unsure tables, noted when applying, read when staging; one for all connections of a load."""

    def __init__(self, clock: Clock = REAL_CLOCK) -> None:
        """Begin without unsure tables."""
        self._clock = clock
        self._until: dict[TableName, float] = {}

    def note(self, source: TableName) -> None:
        """Note that the target refused rows of this table because it differs from the log."""
        self._until[source] = self._clock.monotonic_s() + UNSURE_FOR_S

    def for_s(self, source: TableName) -> float:
        """Return how much longer this table is unsure, in seconds; 0 if it is not."""
        return max(0.0, self._until.get(source, 0.0) - self._clock.monotonic_s())
