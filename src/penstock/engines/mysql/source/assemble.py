"""Turn blocks of binlog packets into runs: what the decoder hands back is handled here, in order.

The decoder walks rows, begins and commits alone; table maps, statements, XA and files stop it and
are handled one at a time. Positions that leave this module are the log's: those of the server plus
`shift` file numbers, so that they continue to rise when another server takes over. Not here: the
socket and the threads (`stream.py`), what statements do to tables (`schema_history.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

from penstock.codec.mysql.binlog import Decoder, Stop
from penstock.codec.mysql.binlog_events import (
    HEAD_BYTES,
    EventKind,
    MariaExtraFlag,
    MariaFlag,
    incident,
    maria_gtid,
    xa_prepare,
)
from penstock.codec.mysql.binlog_outcome import OFFSET_BITS
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_query import Query, query
from penstock.codec.mysql.binlog_tables import table_map
from penstock.codec.mysql.gtids import GtidSet, MariaGtids
from penstock.codec.mysql.mysqlwire import packet_at
from penstock.engines.mysql.connect import ServerVersion
from penstock.engines.mysql.source.client import Gtids
from penstock.engines.mysql.source.ddl_text import effects_of
from penstock.engines.mysql.source.heartbeat import sent_us_in
from penstock.engines.mysql.source.prepared import (
    Prepared,
    PreparedFiles,
    Xid,
    savepoint_in,
    xid_in,
)
from penstock.engines.mysql.source.schema_history import SchemaHistory, StreamPlace
from penstock.engines.mysql.source.unsupported import (
    LOAD_AGAIN,
    PreparedUnseen,
    StreamUnexpected,
    TransactionUndone,
    changes_missing,
    loaded_by_statement,
)
from penstock.model import FlushPoint, Marker, MarkerKind, Relation, Rows, Run, TableName
from penstock.model.position import POSITION_BYTES
from penstock.ports.source import StreamCounted
from penstock.sql.decoding import Visit, Visits


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Size at which a run is cut. row_count: rows, also inside a transaction. byte_count: their
    bytes.
    """

    row_count: int = 20_000
    byte_count: int = 32 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Counted(StreamCounted):
    """Counts of processed rows, bytes and transactions, for display."""

    row_count: int = 0
    transaction_count: int = 0
    byte_count: int = 0
    ignored_row_count: int = 0
    skipped_transaction_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMark:
    """State at an end that was emitted.

    Attributes:
        position: position in the log.
        base: base name of its binlog file.
        shift: number of files by which the log's positions are ahead of the server's.
        gtids: all transactions before it, as text.
        prepared: transactions that are prepared there.
    """

    position: int
    base: str
    shift: int
    gtids: str
    prepared: tuple[Prepared, ...]


def note_gtids(known: Gtids, pieces: Iterable[str]) -> None:
    """Add the ids of transactions that ended, as `Decoder.take_gtids` returns them."""
    for piece in pieces:
        if isinstance(known, MariaGtids):
            known.update(MariaGtids.parse(piece))
        else:
            known.update(GtidSet.parse(piece))


def check_between(position: int, begin: int, end: int, what: str) -> None:
    """Check that a position is not inside the transaction from begin to end. Raises
    StreamUnexpected.
    """
    if begin < position < end:
        place = BinlogPosition(position)
        raise StreamUnexpected(
            f"{what} inside a transaction of the server, at offset {place.offset} of file "
            f"{place.number}",
            hint="The server's binlog is not the one that the log was filled from: " + LOAD_AGAIN,
        )


logger = structlog.get_logger()
READ_BYTES = 4 * 1024 * 1024
PARK_BYTES = 4 * 1024 * 1024


class Assembler:
    """Converter of blocks to runs. Used by one thread; others may read `counts`.

    decoder: numbers all rows, including those of visits. is_unfinished: a part of the open
    transaction was emitted. emit: called with each run in order, its bytes, and the mark of its
    end. on_idle: called with the flush point that holds when nothing is pending. on_other: called
    with a packet that does not hold an event.
    """

    def __init__(
        self,
        *,
        decoder: Decoder,
        server: ServerVersion,
        book: SchemaHistory,
        prepared: PreparedFiles,
        start: FlushPoint,
        shift: int | None,
        gtids: Gtids,
        emit: Callable[[Run, int, StreamMark | None], None],
        on_idle: Callable[[FlushPoint, StreamMark], None],
        on_other: Callable[[bytes], None],
        fold: bool = False,
        server_id: int = 0,
        limits: Limits | None = None,
    ) -> None:
        """Start after `start`: transactions that begin before its position are dropped.

        shift: None if another server takes over; its first file's number is higher than all others.
        gtids: the transactions before the stream's begin; the assembler keeps and changes them.
        """
        self.counts = Counted()
        self.decoder = decoder
        self._server = server
        self._book = book
        self._prepared = prepared
        self._start = start
        self._shift = shift
        self._gtids = gtids
        self._emit = emit
        self._on_idle = on_idle
        self._on_other = on_other
        self._fold = fold
        self._server_id = server_id
        self._limits = limits or Limits()
        self._markers: list[Marker] = []
        self._relations: list[Relation] = []
        self._position = start.position
        self.is_unfinished = False
        # Another server's positions say nothing about ours: it sends what we lack, and only that.
        self._known_below = start.position if shift is not None else 0
        self._cut_at_end = False
        self._parks = False
        self._passes_statement = False
        self._visits: Visits[Assembler] = Visits()

    # -- places ------------------------------------------------------------------------------

    def _logical(self, position: int) -> int:
        """Return a position of the server as the log counts."""
        return position + ((self._shift or 0) << OFFSET_BITS)

    @property
    def _at(self) -> int:
        """Position of the stream, as the log counts."""
        decoder = self.decoder
        if not decoder.file_name:
            return 0
        return self._logical(decoder.file_number << OFFSET_BITS | decoder.offset)

    def _place(self) -> StreamPlace:
        decoder = self.decoder
        return StreamPlace(
            since=self._logical(decoder.commit_position),
            behind=BinlogPosition.at(decoder.file_name, decoder.offset),
        )

    # -- blocks ------------------------------------------------------------------------------

    def feed(self, block: memoryview, start: int, end: int) -> int:
        """Handle the whole packets of block[start:end]; return the offset after the last one.

        Raises BinlogBroken, the errors of `schema_history` and of `unsupported`, and those of
        on_other.
        """
        at = start
        decoder = self.decoder
        while True:
            self._go_on_with_visits()
            until = end
            if self._parks:
                at = decoder.park(block, at, end, PARK_BYTES)
                self._prepared.append(decoder.take_parked())
            else:
                waits = self._book.is_asked or bool(self._visits.queue)
                limit = 0 if waits or self._known_below or self._cut_at_end else None
                until = self._until(block, at, end)
                at = decoder.feed(block, at, until, self._limits.row_count, limit)
            is_starved = until == end or decoder.stop is Stop.OTHER_FRAME
            if not self._handle(decoder.stop) and is_starved:
                self.counts.byte_count += at - start
                return at

    def _until(self, block: memoryview, at: int, end: int) -> int:
        """Return how far to decode: one packet if a transaction may begin at an awaited place."""
        if not self._visits.waits_for or self.decoder.in_transaction:
            return end
        packet = packet_at(block, at, end)
        return end if packet is None else packet.end

    def _handle(self, stop: Stop) -> bool:
        """Handle one stop; return False if more bytes are needed."""
        decoder = self.decoder
        if stop is Stop.MORE:
            if self._known_below and not decoder.in_transaction and self._at >= self._known_below:
                self._pass_known()
            if decoder.byte_count >= self._limits.byte_count:
                self.cut()
            self.take_asked()
            return False
        if stop is Stop.LIMIT:
            if not self._parks:
                self.cut()
        elif stop is Stop.COMMIT:
            self._parks = False
            self.take_asked()
            if self._known_below:
                self._pass_known()
            elif self._cut_at_end or decoder.row_count >= self._limits.row_count:
                self.cut()
        elif stop is Stop.MESSAGE:
            self._message(decoder.message)
        elif stop is Stop.WIDEN:
            self._widen()
        elif stop is Stop.OTHER_FRAME:
            self._on_other(decoder.message)
            return False
        return True

    def take_asked(self) -> None:
        """Begin and end the capture of tables, unless a transaction is open."""
        if self._book.is_asked and self._is_between and self._book.take_asked(self._place().behind):
            self.decoder.unbind_all()

    @property
    def _is_between(self) -> bool:
        """Return whether no transaction is open and the binlog file is known."""
        return bool(self.decoder.file_name) and not (self.decoder.in_transaction or self._parks)

    @property
    def _is_known(self) -> bool:
        """Return whether the log has the open transaction already."""
        return self._logical(self.decoder.commit_position) < self._known_below

    def _pass_known(self) -> None:
        """Count a transaction that the log has already. At the log's end, let rows count again."""
        decoder = self.decoder
        if self._at >= self._known_below:
            self._check_whole(self._known_below, "the change log ends")
            self._known_below = 0
        else:
            self.counts.skipped_transaction_count += 1
        # Rows of the bound tables were skipped; after the log's end the tables must be bound again.
        decoder.unbind_all()

    def _check_whole(self, position: int, what: str) -> None:
        decoder = self.decoder
        if decoder.end_position:
            begin, end = map(self._logical, (decoder.commit_position, decoder.end_position))
            check_between(position, begin, end, what)

    # -- visits ------------------------------------------------------------------------------

    def visit(self, visit: Visit[Assembler]) -> None:
        """Queue work to be done between transactions, as soon as possible; any thread may
        call it.
        """
        self._visits.add(visit)

    def between(self) -> None:
        """Do the requested work when nothing has arrived, unless a transaction is open."""
        self.take_asked()
        self._go_on_with_visits()

    def close(self) -> None:
        """Release the resources of visits; the stream is over."""
        self._visits.close()

    def _go_on_with_visits(self) -> None:
        """Begin the next visit, and resume it when the stream has reached the place it
        waits for.
        """
        visits = self._visits
        while visits.queue and self._is_between:
            if self._known_below or self._shift is None or self._at < visits.waits_for:
                return
            self._check_whole(visits.waits_for, "a snapshot was taken")
            self.cut()
            visits.go_on(self, lambda: self.decoder.trx)

    @property
    def place(self) -> StreamPlace:
        """Place of the stream as it is noted for tables: in front of the next transaction."""
        return replace(self._place(), since=self.end.position - 1)

    def place_of(self, position: BinlogPosition) -> int | None:
        """Return a place of the server as the log counts; None if the stream is past it already."""
        found = self._logical(position.ordinal)
        last = self.decoder.end_position
        return None if found < (self._logical(last) if last else self._start.position) else found

    def give(self, run: Run, byte_count: int = 0) -> None:
        """Emit a run that a visit has built, as a transaction of its own.

        Its rows and markers have numbers that the decoder skips (`Decoder.skip`).
        """
        self.is_unfinished = run.end is None
        mark = self._mark_of(run.end) if run.end is not None else None
        self.counts.row_count += sum(one.batch.num_rows for one in run.rows)
        self._emit(run, byte_count, mark)
        if run.end is not None:
            self._position = run.end.position
            # Relations may have other versions now.
            self.decoder.unbind_all()

    # -- messages ----------------------------------------------------------------------------

    def _message(self, event: bytes) -> None:
        kind = event[4]
        if kind == EventKind.TABLE_MAP:
            self._table_map(event)
        elif kind in (EventKind.QUERY, EventKind.QUERY_COMPRESSED):
            self._query(query(event))
        elif kind == EventKind.ROTATE:
            self._begin_server()
        elif kind == EventKind.FORMAT_DESCRIPTION:
            self._file_began()
        elif kind == EventKind.MARIA_GTID:
            self._maria_group(event)
        elif kind == EventKind.XA_PREPARE:
            self._xa_prepared(event)
        elif kind == EventKind.XID:
            self._parked_commits()
        elif kind == EventKind.INCIDENT:
            raise changes_missing(incident(event).text)
        elif kind == EventKind.EXECUTE_LOAD_QUERY:
            raise loaded_by_statement()

    def _begin_server(self) -> None:
        if self._shift is None:
            # The first place of another server comes after everything in the log.
            number = self._start.position >> OFFSET_BITS
            self._shift = number + 1 - self.decoder.file_number

    def _file_began(self) -> None:
        """Handle the begin of a file; a transaction that is open then never finished: the server
        died.
        """
        if self.decoder.in_transaction:
            self._undo()

    def _undo(self) -> None:
        self._prepared.drop()
        self._parks = False
        if not self.decoder.abandon():
            raise TransactionUndone(
                "a transaction was undone in the binlog after rows of it had been read",
                hint=LOAD_AGAIN,
            )
        self._markers = [one for one in self._markers if one.trx <= self.decoder.trx]

    def _table_map(self, event: bytes) -> None:
        decoder = self.decoder
        table = table_map(
            event[HEAD_BYTES:],
            is_mariadb=decoder.is_mariadb,
            server_version=decoder.server_version,
        )
        if self._is_known:
            decoder.bind(table, None)
            return
        bound = self._book.resolve(table, self._place(), is_mariadb=decoder.is_mariadb)
        decoder.bind(table, bound.relation, bound.charsets)

    def _widen(self) -> None:
        """Handle a value that does not fit its column's neutral type: the column is text from here
        on.
        """
        decoder = self.decoder
        table_id, column = decoder.widen
        relation = decoder.bindings()[table_id]
        assert relation is not None
        shape = relation.columns[column]
        if shape.neutral == "string":
            raise StreamUnexpected(f"column {shape.name} of {relation.full_name} is text already")
        table = decoder.table(table_id)
        self._book.widen(relation, column, self._place())
        bound = self._book.resolve(table, self._place(), is_mariadb=decoder.is_mariadb)
        decoder.bind(table, bound.relation, bound.charsets)
        logger.info(
            "column is kept as text from now on", table=relation.full_name, column=shape.name
        )

    # -- statements --------------------------------------------------------------------------

    def _query(self, said: Query) -> None:
        text = said.raw
        if text.startswith(b"XA "):
            self._xa_statement(text)
        elif text == b"ROLLBACK":
            self._undo()
        elif text == b"COMMIT":
            self._parked_commits()
        elif (savepoint := savepoint_in(text)) is not None:
            self._savepoint(*savepoint)
        elif self._passes_statement:
            self._passes_statement = False
        else:
            self._statement(said)

    def _statement(self, said: Query) -> None:
        effects = effects_of(said, server=self._server, fold=self._fold)
        if not effects or not self._book.concerns(effects):
            return
        place = self._place()
        touched = {name for one in effects for name in (one.table, one.to) if name is not None}
        # The target has the previous shape, which no row may have shown yet.
        shown = [] if self._is_known else self._book.introduce(touched, place)
        place = replace(place, since=place.since + 1)  # after what was shown, in one transaction
        marks = self._book.apply(effects, said, place)
        # Earlier table ids may mean something else now.
        self.decoder.unbind_all()
        if self._is_known:
            return
        for kind, tables, data in marks:
            self._mark(kind, tables, data=data)
        relations = [self._book.refresh(name, place) for name in sorted(touched)]
        found = [*shown, *(relation for relation in relations if relation is not None)]
        if found:
            self.cut()
            self._relations += found
        self._cut_at_end = True

    def _mark(
        self, kind: MarkerKind, tables: Sequence[TableName] = (), *, data: dict[str, Any]
    ) -> None:
        """Place a marker after the last row of the open transaction."""
        gsn, trx = self.decoder.note_marker()
        self._markers.append(
            Marker(
                kind=kind,
                gsn=gsn,
                trx=trx,
                position=self._logical(self.decoder.commit_position),
                commit_time_us=self.decoder.commit_time_us,
                tables=tuple((name.schema, name.name) for name in tables),
                data=data,
            )
        )

    def _maria_group(self, event: bytes) -> None:
        said = maria_gtid(event)
        undone = MariaExtraFlag.START_ALTER | MariaExtraFlag.ROLLBACK_ALTER
        # An ALTER in two halves takes effect with the second one, which brings the text again.
        self._passes_statement = bool(said.flags_extra & undone)
        if said.flags & MariaFlag.PREPARED_XA:
            self._park()

    # -- savepoints --------------------------------------------------------------------------

    def _savepoint(self, name: bytes, is_undone: bool) -> None:
        """Hold rows after a savepoint until the transaction ends: they may be undone."""
        if self._is_known and not self._parks:
            return
        sent_us = sent_us_in(name, self._server_id)
        if sent_us is not None:
            self._mark(MarkerKind.HEARTBEAT, data={"sent_us": sent_us})
            return
        if not is_undone:
            self._park()
            self._prepared.save(name)
        elif not self._prepared.undo_to(name):
            raise TransactionUndone(
                "a part of a transaction was undone in the binlog, back to a savepoint that it "
                "does not have",
                hint=LOAD_AGAIN,
            )

    def _parked_commits(self) -> None:
        self._parks = False
        if not self._is_known:
            self._replay(self._prepared.open_begun())
        self._prepared.drop()

    # -- XA ----------------------------------------------------------------------------------

    def _park(self) -> None:
        if not self._parks:
            self._prepared.begin(self._logical(self.decoder.commit_position))
            self._parks = True

    def _xa_statement(self, text: bytes) -> None:
        if text.startswith(b"XA START"):
            self._park()
        elif text.startswith((b"XA COMMIT", b"XA ROLLBACK")):
            xid = xid_in(text)
            if xid is None:
                raise StreamUnexpected("an XA statement without a transaction's id")
            self._end_prepared(xid, commits=text.startswith(b"XA COMMIT"))

    def _xa_prepared(self, event: bytes) -> None:
        said = xa_prepare(event)
        self._prepared.append(self.decoder.take_parked())
        self._parks = False
        if not said.one_phase:
            self._prepared.keep(said.xid, self._logical(self.decoder.commit_position))
            return
        self._parked_commits()
        self._cut_at_end = True

    def _end_prepared(self, xid: Xid, *, commits: bool) -> None:
        found = self._prepared.take(xid, self._logical(self.decoder.commit_position))
        if self._is_known or (found is None and not commits):
            return
        if found is None:
            raise PreparedUnseen(
                "an XA transaction is committed whose rows were logged before the change log began",
                hint=LOAD_AGAIN,
            )
        if commits:
            self._cut_at_end = True
            self._mark(MarkerKind.MESSAGE, data=self._prepared.global_of(xid))
            self._replay(self._prepared.open_read(found))

    def _replay(self, file: Any) -> None:
        """Decode parked rows into the open transaction."""
        try:
            offset, want = 0, READ_BYTES
            while piece := file.read(offset, want):
                count = self._replay_piece(memoryview(piece))
                if count == 0 and len(piece) < want:
                    raise StreamUnexpected("the side file of an XA transaction ends inside a row")
                want = READ_BYTES if count else want * 2
                offset += count
        finally:
            file.close()

    def _replay_piece(self, piece: memoryview) -> int:
        decoder, at = self.decoder, 0
        while True:
            at = decoder.replay(piece, at, len(piece), self._limits.row_count)
            stop = decoder.stop
            if stop is Stop.MORE:
                return at
            if stop is Stop.LIMIT:
                self.cut()
            elif stop is Stop.WIDEN:
                self._widen()
            elif stop is Stop.MESSAGE:
                self._table_map(decoder.message)
            else:
                raise StreamUnexpected("the side file of an XA transaction holds something else")

    # -- runs --------------------------------------------------------------------------------

    def cut_when_whole(self) -> bool:
        """Emit pending rows unless a transaction is open; return whether one is open."""
        if not self.decoder.in_transaction and not self._known_below:
            self.cut()
        return self.decoder.in_transaction

    def cut(self) -> None:
        """Emit everything pending as a run, which has an end if no transaction is open."""
        decoder = self.decoder
        byte_count = decoder.byte_count
        rows = tuple(decoder.take())
        end = None if decoder.in_transaction else self.end
        mark = self._mark_of(end) if end is not None else None
        self._cut_at_end = self._cut_at_end and end is None
        if rows or self._markers or self._relations or (self.is_unfinished and end is not None):
            self.counts.row_count += sum(one.batch.num_rows for one in rows)
            self.counts.transaction_count = decoder.trx - self._start.trx
            run = self._run(rows, self._markers, end)
            self._markers, self._relations = [], []
            self.is_unfinished = end is None
            self._emit(run, byte_count, mark)
        elif end is not None and mark is not None and end.position > self._position:
            self._on_idle(end, mark)
        if end is not None:
            self._position = end.position

    def give_up(self) -> None:
        """Emit, after an error, the whole transactions before the one in which it occurred."""
        decoder = self.decoder
        if self.is_unfinished or self._known_below or self._parks:
            return
        if decoder.in_transaction and not decoder.abandon():
            return
        rows = tuple(decoder.take())
        markers = tuple(one for one in self._markers if one.trx <= decoder.trx)
        if not rows and not markers and not self._relations:
            return
        end = FlushPoint(
            position=max(self._position, self._logical(decoder.end_position)),
            gsn=decoder.gsn,
            trx=decoder.trx,
            commit_time_us=self._start.commit_time_us,
        )
        self._emit(self._run(rows, markers, end), 0, self._mark_of(end))

    def _run(
        self, rows: tuple[Rows, ...], markers: Sequence[Marker], end: FlushPoint | None
    ) -> Run:
        return Run(
            rows=rows,
            markers=tuple(markers),
            relations=tuple(self._relations),
            transactions=shifted_transactions(self.decoder.take_transactions(), self._shift),
            end=end,
        )

    @property
    def end(self) -> FlushPoint:
        """Position of the stream, between transactions."""
        decoder = self.decoder
        return FlushPoint(
            position=max(self._position, self._at),
            gsn=decoder.gsn,
            trx=decoder.trx,
            commit_time_us=decoder.commit_time_us or self._start.commit_time_us,
        )

    def _mark_of(self, end: FlushPoint) -> StreamMark:
        note_gtids(self._gtids, self.decoder.take_gtids())
        file = self.decoder.file_name
        return StreamMark(
            position=end.position,
            base=file.rpartition(".")[0] or "binlog",
            shift=self._shift or 0,
            gtids=str(self._gtids),
            prepared=self._prepared.held,
        )


def shifted_transactions(batch: pa.RecordBatch | None, shift: int | None) -> pa.RecordBatch | None:
    """Return a batch of transactions with positions `shift` files further; negative:
    further back.
    """
    if batch is None or not shift:
        return batch
    for name in ("position", "end_position"):
        batch = _shift_positions(batch, name, shift)
    return batch


def _shift_positions(batch: pa.RecordBatch, name: str, shift: int) -> pa.RecordBatch:
    """Shift the positions of one column; a binlog's are numbers in the last 8 of their 16 bytes."""
    at = batch.schema.get_field_index(name)
    field, column = batch.schema.field(at), batch.column(at)
    start = column.offset * POSITION_BYTES
    both = np.frombuffer(column.buffers()[1], ">u8", 2 * len(column), start).copy()
    step = np.uint64(abs(shift) << OFFSET_BITS)
    low = both[1::2].astype(np.uint64)
    both[1::2] = low + step if shift > 0 else low - step
    if bool((both[1::2] < low).any() if shift > 0 else (both[1::2] > low).any()):
        raise OverflowError("a binlog position out of range")
    moved = pa.Array.from_buffers(field.type, len(column), [None, pa.py_buffer(both.tobytes())])
    return batch.set_column(at, field, moved)
