"""Puts the rows of tables into the log again, as they are asked for (`penstock resend`).

The requests are in a state file (`model.table_requests`), each is answered in another. Reading and
placing is that of any other reload (`reload.py`): a marker RELOAD, then all rows as they are at one
position, in front of every change behind it. A request is answered once its rows are durable; one
that a crash left unanswered is carried out again.
"""

from __future__ import annotations

from penstock.engines.postgres.source.ddl_watch import Reload
from penstock.engines.postgres.source.stream import PostgresSource
from penstock.engines.postgres.source.table_actions import TableActions
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import TableName
from penstock.model.table_requests import TableRequest
from penstock.ports.request_files import RequestFiles, ResendRefused
from penstock.ports.source import StateFiles

faults.declare("extract.resend.before", "extract.resend.after")

LOOK_INTERVAL_S = 0.5


class Resends:
    """The requests to send rows again. Used by the extractor's thread."""

    def __init__(self, state: StateFiles, *, clock: Clock = REAL_CLOCK) -> None:
        """Store the files; nothing is read yet."""
        self._files = RequestFiles(state)
        self._clock = clock
        self._under_way: dict[TableName, tuple[TableRequest, Reload]] = {}
        self._next_look_s = float("-inf")

    def tend(self, actions: TableActions, stream: PostgresSource) -> None:
        """Answer what is done, and begin what is asked for; cheap when there is nothing."""
        for table, (request, action) in list(self._under_way.items()):
            if not actions.watch.is_pending(action):
                del self._under_way[table]
                faults.point("extract.resend.before")
                self._files.answer_resend(request, actions.cancelled.pop(table, None))
                faults.point("extract.resend.after")
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        requests, answers = self._files.read()
        for request in answers.open_resends(requests.tables):
            if request.table not in self._under_way:
                self._begin(request, actions)
        if self._under_way:
            stream.ask_for_position()

    def _begin(self, request: TableRequest, actions: TableActions) -> None:
        try:
            action = actions.watch.ask_again(request.table)
        except ResendRefused as error:
            self._files.answer_resend(request, error)
            return
        if action is not None:
            self._under_way[request.table] = request, action
