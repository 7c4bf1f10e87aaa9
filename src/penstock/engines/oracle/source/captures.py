"""Begin and end of capturing single tables, by request; see `model.table_requests`.

The redo has the changes of all tables; penstock decides which of them go into the log. With a
target, a table that is created later is captured once it was requested, as its rows have to be
copied first. The source does not send rows again: such a request is refused. Not here: the copy of
rows (the planner).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.request_files import RequestFiles, table_not_captured
from penstock.host.state_file import StateFiles
from penstock.model import PenstockError, TableName
from penstock.model.table_requests import Capture, TableRequest

LOOK_INTERVAL_S = 0.5


class Captures:
    """Captured tables, and the answers to requests. Used by the extractor's thread."""

    def __init__(
        self,
        state: StateFiles,
        *,
        selects: Callable[[TableName], bool],
        known: Collection[TableName] | None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Take over the requests that were carried out.

        Args:
            state: State files.
            selects: Whether a table that is created later is captured at once.
            known: Tables that the log has; None for a log that begins now, which takes all.
            clock: Clock of the process.
        """
        self._files = RequestFiles(state)
        self._selects = selects
        self._known = None if known is None else set(known)
        self._clock = clock
        self._added: set[TableName] = set()
        self._removed: set[TableName] = set()
        self._next_look_s = float("-inf")
        requests, answers = self._files.read()
        for request in requests.tables:
            if request.capture is Capture.ADDED and answers.is_done(request):
                self._added.add(request.table)
            elif request.capture in (Capture.REMOVED, Capture.LEFT):
                self._removed.add(request.table)

    def takes(self, table: TableName) -> bool:
        """Return whether a table is captured."""
        if table in self._removed:
            return False
        if self._known is None or table in self._added or table in self._known:
            return True
        return self._selects(table)

    def note_tables(self, tables: Collection[TableName]) -> None:
        """Note the tables of the log's begin: later ones are new."""
        self._known = {*(self._known or ()), *tables}

    def note_dropped(self, table: TableName) -> None:
        """Note the end of a table: one of its name is new."""
        self._added.discard(table)
        if self._known is not None:
            self._known.discard(table)

    def tend(self, refresh: Callable[[], None], is_captured: Callable[[TableName], bool]) -> None:
        """Answer requests; cheap if there are none.

        Args:
            refresh: Reads the definitions of the tables that `takes` takes.
            is_captured: Whether a table is among them.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        requests, answers = self._files.read()
        for request in answers.open(requests.tables):
            try:
                self._carry_out(request, refresh, is_captured)
            except PenstockError as error:
                if error.retry == "backoff":
                    raise
                self._files.answer(request, error)
            else:
                self._files.answer(request, None)

    def _carry_out(
        self,
        request: TableRequest,
        refresh: Callable[[], None],
        is_captured: Callable[[TableName], bool],
    ) -> None:
        table = request.table
        if request.capture is not Capture.ADDED:
            self._added.discard(table)
            self._removed.add(table)
            refresh()
            return
        self._removed.discard(table)
        self._added.add(table)
        refresh()
        if not is_captured(table):
            self._added.discard(table)
            raise table_not_captured(table, "LogMiner")
