"""Deletion of mutations that were applied long enough ago, in any mode.

It works in steps, each of few rows, and with rests, on a connection of its own: neither applying
nor marking waits for it, even if millions of rows are due.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from penstock.feeds.position import LeaseLost
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.ports.feeds import Group, StagingDatabase, StagingSession, group_name

logger = structlog.get_logger(__name__)
faults.declare("stage.retire.step")

INTERVAL_S = 60.0
REST = 6.0  # a rest is so many times as long as the step before: other work continues beside it
AGAIN_S = 10.0
FROM_START_S = 3600.0
"""Seconds between sessions that look at everything.

A session continues where it has retired up to, and a feed may send older rows again."""


class Retiring:
    """Work that retires the rows of one group while its lease is held. Used by one thread."""

    def __init__(
        self,
        database: StagingDatabase,
        group: Group,
        *,
        after_s: float,
        check: Callable[[], None],
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Prepare. after_s: age before the last committed checkpoint. check: raises LeaseLost."""
        self._database, self._group, self._clock = database, group, clock
        self._after_s, self._check = after_s, check
        self._count = 0

    def run(self, wait: Callable[[float], bool]) -> None:
        """Retire until wait(seconds) returns true, or the lease is lost; errors are tried again.

        No other work depends on it, so its errors do not end the work beside it.
        """
        wait_s = 0.0
        while not wait(wait_s):
            try:
                with self._database.open_session() as session:
                    if self._until_old(session, wait):
                        return
                wait_s = 0.0
            except LeaseLost:
                return
            except PenstockError as error:
                wait_s = AGAIN_S
                logger.warning(
                    "applied mutations not retired",
                    group=group_name(self._group),
                    error=error.message,
                    wait_s=wait_s,
                )

    def _until_old(self, session: StagingSession, wait: Callable[[float], bool]) -> bool:
        """Retire with this session until another one is due; return whether to end."""
        until_s = self._clock.monotonic_s() + FROM_START_S
        while self._clock.monotonic_s() < until_s:
            if wait(self.step(session)):
                return True
        return False

    def step(self, session: StagingSession) -> float:
        """Retire few rows of each table, or old checkpoints; return the seconds to rest."""
        self._check()
        began_s = self._clock.monotonic_s()
        committed = session.window(self._group).committed
        before = Hlc(max(0, committed.nanos - round(self._after_s * 1e9)))
        count = sum(session.retire(table, before) for table in session.staged_tables(self._group))
        faults.point("stage.retire.step")
        self._count += count
        if count:
            return (self._clock.monotonic_s() - began_s) * REST
        session.forget_checkpoints(self._group, before)
        if self._count:
            logger.info(
                "applied mutations retired", group=group_name(self._group), rows=self._count
            )
            self._count = 0
        return INTERVAL_S
