"""Catching up: reading changes that are far behind by COPY, in bounded ranges, before streaming
begins.

The walsender makes one send() per message, each a packet of its own unless the server is near
(`host/socket.py`); COPY of pg_logical_slot_peek_binary_changes() fills its buffers, which sends the
same messages faster. From a near server the stream is as fast, and comes without pauses. The server
answers a range only when it has decoded it whole, and decodes from the slot's restart_lsn each
time, so ranges are bounded in WAL, and an old open transaction, which holds restart_lsn back, ends
the catching up. Peeking moves nothing: the slot is advanced over a range only after the log has it
on disk.

A row of the binary COPY is made as long as the frame of the stream: three fields, of 8 bytes, 3
bytes and the message, put the message 25 bytes behind the start of the payload, where XLogData
has it. So only the first byte differs, and the decoder takes the rows where they lie.
Source: PostgreSQL manual, "COPY", binary format; "Replication Management Functions".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgcopy import make_as_stream
from penstock.codec.postgres.pgoutput import make_decoder
from penstock.codec.postgres.pgwire import frame_at, server_message
from penstock.engines.postgres.connect import literal
from penstock.engines.postgres.source import slot
from penstock.engines.postgres.source.assemble import Assembler, Spill
from penstock.engines.postgres.source.assembly import Shapes, StreamUnexpected
from penstock.engines.postgres.source.client import open_replication, server_error
from penstock.engines.postgres.source.slot import SlotState
from penstock.engines.postgres.source.source_identity import ServerIdentity, checked_server
from penstock.engines.postgres.source.stream import (
    BUFFER_BYTES,
    StreamOptions,
    make_room,
    protocol_options,
)
from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, Files
from penstock.model import FlushPoint, Run
from penstock.ports.source import RANGE_BYTES

logger = structlog.get_logger()
RANGE_GROWTH = 8
FIRST_PART = 16  # of a range is the first one, so that rows come soon; then they double
LAST_PART = 8
REDECODED_PART = 0.5  # a range is at least this part of what is decoded again
WAIT_S = 3600.0
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES = len(_SIGNATURE) + 8
_NOTICE = ord("N")
_TRAILER = b"\xff\xff"
_LENGTH = struct.Struct(">i")

PEEK = """
    copy (select lsn, 'www'::text, data
            from pg_logical_slot_peek_binary_changes({slot}, {upto}, null, {options}))
      to stdout (format binary)
"""

declare("catchup.advance.before", "catchup.advance.after")


class CatchUp:
    """Connection that reads a slot by ranges. A context manager, used by one thread.

    The slot must be free. Between two calls, others can use it.
    """

    def __init__(
        self,
        url: str,
        *,
        options: StreamOptions,
        start: FlushPoint,
        shapes: Shapes,
        spill_directory: Path,
        expected: ServerIdentity,
        before_run: Callable[[], None],
        range_bytes: int = RANGE_BYTES,
        files: Files = REAL_FILES,
    ) -> None:
        """Keep the position to continue from; the parameters are those of PostgresSource."""
        self.end = start
        self.identity = expected
        self._options = options
        self._shapes = shapes
        self._spill_directory = spill_directory
        self._before_run = before_run
        self._range_bytes = range_bytes
        self._files = files
        self._has_read = False
        self._most_bytes = max(1, range_bytes // FIRST_PART)
        self._connection = open_replication(url, application_name=slot.APPLICATION_NAME)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection; the slot is free then."""
        self._connection.close()

    def is_worth_it(self, behind_bytes: int) -> bool:
        """Return whether another range should be read, rather than streamed.

        A first range needs a backlog of behind_bytes of WAL; after that an eighth of it suffices,
        because the stream would cost more for the rest. Raises the errors that would also stop a
        stream: a gap, a lost slot, another server or timeline, a missing publication. Sets
        `identity` to the server's.
        """
        connection, position = self._connection, self.end.position
        self.identity = checked_server(connection, self.identity, position)
        slot.check_publication(connection, self._options.publication)
        state = slot.read_slot(connection, self._options.slot)
        slot.check_slot(
            state, self._options.slot, database=self.identity.database, position=position
        )
        if state is None or state.active_pid:
            return False  # whichever process reads it: the stream waits until it is free
        behind = self._server_end() - max(position, state.confirmed_flush)
        if self._has_read:
            behind_bytes = max(1, behind_bytes // LAST_PART)
        return behind >= behind_bytes and self._range_from(state) is not None

    def _server_end(self) -> int:
        """Return the end of the server's WAL on disk; 0 on a standby, where no slot is advanced."""
        return slot.flushed_position(self._connection)

    def _range_from(self, state: SlotState) -> tuple[int, int] | None:
        """Return begin and end of the next range; None if ranges would cost too much.

        The server decodes from the slot's restart LSN, which moves every 15 seconds at most and not
        beyond the oldest open transaction. The more WAL lies between it and the range, the longer
        the range, up to a bound. Decoding again without output costs 0.4 us per row of W, including
        the advance of the slot; output costs 1.6 us by ranges and 4 us by the stream. So ranges are
        far cheaper up to that bound.
        """
        begin = max(self.end.position, state.confirmed_flush)
        length = max(self._range_bytes, int(REDECODED_PART * (begin - state.restart)))
        if length > RANGE_GROWTH * self._range_bytes:
            return None
        return begin, begin + min(length, self._most_bytes)

    def read_range(self) -> Iterator[Run]:
        """Yield the transactions of one range, in runs like those of the stream.

        Afterwards `end` is the range's end. Every run whose end is set may be made durable
        separately, because the order is the stream's.
        """
        state = slot.read_slot(self._connection, self._options.slot)
        found = self._range_from(state) if state is not None else None
        if found is None:
            return
        self._has_read = True
        self._most_bytes = min(2 * self._most_bytes, RANGE_GROWTH * self._range_bytes)
        # Never beyond the server's end: what it writes later would count as read.
        upto = min(found[1], self._server_end())
        if upto < found[1]:
            # Else the stream would have to decode all ranges once more before its first row.
            slot.log_running_transactions(self._connection)
            upto = min(found[1], self._server_end())
        runs: list[Run] = []
        assembler = self._assembler(runs)
        for block, start, end in self._blocks(upto):
            assembler.feed(block, start, end)
            yield from self._give(runs)
        assembler.note_reached(upto)
        if assembler.cut_when_whole():
            raise StreamUnexpected("a range of changes ended inside a transaction")
        yield from self._give(runs)

    def _give(self, runs: list[Run]) -> Iterator[Run]:
        if runs:
            self._before_run()
        for run in runs:
            self.end = run.end or self.end
            yield run
        runs.clear()

    def _assembler(self, runs: list[Run]) -> Assembler:
        """Return a new assembler for each range, because the server repeats shapes and open
        transactions.
        """
        options = self._options
        return Assembler(
            decoder=make_decoder(gsn=self.end.gsn, trx=self.end.trx),
            shapes=self._shapes,
            spill=Spill(self._spill_directory, self._files),
            start=self.end,
            emit=lambda run, _: runs.append(run),
            on_idle=lambda end: runs.append(Run(end=end)),
            on_reply=lambda: None,
            keep_messages=options.keep_messages,
            slot=options.slot,
            limits=options.limits,
        )

    def _blocks(self, upto: int) -> Iterator[tuple[memoryview, int, int]]:
        """Yield whole frames as the stream would have sent them: block, start and end."""
        connection, as_stream = self._connection, make_as_stream()
        words = protocol_options(connection.server_version, self._options)
        sql = PEEK.format(
            slot=literal(self._options.slot),
            upto=literal(str(Lsn(upto))),
            options=", ".join(literal(word) for pair in words for word in pair),
        )
        connection.start_copy(sql, doing="reading a range of changes")
        buffer = bytearray(BUFFER_BYTES)
        first = connection.leftover()
        if len(first) > len(buffer):
            buffer.extend(first)
        buffer[: len(first)] = first
        start, end, has_begun = 0, len(first), False
        while True:
            while not has_begun and end > start and buffer[start] == _NOTICE:
                notice = frame_at(buffer, start, end)
                if notice is None:
                    break
                yield memoryview(buffer), start, notice.end  # perhaps about a lost publication
                start = notice.end
            if not has_begun:
                begun = _without_header(buffer, start, end)
                if begun is not None:
                    has_begun, (row, start) = True, begun
                    if row:
                        yield memoryview(row), 0, len(row)
            if has_begun:
                stop, is_last = as_stream(buffer, start, end)
                if stop > start:
                    yield memoryview(buffer), start, stop
                    start = stop
                if is_last:
                    break
                frame_at(buffer, start, end)  # raises where it has an impossible length
            buffer, start, end = make_room(buffer, start, end)
            end += connection.wire.receive_into(memoryview(buffer)[end:], WAIT_S)
        connection.finish_copy(bytes(memoryview(buffer)[start:end]), doing="ending a range")

    def advance(self) -> None:
        """Let the server forget the WAL before `end`, which is on our disk."""
        point("catchup.advance.before")
        self._connection.query(
            f"select pg_replication_slot_advance({literal(self._options.slot)},"
            f" {literal(str(Lsn(self.end.position)))})",
            doing=f"advancing slot {self._options.slot}",
        )
        point("catchup.advance.after")


def _without_header(buffer: bytearray, start: int, end: int) -> tuple[bytes, int] | None:
    """Return the first frame's row without the file's header, and where the next frame begins.

    The header comes in one frame with the first row, or alone. None: it is not there yet. Raises
    the server's error.
    """
    frame = frame_at(buffer, start, end)
    if frame is None:
        return None
    body = bytes(buffer[frame.start : frame.end])
    if frame.kind == ord("E"):
        raise server_error("reading a range of changes", server_message(body))
    if frame.kind != ord("d") or not body.startswith(_SIGNATURE):
        raise StreamUnexpected("a range of changes does not begin as binary COPY does")
    row = body[_HEADER_BYTES:]
    if row in (b"", _TRAILER):
        return b"", frame.end
    return b"d" + _LENGTH.pack(len(row) + 4) + b"w" + row[1:], frame.end
