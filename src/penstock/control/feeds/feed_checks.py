"""Periodic looks at the groups of a pipeline with [stage], for the metrics.

Each second the windows of all groups; every ten seconds the number of stale mutations of the groups
that this instance works on, and each minute whether their rows were applied in order. Not here: the
counters (`penstock.stage.metered`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

import structlog

from penstock.control.feeds.feed_groups import GroupWorker
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.staging import Group, StagingDatabase, StagingSession, group_name

if TYPE_CHECKING:
    from penstock.stage.metered import StagingMetrics

logger = structlog.get_logger(__name__)
LOOK_S = 1.0
STALE_S = 10.0
ORDER_S = 60.0
ORDER_ROWS_MAX = 100_000
"""Rows of a table whose order is checked in a minute: they are sorted."""


class Checks:
    """Thread that looks while a with block runs."""

    def __init__(
        self,
        database: StagingDatabase,
        workers: Mapping[str, GroupWorker],
        metrics: StagingMetrics,
        *,
        retire_after_s: float,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Prepare the thread. workers: by the groups' names; more may be added."""
        self._database, self._workers, self._metrics = database, workers, metrics
        self._retire_after_s, self._clock = retire_after_s, clock
        self._stale_s = self._order_s = clock.monotonic_s()
        self._checked: dict[Group, Hlc] = {}
        self._stop = threading.Event()
        self._thread = SupervisedThread(
            "checks", self._run, wait=self._stop.wait, on_error=lambda *_: metrics.windows.clear()
        )

    def __enter__(self) -> None:
        """Begin."""
        self._thread.start()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._database.open_session() as session:
                    while not self._stop.is_set():
                        self.look(session)
                        self._stop.wait(LOOK_S)
            except PenstockError as error:
                self._metrics.windows.clear()  # unknown windows are not shown
                logger.warning("groups not checked", code=error.code, error=error.message)
                self._stop.wait(LOOK_S)

    def look(self, session: StagingSession) -> None:
        """Do what is due now."""
        now_s = self._clock.monotonic_s()
        workers = list(self._workers.values())
        for worker in workers:
            session.window(worker.group)
        ours = [worker.group for worker in workers if worker.state == "working"]
        if now_s - self._stale_s >= STALE_S:
            self._stale_s = now_s
            for group in ours:
                self.count_stale(session, group)
        if now_s - self._order_s >= ORDER_S:
            self._order_s = now_s
            for group in ours:
                self.check_order(session, group)

    def count_stale(self, session: StagingSession, group: Group) -> None:
        """Count unapplied mutations older than the retired time."""
        committed = session.window(group).committed
        before = Hlc(max(0, committed.nanos - round(self._retire_after_s * 1e9)))
        for table in session.staged_tables(group):
            count = session.stale_count(table, before)
            if count is not None:
                self._metrics.stale.labels(group_name(group), table.name).set(count)

    def check_order(self, session: StagingSession, group: Group) -> None:
        """Check that rows were applied in the order of their times, since the last check."""
        committed = session.window(group).committed
        after = self._checked.get(group, ZERO)
        for table in session.staged_tables(group):
            count = session.inconsistent_count(table, after=after, limit=ORDER_ROWS_MAX)
            self._metrics.inconsistent.labels(group_name(group), table.name).inc(count)
            if count:
                logger.error("mutations applied out of order", table=str(table), keys=count)
        self._checked[group] = committed
