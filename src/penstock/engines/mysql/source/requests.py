"""Handle requests about single tables while the binlog is read: capture, and resending of rows.

The binlog holds the rows of all tables: penstock decides which of them go into the log. The
decoding thread begins to capture a table between two transactions, and then the request is
answered: a copy of its rows at a later point finds every change after that point in the log.
Capture begins where the binlog ended at the time of the request: earlier rows are in the copy, and
may have been written when the table had another shape. Not here: the rows it has already
(`control.run.table_copy`), the notes on tables (`schema_history.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import structlog

from penstock.engines.mysql.source.assemble import Assembler
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.live_tables import LiveTables
from penstock.engines.mysql.source.reload import REASON, give_again, open_reload
from penstock.engines.mysql.source.schema_history import SchemaHistory
from penstock.engines.mysql.source.strategies import WITH_SNAPSHOTS
from penstock.engines.mysql.source.stream import BinlogSource
from penstock.engines.mysql.source.unsupported import LOAD_AGAIN, RowsChangedUnseen
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import ConnectFailed, ConnectionLost
from penstock.host.request_files import (
    RequestFiles,
    ResendRefused,
    resend_cancelled,
    table_not_captured,
    table_unknown,
)
from penstock.host.state_file import StateFiles
from penstock.model import FlushPoint, PenstockError, TableDefinition, TableName
from penstock.model.patterns import as_pattern
from penstock.model.table_requests import Capture, TableRequest
from penstock.ports.bulk import PointUnfit
from penstock.ports.source import BaseRows, NoBase
from penstock.sql.decoding import Visit

LOOK_INTERVAL_S = 0.5


class Reached:
    """Check that the stream has reached the binlog's end of the time when a request was
    first seen.
    """

    def __init__(self, end: Callable[[], int], has_given: Callable[[int], bool]) -> None:
        """Keep the functions. end: where the binlog ends. has_given: whether everything before a
        position was emitted.
        """
        self._end = end
        self._has_given = has_given
        self._ends: dict[int, int] = {}

    def __call__(self, number: int) -> bool:
        """Return whether the stream has reached that position. number: of the request."""
        if number not in self._ends:
            self._ends[number] = self._end()
        return self._has_given(self._ends[number])


class Captures:
    """Requests about capture, and their answers. Used by the extractor's thread."""

    def __init__(
        self,
        url: str,
        state: StateFiles,
        *,
        takes: Callable[[TableName], bool],
        is_reached: Callable[[int], bool],
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the settings. takes: whether the configuration at this process's start captures a
        table.

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
        """Return whether the configuration captures a table of this name at present."""
        return name not in self._removed and (self._given(name) or name in self._added)

    def begin(self, book: SchemaHistory) -> None:
        """Apply earlier additions and removals of tables before the first stream, whatever was
        noted.
        """
        requests, answers = self._files.read()
        for request in requests.tables:
            if request.capture is Capture.ADDED and not answers.is_done(request):
                continue  # later, with the stream
            if request.capture is not Capture.FILE:
                self._ask(book, request)
        book.take_asked()
        for request in answers.open(requests.tables):
            if request.capture is not Capture.ADDED:
                self._files.answer(request, None)

    def tend(self, book: SchemaHistory) -> None:
        """Take a step with the requests; cheap if there are none."""
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
        """Return why a table cannot be captured, or None; raise for a lost connection, which is
        retried.
        """
        try:
            with open_catalog(self._url) as connection:
                captured_tables(connection, [as_pattern(request.table)])
        except PenstockError as error:
            if error.retry == "backoff":
                raise
            return error
        return None


faults.declare("extract.resend.before", "extract.resend.after")

logger = structlog.get_logger()
ATTEMPTS_MAX = 20
PAUSE_S = 0.1


@dataclass(slots=True, kw_only=True)
class _Work:
    """A table that is being read. request: None if the table needs it."""

    request: TableRequest | None
    visit: Visit[Assembler]


class Resends:
    """Requests to send a table's rows again, and tables that need it. Used by one thread.

    A table needs it if a statement changed rows and no row event shows how (`schema_history.py`).
    One table after the other is read at one position of the binlog and put in front of every change
    after it (`reload.py`). A request is answered once its rows are durable; a request that a crash
    left unanswered is carried out again. An error answers a request, and the stream continues; if
    the rows are needed, it stops the stream.
    """

    def __init__(
        self,
        url: str,
        state: StateFiles,
        *,
        book: SchemaHistory,
        live: LiveTables,
        is_reached: Callable[[int], bool],
        reader: str,
        base: BaseRows | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the settings. is_reached: whether the stream is where the binlog ended when a
        request was first seen.

        reader: name of the binlog's reader, as the server knows it. base: of the log.
        """
        self._base = base or NoBase()
        self._url = url
        self._files = RequestFiles(state)
        self._book = book
        self._live = live
        self._is_reached = is_reached
        self._reader = reader
        self._clock = clock
        self._server = ""
        self._work: _Work | None = None
        self._failed: dict[TableRequest, PenstockError] = {}
        self._next_look_s = float("-inf")

    @property
    def is_at_work(self) -> bool:
        """Return whether a request is under way."""
        return self._work is not None

    def note_stream(self, server: str, durable: FlushPoint) -> None:
        """Note a new stream, from a server of this name: work that is not in the log begins
        again.
        """
        self._server = server
        if self._work is not None and not _is_done(self._work, durable):
            self._work = None

    def tend(self, stream: BinlogSource, durable: FlushPoint) -> None:
        """Answer finished requests, and begin the next one; cheap if there are none."""
        if self._work is not None:
            if _is_done(self._work, durable):
                if self._work.request is not None:
                    self._answer(self._work.request)
                self._work = None
            return
        for table, reason in self._book.awaiting().items():
            visit = stream.visit(partial(self._needed_steps, table, reason, stream))
            self._work = _Work(request=None, visit=visit)
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        requests, answers = self._files.read()
        for request in answers.open_resends(requests.tables):
            if request in self._failed:
                self._answer(request)
            elif self._is_reached(request.resend_id):
                self._begin(request, stream)
                return

    def _answer(self, request: TableRequest) -> None:
        faults.point("extract.resend.before")
        self._files.answer_resend(request, self._failed.pop(request, None))
        faults.point("extract.resend.after")

    def _begin(self, request: TableRequest, stream: BinlogSource) -> None:
        visit = stream.visit(lambda assembler: self._steps(request, stream, assembler))
        self._work = _Work(request=request, visit=visit)

    # -- in the thread that decodes ----------------------------------------------------------

    def _steps(
        self, request: TableRequest, stream: BinlogSource, assembler: Assembler
    ) -> Iterator[int]:
        try:
            table = self._book.fold(*request.table)
            of_source = request.comes_with_copy
            yield from self._reload(table, stream, assembler, of_source=of_source)
        except (ConnectionLost, ConnectFailed):
            raise  # the request is carried out by the next stream
        except PenstockError as error:
            self._failed[request] = error
            _take_out_begun(request.table, assembler, error)

    def _needed_steps(
        self, table: TableName, reason: str, stream: BinlogSource, assembler: Assembler
    ) -> Iterator[int]:
        """Read a table whose rows are unknown since a statement."""
        try:
            if self._live.read(table) is not None:
                yield from self._reload(table, stream, assembler, reason=reason)
        except PenstockError as error:
            if error.retry == "backoff":
                raise
            if self._live.read(table) is None:
                # The stream will reach the statement that dropped or renamed it.
                logger.info("table to be read again is gone", table=str(table))
                _take_out_begun(table, assembler, error)
                return
            raise RowsChangedUnseen(
                f"rows of {table} changed, and the binlog does not say how: {reason}. The table "
                f"cannot be read again: {error.message}",
                hint=f"{error.hint} Or: {LOAD_AGAIN}",
                table=str(table),
            ) from error

    def _reload(
        self,
        table: TableName,
        stream: BinlogSource,
        assembler: Assembler,
        *,
        reason: str = "",
        of_source: bool = False,
    ) -> Iterator[int]:
        """Read a table.

        reason: why it is needed, empty if it was requested. of_source: the log's base may lack
        changes of the table, which was not captured before.
        """
        then, version = self._present(table)
        is_of_base = not reason and not of_source
        if is_of_base and self._sent_of_base(then, stream, assembler):
            return
        for attempt in range(ATTEMPTS_MAX):
            with open_reload(self._url, then, live=self._live, server=self._server) as job:
                if not reason and _differs(job.definition, then):
                    raise resend_cancelled(table, version, version + 1)
                position = assembler.place_of(job.position)
                if position is not None:
                    yield position
                    try:
                        job.feed(
                            assembler,
                            self._book,
                            gives_up=lambda: stream.is_closing,
                            reason=reason or REASON,
                        )
                    except PointUnfit:
                        if attempt == ATTEMPTS_MAX - 1:
                            raise
                    else:
                        return
            # A server may send a transaction before its rows are visible.
            self._clock.sleep(PAUSE_S)
            if stream.is_closing:
                raise ConnectionLost("reload given up: the stream is being closed")
        raise PointUnfit(
            f"{ATTEMPTS_MAX} times the stream was ahead of what can be read of {table}",
            hint="Give the same command again.",
        )

    def _sent_of_base(
        self, then: TableDefinition, stream: BinlogSource, assembler: Assembler
    ) -> bool:
        """Put a table's rows into the log again from the log's base; return whether the base has
        them.
        """
        table = then.name
        trx = assembler.decoder.trx
        with self._base.at(table, trx, gives_up=lambda: stream.is_closing) as found:
            if found is None:
                return False
            current = self._book.read_again(then, assembler.place)
            if not found.fits(current):
                return False
            count = give_again(assembler, self._book, found, current)
        logger.info("table sent again from the base", table=str(table), row_count=count)
        return True

    def _present(self, table: TableName) -> tuple[TableDefinition, int]:
        """Return a captured table's present definition, and the version that its rows have in the
        log.
        """
        version = self._book.version_of(table)
        if version is None:
            raise table_not_captured(table, self._reader)
        definition = self._live.read(table)
        if definition is None:  # some servers do not list a table while they alter it
            self._clock.sleep(PAUSE_S)
            definition = self._live.read(table)
        if definition is None:
            raise table_unknown(table)
        if definition.engine.upper() not in WITH_SNAPSHOTS:
            raise ResendRefused(
                f"rows of {table} cannot be put into the log again: its storage engine "
                f"({definition.engine}) has no snapshots, so they cannot be read at one moment",
                hint=f"Give it another engine: alter table {table} engine = InnoDB; or write the "
                "missing rows at the source again: they arrive with its binlog.",
                table=str(table),
            )
        return definition, version


def _take_out_begun(table: TableName, assembler: Assembler, error: PenstockError) -> None:
    """Raise ConnectionLost if rows of a failed reload were emitted, because the next stream lacks
    them.
    """
    if assembler.is_unfinished:
        raise ConnectionLost(
            f"rows of {table} are removed from the log again: {error.message}",
            hint="Nothing to do: the stream continues without them.",
        ) from error


def _is_done(work: _Work, durable: FlushPoint) -> bool:
    """Return whether the log has the rows that the visit emitted."""
    return work.visit.finished and durable.trx >= work.visit.trx


def _differs(now: TableDefinition, then: TableDefinition) -> bool:
    """Return whether a table has other columns, or another key."""
    return (now.columns, now.identity_columns) != (then.columns, then.identity_columns)
