"""Tables of which the target may have changes that are yet to be applied, or lack some.

So it is for a while behind a copy without a lock, and where somebody else writes to a table. What
is strict does not work there (`Staging.direct`).
"""

from __future__ import annotations

from penstock.host.clock import Clock
from penstock.model import PenstockError, TableName
from penstock.ports.refusals import RowsUnexpected

UNSURE_FOR_S = 600.0


class UnsureTables:
    """Learns of them by errors."""

    def __init__(self, clock: Clock) -> None:
        """None yet."""
        self._clock = clock
        self._until: dict[TableName, float] = {}

    def learn(self, error: PenstockError) -> None:
        """Take note of the table that an error is about, if it is of this kind."""
        if isinstance(error, RowsUnexpected):
            name = TableName(error.fields["schema"], error.fields["name"])
            self._until[name] = self._clock.monotonic_s() + UNSURE_FOR_S

    def now(self) -> frozenset[TableName]:
        """Those tables."""
        now = self._clock.monotonic_s()
        return frozenset(name for name, until in self._until.items() if now < until)
