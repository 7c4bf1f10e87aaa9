"""Engine of `penstock extract` for an Oracle source: its redo, by LogMiner.

State beside the log: `oracle-redo.json`, the incarnation and the low watermarks, and
`relations.json`, the shapes of tables. A watermark that is older than the log's end is valid too,
so the first is saved now and then; shapes are saved before rows that depend on them are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta

import structlog

from penstock.codec.oracle.scn import OraclePosition
from penstock.engines.oracle.beginning import Beginning, switch_log, take_beginning
from penstock.engines.oracle.connect import Connection
from penstock.engines.oracle.source import statements
from penstock.engines.oracle.source.assembly import Limits
from penstock.engines.oracle.source.captures import Captures
from penstock.engines.oracle.source.catalogue import Catalogue
from penstock.engines.oracle.source.emission import Emission
from penstock.engines.oracle.source.entries import Entry, Spill
from penstock.engines.oracle.source.errors import (
    IncarnationChanged,
    LobLost,
    RedoLost,
    ScnAhead,
    TransactionTorn,
)
from penstock.engines.oracle.source.lobs import LobValue, ReadLob
from penstock.engines.oracle.source.mining import Miner
from penstock.engines.oracle.source.resends import Resends
from penstock.engines.oracle.source.shapes import KnownShapes, Shapes
from penstock.engines.oracle.source.stream import POLL_S, RedoStream
from penstock.engines.oracle.source.views import read_clock
from penstock.engines.oracle.source.watermarks import REDO_FILE, KnownRedo, Watermarks
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
)

SAVE_INTERVAL_S = 10.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

logger = structlog.get_logger(__name__)


class OracleEngine(SourceEngine):
    """Source engine over the redo of one database."""

    name = "LogMiner"

    def __init__(
        self,
        opens: Callable[[], Connection],
        opens_tables: Callable[[], Connection],
        *,
        tables: Callable[[], Sequence[TableDefinition]],
        selects: Callable[[TableName], bool],
        options: ExtractOptions,
        container: str = "",
        beginning: Beginning | None = None,
        start_scn: str | None = None,
        limits: Limits | None = None,
        poll_s: float | None = None,
    ) -> None:
        """Keep the arguments.

        Args:
            opens: Opens a session for mining.
            opens_tables: Opens a session in the container of the tables.
            tables: Returns the definitions of the captured tables as they are now.
            selects: Whether a new table is captured.
            options: Of the extraction.
            container: Pluggable database of the tables; empty without one.
            beginning: Where an empty log begins, by a handover; None without one.
            start_scn: Where an empty log begins, by the pipeline file.
            limits: Of open transactions.
            poll_s: Seconds between windows while nothing happens.
        """
        self._opens = opens
        self._opens_tables = opens_tables
        self._tables = tables
        self._selects = selects
        self._options = options
        self._container = container
        self._beginning = beginning
        self._start_scn = start_scn
        self._limits = limits or Limits()
        self._poll_s = POLL_S if poll_s is None else poll_s
        self._place: EnginePlace | None = None
        self._clock: Clock = REAL_CLOCK
        self._miner: Miner | None = None
        self._shapes: Shapes | None = None
        self._captures: Captures | None = None
        self._resends_made: Resends | None = None
        self._stream: RedoStream | None = None
        self._marks = Watermarks()
        self._catalogue = Catalogue(opens_tables)
        self._saved_s = float("-inf")

    # ------------------------------------------------------------------ begin and end

    def begin(self, place: EnginePlace) -> Origin:
        """Return the identity. For a new log, find first where it begins.

        Raises:
            IncarnationChanged: The database was opened with RESETLOGS since.
            ScnAhead: The server has not reached startScn.
            RedoLost: The redo of startScn is gone.
        """
        self._place, self._clock = place, place.clock
        miner = self._miner = Miner(self._opens, clock=place.clock)
        known = place.state.load(REDO_FILE, KnownRedo)
        if known is not None:
            miner.incarnation = known.incarnation
        self._marks = Watermarks.load(known)
        miner.check()
        state = place.state.load(RELATIONS_FILE, KnownShapes)
        followed = None if known is None or state is None else state.tables
        captures = self._captures = Captures(
            place.state, selects=self._selects, known=followed, clock=place.clock
        )
        shapes = self._shapes = Shapes(
            self._tables,
            self._catalogue.read_columns,
            takes=captures.takes,
            read_scn=self._catalogue.read_scn,
            is_whole=self._options.full_before_images,
        )
        self._resends_made = Resends(
            place.state, shapes, self._opens_tables, name=self.name, clock=place.clock
        )
        shapes.load(state)
        shapes.encoding = self._catalogue.read_encoding()
        captures.note_tables(shapes.tables)
        self._note_objects()
        if known is None:
            self._marks.begin = self._first_position()
        incarnation = miner.incarnation
        assert incarnation is not None, "the session checked it"
        self._save()
        first = self._marks.first
        can_resend = first is not None and first[1] > miner.oldest_scn()
        return Origin(
            identity={
                "engine": "oracle",
                "database": incarnation.name,
                "dbid": str(incarnation.dbid),
                "container": self._container,
            },
            resend_from=first[0] if can_resend and first is not None else None,
            begin=self._marks.begin,
        )

    def _first_position(self) -> int:
        beginning = self._beginning
        if beginning is None and self._start_scn is None:
            session = self._opens()
            try:
                beginning = take_beginning(session)
                how = switch_log(session)
            finally:
                session.close()
            logger.info("log begins", scn=beginning.scn, how=how)
        if beginning is not None:
            position = OraclePosition.of_scn(beginning.scn)
            self._marks.note(position.ordinal, beginning.low_scn)
            return position.ordinal
        return self._given_position(self._start_scn or "")

    def _given_position(self, text: str) -> int:
        """Return the position of startScn. The transactions open then are found by their rows."""
        ((now,),) = self.miner.session.execute(statements.CURRENT_SCN)
        position = OraclePosition.parse(text)
        if position.scn > now:
            raise ScnAhead(
                f"startScn is {position.scn}, and the server is at SCN {now}",
                hint="Name an SCN that the server has reached: SELECT CURRENT_SCN FROM V$DATABASE;",
            )
        oldest = self.miner.oldest_scn()
        if position.scn <= oldest:
            raise RedoLost(
                f"startScn is {position.scn}, and the oldest redo begins at SCN {oldest}",
                hint="Name a later SCN, or restore archived logs with RMAN.",
            )
        logger.info("log begins", scn=position.scn, how="startScn")
        return position.ordinal

    def close(self) -> None:
        """End all sessions."""
        if self._miner is not None:
            self._miner.close()
        self._catalogue.close()

    @property
    def miner(self) -> Miner:
        """Return the reader of windows; `begin` comes first."""
        assert self._miner is not None, "begin() comes first"
        return self._miner

    @property
    def shapes(self) -> Shapes:
        """Return the shapes of the captured tables; `begin` comes first."""
        assert self._shapes is not None, "begin() comes first"
        return self._shapes

    @property
    def _resends(self) -> Resends:
        assert self._resends_made is not None, "begin() comes first"
        return self._resends_made

    def _note_objects(self) -> None:
        """Note the object numbers of the captured tables, by which their rows are found."""
        self.shapes.note_objects(self._catalogue.read_objects(self.shapes.tables))

    def _refresh(self) -> None:
        self.shapes.refresh()
        self._note_objects()

    def _read_lob(self, scn: int) -> ReadLob:
        def read(entry: Entry, column: str) -> LobValue:
            table = self.shapes.table_of(entry.table)
            return self._catalogue.read_lob(table, column, entry, scn)

        return read

    # ------------------------------------------------------------------ the port

    def server_end(self) -> ServerEnd:
        """Return the server's present SCN, and its clock."""
        session = self._opens()
        try:
            now = read_clock(session)
            ((scn,),) = session.execute(statements.CURRENT_SCN)
        finally:
            session.close()
        return ServerEnd(
            position=OraclePosition.of_scn(scn).ordinal,
            now_us=(now - EPOCH) // timedelta(microseconds=1),
        )

    def heartbeats(self) -> AbstractContextManager[Callable[[int], None]]:
        """Return a sender that does nothing: nothing is ever written to the source."""
        return nullcontext(lambda _: None)

    def text(self, position: int) -> str:
        return str(OraclePosition(position))

    def bytes_between(self, first: int, last: int) -> int:
        """Return 1 for a later position: SCNs do not tell bytes."""
        return int(0 < first < last)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Run one attempt; its sessions end with it."""
        try:
            yield
        finally:
            self.close()

    def ranges(self, _durable: FlushPoint) -> AbstractContextManager[Ranges] | None:
        return None

    @contextmanager
    def stream(self, durable: FlushPoint) -> Iterator[RedoStream]:
        """Return a stream of the redo."""
        assert self._place is not None, "begin() comes first"
        assert self._captures is not None, "begin() comes first"
        place = self._place
        logger.info("stream started", position=self.text(durable.position))
        self._marks.rewind(durable.position)
        self._refresh()
        captures = self._captures
        stream = RedoStream(
            self.miner,
            self.shapes,
            self._marks,
            lambda start: Emission(
                self.shapes,
                start,
                read_lob=self._read_lob,
                time_us=self.miner.time_us,
                may_capture=self._selects,
                on_drop=captures.note_dropped,
            ),
            start=durable,
            spill=lambda: Spill(place.spill, place.files),
            container=self._container,
            limits=self._limits,
            refresh=self._refresh,
            clock=self._clock,
            poll_s=self._poll_s,
        )
        self._stream = stream
        try:
            yield stream
        finally:
            self._stream = None
            self._resends.forget_stream()
            stream.close()

    def saw(self, run: Run) -> None:
        """Do nothing."""

    def before_flush(self, end: FlushPoint) -> None:  # noqa: ARG002 - the port's
        """Save the shapes that the log is about to depend on; the watermarks now and then."""
        is_due = self._clock.monotonic_s() - self._saved_s >= SAVE_INTERVAL_S
        if self.shapes.is_changed or (is_due and self._marks.is_changed):
            self._save()

    def _save(self) -> None:
        assert self._place is not None, "begin() comes first"
        incarnation = self.miner.incarnation
        assert incarnation is not None, "begin() read it"
        if self.shapes.is_changed:
            self.shapes.is_changed = False
            self._place.state.save(RELATIONS_FILE, self.shapes.state())
        self._marks.is_changed = False
        self._place.state.save(REDO_FILE, self._marks.state(incarnation))
        self._saved_s = self._clock.monotonic_s()

    def has_outstanding(self) -> bool:
        """Return whether rows are being sent again."""
        return self._resends_made is not None and self._resends_made.is_at_work

    def tend(self, log_access: LogAccess) -> None:
        """Carry out requests: begin or end the capture of tables, send their rows again."""
        assert self._captures is not None, "begin() comes first"
        self._captures.tend(self._refresh, self.shapes.is_captured)
        if self.shapes.is_changed:
            self._save()
        if self._stream is not None:
            self._resends.tend(self._stream, log_access)

    def is_loss(self, error: PenstockError) -> bool:
        """Return whether the server no longer has changes that the log lacks."""
        return isinstance(error, IncarnationChanged | RedoLost | TransactionTorn | LobLost)
