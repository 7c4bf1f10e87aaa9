"""Tables of which the target may have changes that are yet to be applied, or lack some.

So it is for a while behind a copy without a lock, and where somebody else writes to a table. What
is strict does not work there (`replay.py`).
"""

from __future__ import annotations

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import TableName

UNSURE_FOR_S = 600.0


class UnsureTables:
    """Told by who applies, asked by who stages; for one load, over all its connections."""

    def __init__(self, clock: Clock = REAL_CLOCK) -> None:
        """None yet."""
        self._clock = clock
        self._until: dict[TableName, float] = {}

    def note(self, source: TableName) -> None:
        """The target refused rows of this table as not what the log says."""
        self._until[source] = self._clock.monotonic_s() + UNSURE_FOR_S

    def for_s(self, source: TableName) -> float:
        """How much longer this is one of them; 0: it is none."""
        return max(0.0, self._until.get(source, 0.0) - self._clock.monotonic_s())
