"""Begin and end of capturing single tables, by request; see `model.table_requests`.

Change tables have what the server captures, of all tables that its operator enabled; penstock
decides which of them go into the log. With a target, a table that is enabled later is captured once
it was requested, as its rows have to be copied first. Without one the patterns decide. Not here:
enabling (`enable.py`), the copy of rows (the planner), rows that are sent again (`resends.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.engines.sqlserver.errors import InstanceMissing, TableRenamed
from penstock.engines.sqlserver.source.instances import Book, Instance, enable_text
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.request_files import RequestFiles
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
        asks: bool,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the arguments.

        selects: whether the pipeline file captures a table. asks: whether a table that is not known
        when the log begins has to be requested.
        """
        self._files = RequestFiles(state)
        self._selects = selects
        self._asks = asks
        self._clock = clock
        self._is_beginning = False
        self._added: set[TableName] = set()
        self._removed: set[TableName] = set()
        self._next_look_s = float("-inf")

    def takes(self, table: TableName) -> bool:
        """Return whether a table that is not known yet is captured."""
        if table in self._removed:
            return False
        if table in self._added:
            return True
        return self._selects(table) and (self._is_beginning or not self._asks)

    def may_take(self, table: TableName) -> bool:
        """Return whether a table is captured, or may be once that is requested."""
        is_chosen = self._selects(table) or table in self._added
        return is_chosen and table not in self._removed

    def begin(self, book: Book, *, is_new: bool) -> None:
        """Take over the requests that were carried out. is_new: the log begins now."""
        self._is_beginning = is_new
        requests, answers = self._files.read()
        for request in requests.tables:
            if request.capture is Capture.ADDED and answers.is_done(request):
                self._added.add(request.table)
            elif request.capture in (Capture.REMOVED, Capture.LEFT):
                self._take_out(request.table, book)

    def note_begun(self) -> None:
        """Note that the tables of the log's beginning are known."""
        self._is_beginning = False

    def tend(self, book: Book, instances: Callable[[], list[Instance]], last: int) -> None:
        """Answer requests; cheap if there are none.

        Args:
            book: The captured tables.
            instances: Returns the server's instances.
            last: The log has all commits up to this one.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        requests, answers = self._files.read()
        for request in answers.open(requests.tables):
            try:
                if not self._carry_out(request, book, instances, last):
                    continue
            except TableRenamed:
                raise  # of another table; the request is carried out later
            except PenstockError as error:
                if error.retry == "backoff":
                    raise
                self._files.answer(request, error)
            else:
                self._files.answer(request, None)

    def _carry_out(
        self,
        request: TableRequest,
        book: Book,
        instances: Callable[[], list[Instance]],
        last: int,
    ) -> bool:
        """Carry out a request; return whether that is done.

        A table that was captured by another name has to end by that first.
        """
        if request.capture is not Capture.ADDED:
            self._take_out(request.table, book)
            return True
        self._removed.discard(request.table)
        self._added.add(request.table)
        found = instances()
        book.check(found, last, exists=lambda _: True)
        if book.id_of(request.table) is None:
            if any(one.table == request.table and one.source_id in book.tables for one in found):
                return False
            self._added.discard(request.table)
            raise instance_missing(request.table)
        return True

    def _take_out(self, table: TableName, book: Book) -> None:
        self._added.discard(table)
        self._removed.add(table)
        source_id = book.id_of(table)
        if source_id is not None:
            book.leave(source_id)


def instance_missing(table: TableName) -> InstanceMissing:
    """Return the error for a table that the server does not capture."""
    return InstanceMissing(
        f"the server does not capture {table}: it has no capture instance",
        hint=f"Run at the database, as db_owner: {enable_text(*table)}",
        table=str(table),
    )
