"""Conversion of wire blocks to runs: everything that the decoder hands back, in order.

The decoder handles rows, begins and commits itself; relations, truncates, messages, keepalives
and streamed transactions stop it and are handled one at a time.

Transactions that the server streams before they are committed wait in side files: one append-only
file per top-level xid, holding the raw frames of its blocks in arrival order. Nothing is decoded
before the commit, and a roll-back costs nothing but the file. The files need no fsync: after a
reconnect the server sends such a transaction again from its first block, so they are wiped then.
"""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from penstock.codec.postgres.pgoutput import Decoder, Stop
from penstock.codec.postgres.pgoutput_messages import (
    LogicalMessage,
    OriginMessage,
    RelationMessage,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    TruncateMessage,
    TypeMessage,
    keepalive,
    parse_message,
)
from penstock.codec.postgres.pgwire import ServerMessage, frame_at, server_message
from penstock.engines.postgres.source.assembly import (
    Counted,
    Limits,
    PublicationLost,
    Shapes,
    StreamUnexpected,
)
from penstock.engines.postgres.source.client import server_error
from penstock.engines.postgres.source.heartbeat import sent_us_in
from penstock.engines.postgres.source.reload import Sink
from penstock.host.errors import ConnectionLost
from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, AppendFile, Files, ReadFile
from penstock.model import (
    LOAD_AGAIN,
    FlushPoint,
    Marker,
    MarkerKind,
    PenstockError,
    Relation,
    Rows,
    Run,
)
from penstock.model.change import is_global_prefix
from penstock.ports.source import TableRows
from penstock.sql.decoding import Visit, Visits

SUFFIX = ".spill"

declare("spill.append.before", "spill.append.after", "spill.remove.before")


class SpillBroken(PenstockError):
    """The server's streamed blocks do not fit together, or a side file was changed from outside."""

    code = "PG70"
    retry = "backoff"


@dataclass(slots=True, kw_only=True)
class Streamed:
    """One transaction in progress.

    size_bytes: of its file. aborted: xids of subtransactions that were rolled back.
    relation_arrivals: for each Relation message in the file, in order, when it arrived (a count
    over the whole connection), to distinguish it from one outside the stream.
    """

    xid: int
    path: Path
    size_bytes: int = 0
    aborted: set[int] = field(default_factory=set)
    relation_arrivals: list[int] = field(default_factory=list)


class Spill:
    """The side files of one connection. Used by one thread."""

    def __init__(self, directory: Path, files: Files = REAL_FILES) -> None:
        """Create the directory if it is missing, and remove files of an earlier connection."""
        self._directory = directory
        self._files = files
        self._open: dict[int, Streamed] = {}
        self._current: Streamed | None = None
        self._file: AppendFile | None = None
        files.make_directory(directory)
        for name in files.listdir(directory):
            if name.endswith(SUFFIX):
                files.unlink(directory / name)

    @property
    def in_block(self) -> bool:
        """Return whether the stream is between StreamStart and StreamStop."""
        return self._current is not None

    @property
    def size_bytes(self) -> int:
        """Bytes in all side files."""
        return sum(streamed.size_bytes for streamed in self._open.values())

    def transactions(self) -> list[int]:
        """Return the xids in progress."""
        return list(self._open)

    def start_block(self, xid: int, *, first: bool) -> None:
        """Begin a block of transaction xid. first: whether it is the transaction's first block on
        this connection.
        """
        if self._current is not None:
            raise SpillBroken(f"block of transaction {xid} inside one of {self._current.xid}")
        known = self._open.get(xid)
        if first is (known is not None):
            raise SpillBroken(f"block of transaction {xid} is out of order")
        if known is None:
            known = Streamed(xid=xid, path=self._directory / f"{xid}{SUFFIX}")
            self._open[xid] = known
            self._file = self._files.create(known.path)
        else:
            self._file = self._files.open_append(known.path)
        self._current = known

    def append(self, frames: memoryview) -> None:
        """Add whole frames to the block that is open."""
        if self._current is None or self._file is None:
            raise SpillBroken("streamed rows outside a block")
        if not frames:
            return
        point("spill.append.before")
        self._file.append([frames])
        point("spill.append.after")
        self._current.size_bytes += len(frames)

    def note_relation(self, arrival: int) -> None:
        """Note that the frames just added, or those to be added next, hold a Relation message."""
        if self._current is None:
            raise SpillBroken("streamed relation outside a block")
        self._current.relation_arrivals.append(arrival)

    def stop_block(self) -> None:
        """End the open block."""
        if self._current is None or self._file is None:
            raise SpillBroken("end of a block that was not begun")
        self._file.close()
        self._current = self._file = None

    def abort(self, xid: int, subxid: int) -> None:
        """Forget a transaction, or remember that a part of it was rolled back.

        An unknown transaction had no block of its own on this connection, so there is nothing to
        forget.
        """
        if xid == subxid:
            if xid in self._open:
                self.remove(xid)
        elif xid in self._open:
            self._open[xid].aborted.add(subxid)

    def commit(self, xid: int) -> Streamed:
        """Return the transaction to replay; raises SpillBroken if it had no block."""
        if self._current is not None:
            raise SpillBroken(f"transaction {xid} is committed inside a block")
        if xid not in self._open:
            raise SpillBroken(f"transaction {xid} is committed but none of it was sent")
        return self._open[xid]

    def open_read(self, streamed: Streamed) -> ReadFile:
        """Return the transaction's file, to be read in pieces; frames may lie across them."""
        return self._files.open_read(streamed.path)

    def remove(self, xid: int) -> None:
        """Forget a transaction and its file."""
        streamed = self._open.pop(xid)
        point("spill.remove.before")
        self._files.unlink(streamed.path)

    def close(self) -> None:
        """Close the file in use; the files themselves are wiped by the next connection."""
        if self._file is not None:
            self._file.close()
        self._current = self._file = None


logger = structlog.get_logger()
INTERNAL_PREFIX = "penstock."  # logical messages of our own: never rows; markers: heartbeats alone
declare("extract.resend.rows")
REPLAY_READ_BYTES = 4 * 1024 * 1024
_XLOG_HEAD_BYTES = 25
_U64 = struct.Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """Meaning of an oid since a Relation message. relation: None if the table is not captured."""

    relation: Relation | None
    arrival: int


class Assembler(Sink):
    """Converter of blocks to runs. Used by one thread; others may read `counted`.

    emit: called with each run in order, with the bytes of its messages. on_idle: called with the
    flush point that holds when nothing is pending: the server has passed it and nothing of ours
    lies before it. on_reply: called when the server wants a status at once.
    """

    def __init__(
        self,
        *,
        decoder: Decoder,
        shapes: Shapes,
        spill: Spill,
        start: FlushPoint,
        emit: Callable[[Run, int], None],
        on_idle: Callable[[FlushPoint], None],
        on_reply: Callable[[], None],
        on_relation: Callable[[RelationMessage], None] | None = None,
        on_message: Callable[[LogicalMessage], None] | None = None,
        keep_messages: bool = False,
        slot: str = "",
        limits: Limits | None = None,
    ) -> None:
        """Start after `start`.

        keep_messages: turn messages of other programs into markers. slot: our slot.
        """
        self.counts = Counted(received_position=start.position)
        self._decoder = decoder
        self._shapes = shapes
        self._spill = spill
        self._emit = emit
        self._on_idle = on_idle
        self._on_reply = on_reply
        self._on_relation = on_relation
        self._on_message = on_message
        self._keep_messages = keep_messages
        self._slot = slot
        self._limits = limits or Limits()
        self._bound: dict[int, _Bound] = {}
        self._visits: Visits[Assembler] = Visits()
        self._starved = False
        self._widened: dict[Relation, Relation] = {}
        self._arrival = 0
        self._markers: list[Marker] = []
        self._relations: list[Relation] = []
        self._known_below = start.position
        self._in_known = False
        self._position = start.position
        self._start = start
        self._unfinished = False

    # -- blocks ------------------------------------------------------------------------------

    def feed(self, block: memoryview, start: int, end: int) -> int:
        """Handle the whole frames of block[start:end]; return the offset after the last one.

        Raises DecodeError, SpillBroken, StreamUnexpected, or the error that the server sent.
        """
        at = start
        while True:
            self._go_on_with_visits()
            self._starved = False
            # Blocks of transactions in progress hold no begin or commit to look at.
            if (self._known_below or self._visits.waits_for) and not self._spill.in_block:
                at = self._feed_checked(block, at, end)
            else:
                at = self._feed_some(block, at, end)
            if self._starved:
                self.counts.byte_count += at - start
                self.counts.ignored_row_count = self._decoder.ignored_count
                return at

    def _feed_some(self, block: memoryview, at: int, end: int) -> int:
        """Decode up to the next stop."""
        decoder = self._decoder
        if self._spill.in_block:
            return self._feed_block(block, at, end)
        # A caller waits for the end of a transaction: stop at the next.
        commit_limit = 0 if self._visits.queue else None
        at = decoder.feed(block, at, end, self._limits.row_count, commit_limit)
        stop = decoder.stop
        if stop is Stop.MORE:
            self._starved = True
            if decoder.byte_count >= self._limits.byte_count:
                self.cut()
        elif stop is Stop.LIMIT or (
            stop is Stop.COMMIT and decoder.row_count >= self._limits.row_count
        ):
            self.cut()
        elif stop is Stop.KEEPALIVE:
            self._keepalive(block[slice(*decoder.message)])
        elif stop is Stop.MESSAGE:
            self._message(block[slice(*decoder.message)])
        elif stop is Stop.WIDEN:
            self.widen()
        elif stop is Stop.OTHER_FRAME:
            return self._other_frame(block, at)
        return at

    def _feed_block(self, block: memoryview, at: int, end: int) -> int:
        """Write the rows between StreamStart and StreamStop unchanged to the side file."""
        decoder = self._decoder
        behind = decoder.skip_rows(block, at, end)
        stop = decoder.stop
        frame_start = decoder.message[0] - 5
        if stop is Stop.KEEPALIVE:
            self._spill.append(block[at:frame_start])
            self._keepalive(block[slice(*decoder.message)])
        elif stop is Stop.OTHER_FRAME:
            self._spill.append(block[at:behind])
            return self._other_frame(block, behind)
        elif stop is Stop.MESSAGE:
            frame_start -= _XLOG_HEAD_BYTES
            letter = block[decoder.message[0]]
            if letter == ord("E"):
                self._spill.append(block[at:frame_start])
                self._spill.stop_block()
            else:
                if letter == ord("R"):
                    self._arrival += 1
                    self._spill.note_relation(self._arrival)
                self._spill.append(block[at:behind])
        else:
            self._spill.append(block[at:behind])
            self._starved = True
        return behind

    def _feed_checked(self, block: memoryview, at: int, end: int) -> int:
        """Process one frame where transactions may arrive that the log has already, or that queued
        work waits for.

        The server skips what was committed before the position that START_REPLICATION named; this
        holds also if it should not.
        """
        frame = frame_at(block, at, end)
        if frame is None:
            self._starved = True
            return at
        letter = 0
        body = frame.start + _XLOG_HEAD_BYTES
        if frame.kind == ord("d") and block[frame.start] == ord("w") and body < frame.end:
            letter = block[body]
        position = self._place_of(block, body, frame.end, letter)
        if position is not None:
            if position < self._known_below:
                return self._drop_known(block, body, letter, frame.end)
            self._known_below = 0
            if 0 < self._visits.waits_for <= position:
                self._resume_visit()
                return at
        if self._in_known and letter not in (0, ord("R")):
            self._in_known = letter != ord("C")
            return frame.end
        at = self._feed_some(block, at, frame.end)
        self._starved = False
        return at

    def _place_of(self, block: memoryview, body: int, end: int, letter: int) -> int | None:
        """Return where the transaction that begins here is committed; None for other messages."""
        offsets = {ord("B"): 1, ord("c"): 6, ord("M"): 2}
        if self._spill.in_block or letter not in offsets or end - body < offsets[letter] + 8:
            return None
        if letter == ord("M") and (
            block[body + 1] & 1 or self._in_known or self._decoder.in_transaction
        ):
            return None
        position: int = _U64.unpack_from(block, body + offsets[letter])[0]
        return position - 1 if letter == ord("M") else position

    def _drop_known(self, block: memoryview, body: int, letter: int, behind: int) -> int:
        self.counts.skipped_transaction_count += 1
        logger.info("transaction that the log has already was dropped")
        if letter == ord("B"):
            self._in_known = True
        elif letter == ord("c"):
            self._spill.remove(int.from_bytes(block[body + 1 : body + 5]))
        return behind

    def _other_frame(self, block: memoryview, at: int) -> int:
        """Handle a frame that is not CopyData: pass over notices, raise errors and the end of the
        stream.
        """
        kind = block[at]
        start, end = self._decoder.message
        if kind == ord("S"):
            return end
        if kind in (ord("E"), ord("N")):
            said = server_message(bytes(block[start:end]))
            if kind == ord("E"):
                raise server_error("reading the stream", said)
            self._notice(said)
            return end
        if kind in (ord("c"), ord("C"), ord("Z")):
            hint = "penstock retries automatically."
            raise ConnectionLost("the server ended the stream", hint=hint)
        raise StreamUnexpected(f"unexpected message {chr(kind)!r} in the stream")

    def _notice(self, said: ServerMessage) -> None:
        if said.severity == "WARNING" and said.sqlstate == "55000":
            # PostgreSQL 18 goes on without a publication that it cannot find, and the rows
            # committed meanwhile are not sent: going on would lose them.
            raise PublicationLost(
                f"the server streams without a publication: {said.message}",
                hint="Make the publication again, then load the tables again: what was committed "
                "while it was missing was not sent.",
            )
        logger.info("server notice", severity=said.severity, message=said.message)

    # -- visits ------------------------------------------------------------------------------

    @property
    def has_visits(self) -> bool:
        """Return whether a caller waits for the end of a transaction or for a position."""
        return bool(self._visits.queue)

    def visit(self, visit: Visit[Assembler]) -> None:
        """Queue work to be done between transactions, as soon as possible. Any thread may do so."""
        self._visits.add(visit)

    def _go_on_with_visits(self) -> None:
        """Begin the next visit, or resume it when the server has passed the position that it waits
        for.
        """
        if (
            not self._visits.queue
            or self._decoder.in_transaction
            or self._spill.in_block
            or self._in_known
            or self.counts.received_position < self._visits.waits_for
        ):
            return
        self._resume_visit()

    def _resume_visit(self) -> None:
        self.cut()
        self._visits.go_on(self, lambda: self._decoder.trx)

    @property
    def decoder(self) -> Decoder:
        """Decoder, for a visit that has rows of its own."""
        return self._decoder

    @property
    def row_limit(self) -> int:
        """Rows that make a run."""
        return self._limits.row_count

    def give_again(self, found: TableRows, relation: Relation, *, reason: str) -> int:
        """Emit a table's rows as a transaction before all later ones; return their number. For a
        visit.

        For a visit.
        """
        decoder = self._decoder
        position = max(decoder.end_position, self.counts.received_position, self._position)
        count = 0
        decoder.begin(position - 1, time.time_ns() // 1000, 0)
        self.mark(
            MarkerKind.RELOAD,
            tables=((relation.schema, relation.name),),
            data={"reason": reason},
        )
        self.introduce(relation)
        self.cut()
        for batch in found.inserts(gsn=decoder.gsn + 1, trx=decoder.trx):
            decoder.pass_rows(batch.num_rows)
            count += batch.num_rows
            self.counts.row_count += batch.num_rows
            self._emit(Run(rows=(Rows(relation=relation, batch=batch),)), batch.nbytes)
            point("extract.resend.rows")
        decoder.commit(position)
        self.cut()
        return count

    # -- runs --------------------------------------------------------------------------------

    def cut_when_whole(self) -> bool:
        """Emit pending rows unless a transaction is open; return whether one is open."""
        if not self._decoder.in_transaction:
            self.cut()
        return self._decoder.in_transaction

    def cut(self) -> None:
        """Emit everything pending as a run, which ends a transaction if none is open."""
        decoder = self._decoder
        byte_count = decoder.byte_count
        rows = tuple(decoder.take())
        end = None if decoder.in_transaction else self._flush_point()
        if rows or self._markers or self._relations or (self._unfinished and end is not None):
            self._count(rows)
            run = Run(
                rows=rows,
                markers=tuple(self._markers),
                relations=tuple(self._relations),
                transactions=decoder.take_transactions(),
                end=end,
            )
            self._markers, self._relations = [], []
            self._unfinished = end is None
            self._emit(run, byte_count)
        elif end is not None and end.position > self._position:
            self._position = end.position
            self._on_idle(end)
        if end is not None:
            self._position = end.position

    def _flush_point(self) -> FlushPoint:
        decoder = self._decoder
        return FlushPoint(
            position=max(self._position, decoder.end_position, self.counts.received_position),
            gsn=decoder.gsn,
            trx=decoder.trx,
            commit_time_us=decoder.commit_time_us or self._start.commit_time_us,
        )

    def _count(self, rows: Sequence[Rows]) -> None:
        self.counts.row_count += sum(one.batch.num_rows for one in rows)
        self.counts.ignored_row_count = self._decoder.ignored_count
        self.counts.transaction_count = self._decoder.trx - self._start.trx

    # -- messages ----------------------------------------------------------------------------

    def _keepalive(self, payload: memoryview) -> None:
        message = keepalive(payload)
        # The server has sent all before this position: a run cut from now on ends at least here.
        self._note_received(message.position)
        self.counts.server_time_us = message.server_time_us
        if message.reply_now:
            self._on_reply()

    def note_reached(self, position: int) -> None:
        """Note that everything committed before position was fed, so a run that is cut now ends
        there.
        """
        self._note_received(position)

    def _note_received(self, position: int) -> None:
        self.counts.received_position = max(self.counts.received_position, position)

    def _message(self, body: memoryview) -> None:
        message = parse_message(body)
        if isinstance(message, RelationMessage):
            self._arrival += 1
            self._relation(message, self._arrival)
        elif isinstance(message, TruncateMessage):
            self._truncate(message)
        elif isinstance(message, LogicalMessage):
            self._logical_message(message)
        elif isinstance(message, StreamStart):
            self._spill.start_block(message.xid, first=message.first)
        elif isinstance(message, StreamAbort):
            self._spill.abort(message.xid, message.subxid)
        elif isinstance(message, StreamCommit):
            self._replay(message)
        elif isinstance(message, StreamStop):
            self._spill.stop_block()
        elif not isinstance(message, TypeMessage | OriginMessage):
            raise StreamUnexpected(
                f"unexpected {type(message).__name__} in the stream",
                hint=f"The slot must not be two-phase: {LOAD_AGAIN}",
            )

    def _relation(self, message: RelationMessage, arrival: int) -> None:
        relation = self._shapes.resolve(message)
        if self._on_relation is not None:
            self._on_relation(message)
        self._bind(message.source_id, relation, arrival)

    def bind(self, source_id: int, relation: Relation) -> None:
        """Give the rows of source_id this relation from now on, until the server sends another."""
        self._arrival += 1
        self._bind(source_id, relation, self._arrival)

    def introduce(self, relation: Relation) -> None:
        """Have the next run say a shape, whether rows have it or not."""
        self._relations.append(relation)

    def unbind(self, source_id: int) -> None:
        """Ignore rows of source_id from now on, until the server sends a captured relation."""
        self._arrival += 1
        self._bind(source_id, None, self._arrival)

    def _bind(self, source_id: int, relation: Relation | None, arrival: int) -> None:
        while relation is not None and relation in self._widened:
            relation = self._widened[relation]
        self._bound[source_id] = _Bound(relation=relation, arrival=arrival)
        if relation is None:
            self._decoder.ignore(source_id)
        else:
            self._decoder.bind(source_id, relation)

    def widen(self) -> None:
        """Bind the table with a text column from this row on: a value does not fit the column's
        neutral type.
        """
        source_id, column = self._decoder.widen
        relation = self._decoder.bindings()[source_id]
        if relation.columns[column].neutral == "string":
            raise StreamUnexpected(
                f"column {relation.columns[column].name} of {relation.full_name} is text already"
            )
        wider = self._shapes.widen(relation, column)
        self._widened[relation] = wider
        self._bind(source_id, wider, self._bound[source_id].arrival)
        logger.info(
            "column is kept as text from now on",
            table=relation.full_name,
            column=relation.columns[column].name,
        )

    def _truncate(self, message: TruncateMessage) -> None:
        relations = [
            bound.relation
            for source_id in message.source_ids
            if (bound := self._bound.get(source_id)) is not None and bound.relation is not None
        ]
        if relations:
            # The message may be the only one that has this shape: no row tells it.
            self._relations.extend(relations)
            self.mark(
                MarkerKind.TRUNCATE,
                tables=tuple((relation.schema, relation.name) for relation in relations),
                data={"cascade": message.cascade, "restart_identity": message.restart_identity},
            )

    def mark(
        self,
        kind: MarkerKind,
        *,
        tables: tuple[tuple[str, str], ...] = (),
        data: dict[str, Any] | None = None,
    ) -> None:
        """Place a marker behind the last row of the open transaction."""
        gsn, trx = self._decoder.note_marker()
        self._markers.append(
            Marker(
                kind=kind,
                gsn=gsn,
                trx=trx,
                position=self._decoder.commit_position,
                commit_time_us=self._decoder.commit_time_us,
                tables=tables,
                data=data or {},
            )
        )

    def _logical_message(self, message: LogicalMessage) -> None:
        if not message.transactional and not self._decoder.in_transaction:
            self._note_received(message.position)
        sent_us = sent_us_in(message, self._slot)
        if sent_us is not None:
            self.mark(MarkerKind.HEARTBEAT, data={"sent_us": sent_us})
            return
        is_global = message.transactional and is_global_prefix(message.prefix)
        if message.prefix.startswith(INTERNAL_PREFIX) and not is_global:
            if self._on_message is not None:
                self._on_message(message)
            return
        if not self._keep_messages and not is_global:
            self.counts.ignored_message_count += 1
            return
        data = {"prefix": message.prefix, "transactional": message.transactional}
        data |= _message_content(message.content)
        if message.transactional or self._decoder.in_transaction:
            self.mark(MarkerKind.MESSAGE, data=data)
            return
        # A transaction of its own, so that it has a number. Its position is its record's end.
        time_us = self._decoder.commit_time_us or self._start.commit_time_us
        self._decoder.begin(message.position - 1, time_us, 0)
        self.mark(MarkerKind.MESSAGE, data=data)
        self._decoder.commit(message.position)

    # -- streamed transactions ---------------------------------------------------------------

    def _replay(self, commit: StreamCommit) -> None:
        """Decode the side file of a transaction that has just been committed."""
        streamed = self._spill.commit(commit.xid)
        before = dict(self._bound)
        self._decoder.begin(commit.position, commit.commit_time_us, commit.xid)
        arrivals = iter(streamed.relation_arrivals)
        file = self._spill.open_read(streamed)
        try:
            offset, want = 0, REPLAY_READ_BYTES
            while offset < streamed.size_bytes:
                piece = file.read(offset, min(want, streamed.size_bytes - offset))
                count = self._replay_piece(memoryview(piece), streamed, arrivals)
                if count == 0 and len(piece) < want:
                    raise SpillBroken(f"{streamed.path} ends inside a frame at byte {offset}")
                want = REPLAY_READ_BYTES if count else want * 2
                offset += count
        finally:
            file.close()
        self._decoder.commit(commit.end_position)
        self._merge_shapes(before)
        self._spill.remove(commit.xid)
        if self._unfinished or self._decoder.row_count >= self._limits.row_count:
            self.cut()

    def _replay_piece(self, piece: memoryview, streamed: Streamed, arrivals: Any) -> int:
        decoder = self._decoder
        at = 0
        while True:
            at = decoder.replay(piece, at, len(piece), self._limits.row_count, streamed.aborted)
            stop = decoder.stop
            if stop is Stop.MORE:
                if decoder.byte_count >= self._limits.byte_count:
                    self.cut()
                return at
            if stop is Stop.LIMIT:
                self.cut()
            elif stop is Stop.WIDEN:
                self.widen()
            elif stop is Stop.MESSAGE:
                self._replay_message(piece[slice(*decoder.message)], streamed, arrivals)
            else:
                raise SpillBroken(f"{streamed.path} holds a frame that is not of a transaction")

    def _replay_message(self, body: memoryview, streamed: Streamed, arrivals: Any) -> None:
        message = parse_message(body, streamed=True)
        if isinstance(message, RelationMessage):
            arrival = next(arrivals)
            # A shape from a rolled back part is of no row: the server sends it again.
            if message.xid not in streamed.aborted:
                self._relation(message, arrival)
        elif isinstance(message, TypeMessage | OriginMessage) or (
            isinstance(message, TruncateMessage | LogicalMessage)
            and message.xid in streamed.aborted
        ):
            return
        elif isinstance(message, TruncateMessage):
            self._truncate(message)
        elif isinstance(message, LogicalMessage):
            self._logical_message(message)
        else:
            raise SpillBroken(f"{streamed.path} holds a {type(message).__name__}")

    def _merge_shapes(self, before: dict[int, _Bound]) -> None:
        """Bind, after a streamed transaction, each table to the shape that arrived last."""
        for source_id, now in list(self._bound.items()):
            old = before.get(source_id)
            if old is not None and old.arrival > now.arrival:
                self._bind(source_id, old.relation, old.arrival)


def _message_content(content: bytes) -> dict[str, str]:
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"content_base64": base64.b64encode(content).decode()}
