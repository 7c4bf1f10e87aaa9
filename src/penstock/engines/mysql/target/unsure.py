"""Tables of which the target may have changes that are yet to be applied, or lack some.

This happens for a while after a copy without a lock, and where somebody else writes to a table.
Strict replay fails there (`replay.py`).
"""

from __future__ import annotations

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import TableName

UNSURE_FOR_S = 600.0


class UnsureTables:
    """Filled by the applying side, read by the staging side; one for all connections of a load."""

    def __init__(self, clock: Clock = REAL_CLOCK) -> None:
        """None yet."""
        self._clock = clock
        self._until: dict[TableName, float] = {}

    def note(self, source: TableName) -> None:
        """The target refused rows of this table as not what the log says."""
        self._until[source] = self._clock.monotonic_s() + UNSURE_FOR_S

    def for_s(self, source: TableName) -> float:
        """How much longer this table is unsure; 0: it is not."""
        return max(0.0, self._until.get(source, 0.0) - self._clock.monotonic_s())
