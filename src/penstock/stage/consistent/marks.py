"""From what the target has applied to what the staging database says is applied.

Rows first, then checkpoints, so that a checkpoint that is applied has all of its rows marked. Both
may be repeated; so nothing is lost when this ends anywhere, and no commit has two phases. Applied
rows are deleted once they are old enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import structlog

from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.retry import RECONNECT, Patience
from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.progress import SharedProgress
from penstock.ports.stage_groups import time_through
from penstock.ports.staging import (
    Group,
    StagedTable,
    StagingDatabase,
    StagingSession,
    group_name,
)

logger = structlog.get_logger(__name__)
faults.declare("stage.mark.rows", "stage.mark.checkpoint")

OnMarked = Callable[[Mapping[StagedTable, int], Hlc], None]
POLL_S = 0.1
RETIRE_INTERVAL_S = 60.0
RETIRE_REST = 6.0  # so many times as long as it took: the work goes on beside it


class Marking:
    """Marks what one group's target has applied. Used by one thread.

    target: connects to the target. retire_after_s: how long applied rows stay behind the last
    applied checkpoint. on_marked: is told what was marked, and up to which time.
    """

    def __init__(
        self,
        database: StagingDatabase,
        group: Group,
        log_id: str,
        *,
        target: Callable[[], SharedProgress],
        retire_after_s: float,
        on_marked: OnMarked = lambda _marked, _applied: None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Nothing is connected yet."""
        self._database = database
        self._group = group
        self._log_id = log_id
        self._target = target
        self._retire_after_s = retire_after_s
        self._on_marked = on_marked
        self._clock = clock
        self._retire_at_s = float("-inf")
        self._retired_count = 0
        self._marked: Hlc | None = None

    def run(self, wait: Callable[[float], bool]) -> None:
        """Until wait(seconds) says so; errors that may pass are tried again.

        Raises what does not pass.
        """
        patience = Patience(RECONNECT)
        while True:
            try:
                if self._connected(wait, patience):
                    return
            except PenstockError as error:
                wait_s = patience.wait_s(error)
                if error.retry != "backoff" or wait_s is None:
                    raise
                logger.warning("marking goes on", error=error.message, wait_s=round(wait_s, 1))
                if wait(wait_s):
                    return

    def _connected(self, wait: Callable[[float], bool], patience: Patience) -> bool:
        with ExitStack() as stack:
            session = stack.enter_context(self._database.opened())
            target = self._target()
            stack.callback(target.close)
            self._marked = session.window(self._group).committed
            while True:
                self.mark(session, target)
                patience.worked()
                self._retire_if_due(session)
                if wait(POLL_S):
                    self.mark(session, target)
                    return True

    def mark(self, session: StagingSession, target: SharedProgress) -> None:
        """Mark what the target has by now."""
        applied = time_through(target.read_shared(self._log_id).position)
        marked = self._marked or ZERO
        if applied <= marked:
            return
        tables = session.staged_tables(self._group)
        found = session.mark_applied_through(tables, applied, after=marked)
        self._on_marked(found, applied)
        faults.point("stage.mark.rows")
        session.commit(self._group, applied)
        faults.point("stage.mark.checkpoint")
        self._marked = applied

    def _retire_if_due(self, session: StagingSession) -> None:
        """A step: few rows of each table, and a rest that depends on how long they took."""
        began_s = self._clock.monotonic_s()
        if began_s < self._retire_at_s or self._marked is None:
            return
        before = Hlc(max(0, self._marked.nanos - round(self._retire_after_s * 1e9)))
        count = sum(session.retire(table, before) for table in session.staged_tables(self._group))
        now_s = self._clock.monotonic_s()
        wait_s = (now_s - began_s) * RETIRE_REST if count else RETIRE_INTERVAL_S
        self._retire_at_s = now_s + wait_s
        self._retired_count += count
        if self._retired_count and not count:
            logger.info(
                "applied mutations retired", group=group_name(self._group), rows=self._retired_count
            )
            self._retired_count = 0
