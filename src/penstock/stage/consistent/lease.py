"""A lease, held while a block runs: renewed beside it, and given up at its end.

Work under it asks repeatedly whether it is still ours: it may be taken away, and it
expires when the staging database cannot be asked. Not here: the fence against late commits of the
work (`penstock.ports.progress.SharedProgress.take_over`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import structlog

from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError
from penstock.ports.staging import Lease, StagingDatabase
from penstock.stage.position import lease_lost

logger = structlog.get_logger(__name__)
faults.declare("stage.lease.acquired", "stage.lease.renew", "stage.lease.release")

RETRY_S = 1.0


class HeldLease:
    """Lease that is renewed by a thread of its own at half of its remaining time."""

    def __init__(
        self, database: StagingDatabase, lease: Lease, lifetime_s: float, clock: Clock
    ) -> None:
        """Hold it until `close`. lifetime_s: as it was acquired, just now."""
        self._database = database
        self._lease = lease
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._until_s = clock.monotonic_s() + lifetime_s
        self._why = ""
        self._ended = threading.Event()
        self._thread = SupervisedThread("lease", self._run, wait=self._ended.wait, clock=clock)
        self._thread.start()

    def check(self) -> None:
        """Raise LeaseLost unless it is still ours."""
        if not self._why and self._clock.monotonic_s() >= self._until_s:
            self._why = "it could not be renewed before it expired"
        if self._why:
            raise lease_lost(", ".join(self._lease.names), self._why)

    def _run(self) -> None:
        soon_s = min(RETRY_S, self._lifetime_s / 10)
        wait_s = max(soon_s, (self._until_s - self._clock.monotonic_s()) / 2)
        while not self._ended.wait(wait_s):
            began_s = self._clock.monotonic_s()
            try:
                faults.point("stage.lease.renew")
                with self._database.open_session() as session:
                    renewed = session.renew(self._lease, self._lifetime_s)
            except PenstockError as error:
                logger.warning("lease not renewed", error=error.message)
                wait_s = soon_s
                continue
            if renewed is None:
                self._why = "another instance has taken it away"
                return
            self._lease, self._until_s = renewed, began_s + self._lifetime_s
            wait_s = self._lifetime_s / 2

    def close(self) -> None:
        """Give the lease up, if it is still ours."""
        self._ended.set()
        self._thread.join()
        try:
            faults.point("stage.lease.release")
            with self._database.open_session() as session:
                session.release(self._lease)
        except PenstockError as error:
            logger.warning("lease not released, it expires", error=error.message)


@contextmanager
def hold_lease(
    database: StagingDatabase,
    names: Sequence[str],
    lifetime_s: float,
    hostname: str,
    *,
    clock: Clock = REAL_CLOCK,
) -> Iterator[HeldLease | datetime]:
    """Yield the lease while the block runs, or the time until which another has it.

    Raises the errors of the staging database.
    """
    with database.open_session() as session:
        found = session.acquire(names, lifetime_s, hostname)
    if isinstance(found, datetime):
        yield found
        return
    faults.point("stage.lease.acquired")
    logger.info("lease acquired", names=list(names), hostname=hostname)
    lease = HeldLease(database, found, lifetime_s, clock)
    try:
        yield lease
    finally:
        lease.close()
