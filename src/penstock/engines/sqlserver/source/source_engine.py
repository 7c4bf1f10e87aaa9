"""Engine of `penstock extract` for a SQL Server source: its change tables.

State beside the log: `sqlserver-tables.json`, the captured tables with their capture instances, and
`relations.json`. Both are written before what they describe becomes durable, and know older
instances until the log is durable behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import structlog

from penstock.engines.sqlserver.errors import (
    ChangesLost,
    DatabaseReplaced,
    InstanceMissing,
    PositionAhead,
)
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.beginning import (
    given_place,
    present_place,
    read_database,
)
from penstock.engines.sqlserver.source.captures import Captures, instance_missing
from penstock.engines.sqlserver.source.caught_up import CaughtUp
from penstock.engines.sqlserver.source.instances import Book, KnownTables, instances_of, lsn_text
from penstock.engines.sqlserver.source.reader import ChangeReader, Session, read_newest
from penstock.engines.sqlserver.source.resends import Resends
from penstock.engines.sqlserver.source.shapes import KnownRelations, Shapes
from penstock.engines.sqlserver.source.stream import ChangeStream
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import FlushPoint, PenstockError, Run, TableDefinition, TableName
from penstock.ports.source import (
    RELATIONS_FILE,
    EnginePlace,
    ExtractOptions,
    LogAccess,
    Origin,
    Ranges,
    ServerEnd,
    SourceEngine,
    SourceStream,
)

TABLES_FILE = "sqlserver-tables.json"
SAVE_INTERVAL_S = 10.0
BLOCK_BYTES = 512  # that a log block's number counts

logger = structlog.get_logger(__name__)


class SQLServerEngine(SourceEngine):
    """Source engine over the change tables of one database."""

    name = "change tables"

    def __init__(
        self,
        opens: Callable[[], Session],
        *,
        tables: Callable[[], Sequence[TableDefinition]],
        selects: Callable[[TableName], bool],
        asks: bool,
        options: ExtractOptions,
        begin: int = 0,
        start_lsn: str | None = None,
    ) -> None:
        """Keep the arguments.

        Args:
            opens: Opens a session.
            tables: Returns the definitions of the captured tables as they are now.
            selects: Whether the pipeline file captures a table.
            asks: Whether later tables have to be requested.
            options: Of the extraction.
            begin: Where an empty log begins, by a handover; 0 without one.
            start_lsn: Where an empty log begins, by the pipeline file.
        """
        self._opens = opens
        self._tables = tables
        self._selects = selects
        self._asks = asks
        self._options = options
        self._begin = begin
        self._start_lsn = start_lsn
        self._reader: ChangeReader | None = None
        self._captures: Captures | None = None
        self._resends: Resends | None = None
        self._stream: ChangeStream | None = None
        self._place: EnginePlace | None = None
        self._clock: Clock = REAL_CLOCK
        self._saved_s = float("-inf")
        self._caught_up = CaughtUp(clock=REAL_CLOCK)

    def begin(self, place: EnginePlace) -> Origin:
        """Return the identity. For a new log, store first where it begins.

        Raises CdcDisabled, DatabaseReplaced, InstanceMissing for a table that the server does not
        capture, and the errors of `Book.check` and `given_place`.
        """
        self._place, self._clock = place, place.clock
        self._caught_up = CaughtUp(clock=place.clock)
        captures = Captures(place.state, selects=self._selects, asks=self._asks, clock=place.clock)
        state = place.state.load(TABLES_FILE, KnownTables)
        book = Book.load(state, captures.takes)
        book.may_take = captures.may_take
        shapes = Shapes(
            self._tables,
            is_whole=self._options.full_before_images,
            reads_renamed=not self._asks,
        )
        shapes.load(place.state.load(RELATIONS_FILE, KnownRelations))
        self._captures = captures
        self._reader = ChangeReader(self._opens, book, shapes)
        self._resends = Resends(
            place.state, self._reader, base=place.base, name=self.name, clock=place.clock
        )
        captures.begin(book, is_new=state is None)
        session = self._reader.session
        if state is not None:
            self._reader.check_database()
        database = read_database(session)
        begin = self._first_place(session) if state is None else 0
        instances = instances_of(session.execute(statements.INSTANCES))
        if state is None:
            book.begin = begin
            book.saw_newest(read_newest(session).position)
            book.check(instances, begin, exists=lambda _: True)
            self._check_all_captured(book)
        captures.note_begun()
        self._save()
        starts = [one.least - 1 for one in instances if one.source_id in book.tables and one.least]
        return Origin(
            identity={"engine": "sqlserver", "database": database.name},
            resend_from=max(starts, default=None),
            begin=begin,
        )

    def _first_place(self, session: Session) -> int:
        if self._begin:
            return self._begin
        if self._start_lsn is not None:
            instances = instances_of(session.execute(statements.INSTANCES))
            captured = [one for one in instances if one.table and self._selects(one.table)]
            place = given_place(session, self._start_lsn, captured)
        else:
            place = present_place(session)
        logger.info("log begins", position=lsn_text(place.position), how=place.how)
        return place.position

    def _check_all_captured(self, book: Book) -> None:
        """Raise InstanceMissing for a table without a capture instance."""
        for definition in self._tables():
            if definition.source_id not in book.tables:
                raise instance_missing(definition.name)

    @property
    def reader(self) -> ChangeReader:
        """Return the reader; `begin` comes first."""
        assert self._reader is not None, "begin() comes first"
        return self._reader

    def close(self) -> None:
        """End all sessions."""
        if self._reader is not None:
            self._reader.close()

    def server_end(self) -> ServerEnd:
        """Return the newest captured commit: later ones are not known yet."""
        session = self._opens()
        try:
            newest = read_newest(session)
        finally:
            session.close()
        return ServerEnd(position=newest.position, now_us=newest.now_us)

    def heartbeats(self) -> AbstractContextManager[Callable[[int], None]]:
        """Return a sender that does nothing: nothing is ever written to the source."""
        return nullcontext(lambda _: None)

    def text(self, position: int) -> str:
        return lsn_text(position)

    def bytes_between(self, first: int, last: int) -> int:
        return bytes_between(first, last)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Run one attempt; its sessions end with it."""
        try:
            yield
        finally:
            self._stream = None
            if self._resends is not None:
                self._resends.forget_stream()
            self.reader.close()

    def ranges(self, _durable: FlushPoint) -> AbstractContextManager[Ranges] | None:
        return None

    def stream(self, durable: FlushPoint) -> AbstractContextManager[SourceStream]:
        """Return a stream of the change tables."""
        logger.info("stream started", position=lsn_text(durable.position))
        self.reader.book.saw_log(durable.position)
        self._stream = ChangeStream(
            self.reader, start=durable, caught_up=self._caught_up, clock=self._clock
        )
        return nullcontext(self._stream)

    def saw(self, run: Run) -> None:
        """Do nothing."""

    def before_flush(self, end: FlushPoint) -> None:  # noqa: ARG002 - the port's
        """Save what the log is about to depend on; the newest captured commit now and then."""
        reader = self.reader
        is_due = self._clock.monotonic_s() - self._saved_s >= SAVE_INTERVAL_S
        if reader.book.is_changed or reader.shapes.is_changed or is_due:
            self._save()

    def _save(self) -> None:
        assert self._place is not None, "begin() comes first"
        reader = self.reader
        reader.book.is_changed = False
        self._place.state.save(TABLES_FILE, reader.book.state())
        if reader.shapes.is_changed:
            reader.shapes.is_changed = False
            self._place.state.save(RELATIONS_FILE, reader.shapes.state())
        self._saved_s = self._clock.monotonic_s()

    def has_outstanding(self) -> bool:
        """Return whether rows are being sent again."""
        return self._resends is not None and self._resends.is_at_work

    def tend(self, log_access: LogAccess) -> None:
        """Carry out requests: begin or end the capture of tables, send their rows again."""
        assert self._captures is not None, "begin() comes first"
        reader = self.reader
        self._captures.tend(
            reader.book,
            lambda: instances_of(reader.session.execute(statements.INSTANCES)),
            log_access.durable.position,
        )
        if reader.book.is_changed:
            self._save()
        if self._resends is not None and self._stream is not None:
            self._resends.tend(self._stream, log_access)

    def is_loss(self, error: PenstockError) -> bool:
        """Return whether the server no longer has changes that the log lacks."""
        return isinstance(error, ChangesLost | DatabaseReplaced | InstanceMissing | PositionAhead)


def bytes_between(first: int, last: int) -> int:
    """Return the bytes of log between two positions, as far as they tell it.

    Blocks of one virtual log file count 512 bytes. The sizes of files are not known, so that two
    positions in different files count as one byte, which says only that there is something.
    """
    if not first or last <= first:
        return 0
    if first >> 48 != last >> 48:
        return 1
    blocks = (last >> 16 & 0xFFFFFFFF) - (first >> 16 & 0xFFFFFFFF)
    return max(blocks * BLOCK_BYTES, 1)
