"""Provide MySQL and MariaDB as a source: resume state, tables, stream and failover behind
one port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager

import structlog

from penstock.codec.mysql.binlog import make_decoder
from penstock.codec.mysql.binlog_position import (
    BINLOG_HEAD_BYTES,
    BINLOG_OFFSET_BITS,
    BinlogPosition,
)
from penstock.codec.mysql.gtids import GtidSet, MariaGtids
from penstock.engines.mysql.connect import Connection, value
from penstock.engines.mysql.source.assemble import Assembler, Limits, StreamMark
from penstock.engines.mysql.source.beginning import Beginning
from penstock.engines.mysql.source.catalog import open_catalog
from penstock.engines.mysql.source.client import (
    BinlogConnection,
    DumpOptions,
    Gtids,
    open_binlog,
    replica_uuid_for,
    server_id_for,
)
from penstock.engines.mysql.source.dump_errors import (
    RESET_HINT,
    LogPurged,
    LogReset,
    PositionUnfit,
    ServerBehind,
)
from penstock.engines.mysql.source.heartbeat import Heartbeats
from penstock.engines.mysql.source.live_tables import LiveTables
from penstock.engines.mysql.source.prepared import PreparedFiles
from penstock.engines.mysql.source.requests import Captures, Reached, Resends
from penstock.engines.mysql.source.resume_state import ResumeStates, physical
from penstock.engines.mysql.source.schema_history import SchemaHistory
from penstock.engines.mysql.source.status import (
    ResumePoint,
    ServerIdentity,
    binlog_files,
    check_resume,
    parse_gtids,
    read_clock,
    read_identity,
    read_log_identity,
    read_status,
)
from penstock.engines.mysql.source.stream import BinlogSource
from penstock.engines.mysql.source.table_notes import AllNotes
from penstock.engines.mysql.source.unsupported import SeenUnknown
from penstock.model import FlushPoint, PenstockError, Run, TableDefinition, TableName
from penstock.ports.source import (
    EnginePlace,
    ExtractOptions,
    LogAccess,
    Origin,
    Ranges,
    ServerEnd,
    SourceEngine,
    SourceStream,
)

logger = structlog.get_logger()
NOTES_FILE = "binlog_tables.json"
HEARTBEAT_S = 10.0
RUN_BYTES = 32 * 1024 * 1024  # of rows, also inside a transaction
LOSSES = (LogPurged, LogReset, PositionUnfit, ServerBehind)


class MySQLEngine(SourceEngine):
    """The `SourceEngine` of a MySQL or MariaDB source."""

    def __init__(
        self,
        url: str,
        *,
        tables: Sequence[TableDefinition],
        options: ExtractOptions,
        beginning: Beginning | None,
        task: str,
        takes: Callable[[TableName], bool] = lambda _: True,
        takes_renamed: Callable[[TableName], bool] = lambda _: True,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """Keep the settings.

        tables: the tables captured now. beginning: where a log begins that is still empty; None
        continues with the state that is kept beside the log. task: distinguishes this pipeline from
        every other, for our ids as a replica. takes: whether a table that is created later under a
        name is captured from its CREATE on. takes_renamed: whether a table that gets this name is
        captured, at once or on request.
        """
        self._url = url
        self._tables = tables
        self._takes, self._takes_renamed = takes, takes_renamed
        self._options = options
        self._beginning = beginning
        self._server_id = options.server_id or server_id_for(task)
        self._replica_uuid = replica_uuid_for(task)
        self._heartbeat_s = heartbeat_s
        self._book: SchemaHistory | None = None
        self._live: LiveTables | None = None
        self._stream: BinlogSource | None = None
        self._last_mark: StreamMark | None = None
        self._captures: Captures | None = None
        self._resends: Resends | None = None
        self._sizes: dict[int, int] = {}
        self._fold = False

    @property
    def name(self) -> str:
        """Our id as a replica."""
        return f"server_id {self._server_id}"

    def begin(self, place: EnginePlace) -> Origin:
        """Ask the server for its identity. For a new log, store first where it begins."""
        self._place = place
        place.files.make_directory(place.run)
        reached = Reached(lambda: self.server_end().position, self._has_given)
        self._captures = Captures(
            self._url,
            place.state,
            takes=self._takes,
            is_reached=reached,
            clock=place.clock,
        )
        self._resume_states = ResumeStates(place.state, place.run, place.files, place.clock)
        with open_catalog(self._url, application_name="penstock stream") as connection:
            self._identity = read_identity(connection)
            self._fold = _folds(connection)
            oldest = binlog_files(connection)[0]
        notes = place.state.load(NOTES_FILE, AllNotes)
        last = self._resume_states.last
        if last is None and self._beginning is not None:
            begin = self._beginning
            mark = StreamMark(
                position=begin.position.ordinal,
                base=begin.position.base,
                shift=0,
                gtids=begin.gtids,
                prepared=(),
            )
            self._make_book(None, mark.position)
            self._save_notes()
            self._resume_states.save(mark, self._identity.name, self._log_identity(mark, ("", "")))
        else:
            # Without notes the catalogue's present content is no more than a hint.
            self._make_book(notes or AllNotes(), last.mark.position if last is not None else 0)
        assert self._book is not None
        assert self._live is not None
        self._resends = Resends(
            self._url,
            place.state,
            book=self._book,
            live=self._live,
            is_reached=reached,
            reader=self.name,
            base=place.base,
            clock=place.clock,
        )
        last = self._resume_states.last
        resend_from = None
        if last is not None and last.server == self._identity.name:
            first = BinlogPosition.at(oldest.name, BINLOG_HEAD_BYTES).ordinal
            resend_from = first + (last.mark.shift << BINLOG_OFFSET_BITS)
        return Origin(
            identity={"engine": "mysql", "flavour": str(self._identity.version.flavour)},
            resend_from=resend_from,
            begin=last.mark.position if last is not None else 0,
        )

    def _make_book(self, notes: AllNotes | None, begin: int) -> None:
        self._live = LiveTables(self._url, fold=self._fold)
        self._book = SchemaHistory(
            self._live,
            notes,
            tables=self._tables,
            begin=begin,
            is_present=self._beginning is None or self._beginning.is_present,
            altered=self._beginning.altered if self._beginning is not None else (),
            takes=self._captures.takes if self._captures is not None else self._takes,
            takes_renamed=self._takes_renamed,
            fold=self._fold,
            is_whole=self._options.full_before_images,
        )
        if self._captures is not None:
            self._captures.begin(self._book)

    def server_end(self) -> ServerEnd:
        """Return the binlog's end, as the log counts.

        A stream that is past it reads a file that is no longer the server's.
        """
        stream = self._stream
        known = stream.known_end if stream is not None else 0
        with open_catalog(self._url, application_name="penstock position") as connection:
            now_us = read_clock(connection)
            end = read_status(connection).position
            files = binlog_files(connection)
        last = self._resume_states.last
        shift = last.mark.shift if last is not None else 0
        position = end.ordinal + (shift << BINLOG_OFFSET_BITS)
        self._sizes = {
            BinlogPosition.at(file.name, 0).number + shift: file.size_bytes for file in files
        }
        if stream is not None and stream is self._stream and self._is_settled and position < known:
            stream.fail(
                LogReset(
                    f"we have read up to {self.text(known)}, the server's binlog ends at {end}",
                    hint=RESET_HINT,
                )
            )
        return ServerEnd(position=position, now_us=now_us)

    @contextmanager
    def heartbeats(self) -> Iterator[Callable[[int], None]]:
        with closing(Heartbeats(self._url, self._server_id)) as heartbeats:
            yield heartbeats.send

    def _has_given(self, position: int) -> bool:
        return self._stream is not None and self._stream.has_given(position)

    def bytes_between(self, first: int, last: int) -> int:
        """Return the bytes between; files in between count with their size."""
        if not first or last <= first:
            return 0
        low, high = BinlogPosition(first), BinlogPosition(last)
        files = sum(self._sizes.get(number, 0) for number in range(low.number, high.number))
        return max(files + high.offset - low.offset, 0)

    @property
    def _is_settled(self) -> bool:
        """Return whether the stream's server is the one that was stored, so its positions can be
        compared.
        """
        last = self._resume_states.last
        return last is not None and last.server == self._identity.name

    def text(self, position: int) -> str:
        """Return a position as `binlog.000003:154`."""
        return self._resume_states.text(position)

    # -- one attempt -------------------------------------------------------------------------

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Run one attempt; afterwards close the catalogue's connection, which opens on demand."""
        try:
            yield
        finally:
            if self._live is not None:
                self._live.close()

    def ranges(self, _: FlushPoint) -> AbstractContextManager[Ranges] | None:
        """Return None: the stream is fast enough."""
        return None

    @contextmanager
    def stream(self, durable: FlushPoint) -> Iterator[SourceStream]:
        """Open the binlog after a flush point, from the server that answers now."""
        assert self._book is not None
        mark = self._resume_states.at(durable.position)
        self._identity = identity = self._check(mark)
        is_same = self._is_settled
        seen = parse_gtids(identity.version, mark.gtids) if identity.has_gtids else None
        if not is_same and (seen is None or mark.position != durable.position):
            raise SeenUnknown(
                f"the stream has to go on with another server ({identity.name}), and which "
                f"transactions the change log has is not known exactly",
                hint="Let penstock reach the old server once more, if only for a moment.",
            )
        self._book.rewind(durable.position)
        if self._resends is not None:
            self._resends.note_stream(identity.name, durable)
        prepared = PreparedFiles(self._place.spill, self._place.files, mark.prepared)
        source = BinlogSource(
            lambda: self._open(mark, seen if not is_same else None),
            lambda put, idle, other: Assembler(
                decoder=make_decoder(
                    gsn=durable.gsn,
                    trx=durable.trx,
                    byte_limit=RUN_BYTES,
                ),
                server=identity.version,
                book=self._taken_book(),
                prepared=prepared,
                start=durable,
                shift=mark.shift if is_same else None,
                gtids=seen if seen is not None else _no_gtids(identity),
                emit=put,
                on_idle=idle,
                on_other=other,
                fold=self._fold,
                server_id=self._server_id,
                limits=_limits(self._options.events_per_flush),
            ),
            start=durable,
            keep=self._save_notes_if_changed,
            on_durable=lambda one: self._durable(one, prepared),
            spilled=lambda: prepared.size_bytes,
            idle_flush_s=self._options.flush_interval_s,
            clock=self._place.clock,
        )
        try:
            with source:
                self._stream = source
                start = str(physical(mark)) if is_same else f"GTID {mark.gtids}"
                logger.info("stream started", server_id=self._server_id, position=start)
                yield source
        finally:
            self._close_resume_state()

    def _taken_book(self) -> SchemaHistory:
        assert self._book is not None
        return self._book

    def _check(self, mark: StreamMark) -> ServerIdentity:
        """Return the server's identity; check that it has everything after the mark."""
        last = self._resume_states.last
        assert last is not None
        position = physical(mark)
        log_identity = last.log_identity if last.log_file == position.file else ""
        resume = ResumePoint(
            position=position, server=last.server, gtids=mark.gtids, log_identity=log_identity
        )
        with open_catalog(self._url, application_name="penstock stream") as connection:
            self._fold = _folds(connection)
            return check_resume(connection, self._url, resume)

    def _open(self, mark: StreamMark, seen: Gtids | None) -> BinlogConnection:
        options = DumpOptions(
            server_id=self._server_id,
            replica_uuid=self._replica_uuid,
            heartbeat_s=self._heartbeat_s,
        )
        position = physical(mark) if seen is None else None
        return open_binlog(
            self._url, position=position, seen=seen, options=options, clock=self._place.clock
        )

    # -- stored state ------------------------------------------------------------------------

    def _save_notes(self) -> None:
        self._place.state.save(NOTES_FILE, self._taken_book().notes())

    def _save_notes_if_changed(self) -> None:
        book = self._taken_book()
        if book.changed:
            book.changed = False
            last = self._resume_states.last
            if last is not None:
                book.forget_behind(last.mark.position)
            self._save_notes()

    def _durable(self, mark: StreamMark, prepared: PreparedFiles) -> None:
        """Note that the log is durable up to this mark."""
        self._last_mark = mark
        # After a failover this must be stored at once.
        if self._resume_states.is_due() or not self._is_settled:
            self._save_resume_state(mark)
            prepared.forget_decided(mark.position)

    def _save_resume_state(self, mark: StreamMark) -> None:
        last = self._resume_states.last
        known = (last.log_file, last.log_identity) if last is not None else ("", "")
        self._resume_states.save(mark, self._identity.name, self._log_identity(mark, known))

    def _close_resume_state(self) -> None:
        last = self._resume_states.last
        if self._last_mark is not None and (last is None or last.mark != self._last_mark):
            self._save_resume_state(self._last_mark)

    def _log_identity(self, mark: StreamMark, known: tuple[str, str]) -> tuple[str, str]:
        """Return the mark's file and its identity; read once per file."""
        file = physical(mark).file
        if known[0] == file:
            return known
        try:
            return file, read_log_identity(self._url, file)
        except PenstockError as error:
            logger.warning("binlog file is not identified", file=file, error=error.message)
            return "", ""

    # -- tables ------------------------------------------------------------------------------

    def saw(self, run: Run) -> None:
        """Do nothing: the binlog itself has the changes of tables."""

    def before_flush(self, end: FlushPoint) -> None:
        """Note where the log is about to be."""
        mark = self._stream.mark_at(end.position) if self._stream is not None else None
        if mark is not None:
            self._resume_states.before_flush(mark)

    def has_outstanding(self) -> bool:
        """Return whether rows are being read again or must be. Nothing else can be outstanding."""
        is_at_work = self._resends is not None and self._resends.is_at_work
        return is_at_work or bool(self._taken_book().awaiting())

    def tend(self, log_access: LogAccess) -> None:
        """Carry out requests: begin or end the capture of tables, send their rows again."""
        if self._captures is not None:
            self._captures.tend(self._taken_book())
        if self._resends is not None and self._stream is not None:
            self._resends.tend(self._stream, log_access.durable)

    def is_loss(self, error: PenstockError) -> bool:
        """Return whether the server no longer has changes that the log does not hold."""
        return isinstance(error, LOSSES)


def _limits(events_per_flush: int) -> Limits:
    """Return the usual limits, or eventsPerFlush if that is less."""
    usual = Limits()
    is_less = events_per_flush < ExtractOptions().events_per_flush
    return Limits(row_count=events_per_flush) if is_less else usual


def _folds(connection: Connection) -> bool:
    doing = "asking how the server takes names"
    return int(value(connection, "select @@global.lower_case_table_names", doing=doing)) == 1


def _no_gtids(identity: ServerIdentity) -> Gtids:
    return MariaGtids() if identity.version.is_mariadb else GtidSet()
