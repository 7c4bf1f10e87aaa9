"""Thread work that marks in the staging database what the target has applied.

Not here: marking itself (`stage.position.settle`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import structlog

from penstock.host.retry import RECONNECT, Patience
from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.ports.progress import SharedProgress
from penstock.ports.staging import Group, StagedTable, StagingDatabase, StagingSession
from penstock.ports.target import Applied
from penstock.stage.position import check_not_ahead, settle

logger = structlog.get_logger(__name__)

OnMarked = Callable[[Mapping[StagedTable, int], Hlc], None]
POLL_S = 0.1


class Marking:
    """Marker of the mutations that one group's target has applied. Used by one thread.

    target: connects to the target. on_marked: gets the marked numbers, and up to which time.
    """

    def __init__(
        self,
        database: StagingDatabase,
        group: Group,
        log_id: str,
        *,
        target: Callable[[], SharedProgress],
        on_marked: OnMarked = lambda _marked, _applied: None,
    ) -> None:
        """Prepare; nothing is connected yet."""
        self._database = database
        self._group = group
        self._log_id = log_id
        self._target = target
        self._on_marked = on_marked
        self._settled: Applied | None = None

    def run(self, wait: Callable[[float], bool]) -> None:
        """Mark until wait(seconds) returns true; transient errors are tried again.

        Raises other errors.
        """
        patience = Patience(RECONNECT)
        while True:
            try:
                if self._connect(wait, patience):
                    return
            except PenstockError as error:
                wait_s = patience.wait_s(error)
                if error.retry != "backoff" or wait_s is None:
                    raise
                logger.warning("marking goes on", error=error.message, wait_s=round(wait_s, 1))
                if wait(wait_s):
                    return

    def _connect(self, wait: Callable[[float], bool], patience: Patience) -> bool:
        with ExitStack() as stack:
            session = stack.enter_context(self._database.open_session())
            target = self._target()
            stack.callback(target.close)
            while True:
                self.mark(session, target)
                patience.note_progress()
                if wait(POLL_S):
                    self.mark(session, target)
                    return True

    def mark(self, session: StagingSession, target: SharedProgress) -> None:
        """Mark what the target has by now. Raises PositionAhead."""
        there = target.read_shared(self._log_id)
        if there == self._settled:
            check_not_ahead(self._group, session.window(self._group), there)
        else:
            settle(session, self._group, there, self._on_marked)
            self._settled = there
