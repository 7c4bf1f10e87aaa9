"""Begins and ends the capture of single tables while the binlog is read.

The binlog holds the rows of all tables: penstock decides which of them go into the log. The thread
that decodes takes a table in between two transactions, and then the request is answered: whoever
copies its rows at a later point finds every change behind that point in the log. Capture begins
where the binlog ended when it was asked for: earlier rows are in the copy, and may have been
written when the table had another shape. Not here: the rows it has already (`control.table_copy`),
the notes on tables (`schema_history.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.schema_history import SchemaHistory
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError, TableName
from penstock.model.patterns import as_pattern
from penstock.model.table_requests import Capture, TableRequest
from penstock.ports.request_files import RequestFiles
from penstock.ports.source import StateFiles

LOOK_INTERVAL_S = 0.5


class Reached:
    """Whether the stream is where the binlog ended when a request was first seen."""

    def __init__(self, end: Callable[[], int], has_given: Callable[[int], bool]) -> None:
        """end: where the binlog ends. has_given: whether all before a position was given out."""
        self._end = end
        self._has_given = has_given
        self._ends: dict[int, int] = {}

    def __call__(self, number: int) -> bool:
        """number: of the request."""
        if number not in self._ends:
            self._ends[number] = self._end()
        return self._has_given(self._ends[number])


class Captures:
    """The requests about capture, and their answers. Used by the extractor's thread."""

    def __init__(
        self,
        url: str,
        state: StateFiles,
        *,
        takes: Callable[[TableName], bool],
        is_reached: Callable[[int], bool],
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """takes: what the configuration said when this process began.

        is_reached: whether the stream is where the binlog ended when a request was first seen.
        """
        self._url = url
        self._files = RequestFiles(state)
        self._given = takes
        self._is_reached = is_reached
        self._clock = clock
        self._added: set[TableName] = set()
        self._removed: set[TableName] = set()
        self._under_way: list[TableRequest] = []
        self._next_look_s = float("-inf")

    def takes(self, name: TableName) -> bool:
        """Whether the configuration captures a table of this name, as things are now."""
        return name not in self._removed and (self._given(name) or name in self._added)

    def begin(self, book: SchemaHistory) -> None:
        """Before the first stream: the tables that were added and removed, whatever was noted."""
        requests, answers = self._files.read()
        for request in requests.tables:
            if request.capture is Capture.ADDED and not answers.is_done(request):
                continue  # when the stream is there
            if request.capture is not Capture.FILE:
                self._ask(book, request)
        book.take_asked()
        for request in answers.open(requests.tables):
            if request.capture is not Capture.ADDED:
                self._files.answer(request, None)

    def tend(self, book: SchemaHistory) -> None:
        """Take a step with the requests; cheap when there are none."""
        if self._under_way:
            if not book.is_asked:
                for request in self._under_way:
                    self._files.answer(request, None)
                self._under_way.clear()
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        requests, answers = self._files.read()
        for request in answers.open(requests.tables):
            if request.capture is Capture.ADDED:
                error = self._look(request)
                if error is not None:
                    self._files.answer(request, error)
                    continue
                if not self._is_reached(request.capture_id):
                    continue
            self._ask(book, request)
            self._under_way.append(request)

    def _ask(self, book: SchemaHistory, request: TableRequest) -> None:
        is_added = request.capture is Capture.ADDED
        (self._added if is_added else self._removed).add(request.table)
        (self._removed if is_added else self._added).discard(request.table)
        book.ask(request.table, captured=is_added)

    def _look(self, request: TableRequest) -> PenstockError | None:
        """Why a table cannot be captured; a lost connection is raised, and tried again."""
        try:
            with open_catalog(self._url) as connection:
                captured_tables(connection, [as_pattern(request.table)])
        except PenstockError as error:
            if error.retry == "backoff":
                raise
            return error
        return None
