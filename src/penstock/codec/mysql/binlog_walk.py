"""Split packets or file bytes into single events, with checksums and the place in the log.

This is the lower part of the decoder; `binlog` interprets the events.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.codec.mysql.binlog_compressed import Payload
from penstock.codec.mysql.binlog_events import CHECKSUM_BYTES, HEAD_BYTES, EventFlag, EventKind
from penstock.codec.mysql.binlog_images import Binding
from penstock.codec.mysql.binlog_outcome import (
    EVENT_LENGTH_MAX_BYTES,
    FILE_NUMBER_MAX,
    GAP_MAX_BYTES,
    OFFSET_BITS,
    BinlogBroken,
    Reason,
    Stop,
    binlog_error,
)

# Events that say nothing that is needed here.
PASSED_KINDS = frozenset(
    (
        EventKind.STOP,
        EventKind.HEARTBEAT,
        EventKind.HEARTBEAT_V2,
        EventKind.TRANSACTION_CONTEXT,
        EventKind.VIEW_CHANGE,
        EventKind.BINLOG_CHECKPOINT,
    )
)
HEARTBEATS = frozenset((EventKind.HEARTBEAT, EventKind.HEARTBEAT_V2))
GTID_KINDS = frozenset(
    (
        EventKind.GTID,
        EventKind.ANONYMOUS_GTID,
        EventKind.GTID_TAGGED,
        EventKind.MARIA_GTID,
    )
)
INFLATED_KINDS = frozenset(range(EventKind.WRITE_ROWS_COMPRESSED_V1, 172))
# An event that says where the stream is never comes inside another one; nor does a payload, which
# could nest for ever.
OUTER_KINDS = GTID_KINDS | {
    EventKind.ROTATE,
    EventKind.FORMAT_DESCRIPTION,
    EventKind.TRANSACTION_PAYLOAD,
}
ROW_KINDS = frozenset(
    (
        EventKind.WRITE_ROWS_V1,
        EventKind.UPDATE_ROWS_V1,
        EventKind.DELETE_ROWS_V1,
        EventKind.WRITE_ROWS,
        EventKind.UPDATE_ROWS,
        EventKind.DELETE_ROWS,
        EventKind.PARTIAL_UPDATE_ROWS,
    )
)
STATEMENT_KINDS = frozenset((EventKind.ROWS_QUERY, EventKind.ANNOTATE_ROWS))
# Handed to Python by themselves.
MESSAGE_KINDS = frozenset(
    (
        EventKind.QUERY,
        EventKind.ROTATE,
        EventKind.INTVAR,
        EventKind.APPEND_BLOCK,
        EventKind.DELETE_FILE,
        EventKind.RAND,
        EventKind.USER_VAR,
        EventKind.FORMAT_DESCRIPTION,
        EventKind.BEGIN_LOAD_QUERY,
        EventKind.EXECUTE_LOAD_QUERY,
        EventKind.INCIDENT,
        EventKind.PREVIOUS_GTIDS,
        EventKind.XA_PREPARE,
        EventKind.GTID_LIST,
        EventKind.QUERY_COMPRESSED,
    )
)
# Of those, what ends a group that holds one statement alone.
ENDING_KINDS = frozenset(
    (
        EventKind.QUERY,
        EventKind.QUERY_COMPRESSED,
        EventKind.EXECUTE_LOAD_QUERY,
        EventKind.DELETE_FILE,
        EventKind.INCIDENT,
    )
)
MAGIC = b"\xfebin"
MAGIC_ENCRYPTED = b"\xfdbin"  # MySQL; MariaDB encrypts behind a START_ENCRYPTION event
_FILE_NAME = re.compile(rb"[!-~]+\.([0-9]{1,10})")


@dataclass(slots=True)
class SideEvents:
    """Events that are not in the block: joined from packets, decompressed, rewritten.

    Attributes:
        sealed: whether they came from the server, with checksums; then they move the position.
        payload: source of more events, once these are used.
    """

    data: memoryview
    sealed: bool
    at: int = 0
    payload: Payload | None = None


@dataclass(slots=True)
class Scope:
    """Table ids and events outside the block, of the stream or of a replayed transaction."""

    bindings: dict[int, Binding] = field(default_factory=dict)
    sides: list[SideEvents] = field(default_factory=list)


def file_number(name: bytes, at: int) -> int:
    """Return the number at the end of a binlog file's name. Raises BinlogBroken with
    offset `at`.
    """
    match = _FILE_NAME.fullmatch(name)
    if match is None or int(match[1]) > FILE_NUMBER_MAX:
        raise binlog_error(Reason.FILE_NAME, at)
    return int(match[1])


def position_of(number: int, offset: int) -> int:
    """Return a place in the log as one ordered number: file number, then offset in the file."""
    return number << OFFSET_BITS | offset


def has_checksum(event: memoryview) -> bool:
    """Return whether a fake ROTATE event ends with a checksum, by testing its last four bytes.

    The server writes the checksum as this connection requested it, whatever its files have.
    """
    if len(event) < HEAD_BYTES + 8 + CHECKSUM_BYTES:
        return False
    return checksum_matches(event)


def checksum_matches(event: memoryview) -> bool:
    """Return whether an event's checksum is right. A file that is still open counts as closed."""
    body = event[:-CHECKSUM_BYTES]
    if event[4] == EventKind.FORMAT_DESCRIPTION:
        closed = bytearray(body)
        closed[17] &= ~EventFlag.IN_USE & 0xFF
        body = memoryview(bytes(closed))
    return zlib.crc32(body) == int.from_bytes(event[-CHECKSUM_BYTES:], "little")


Taken = tuple[int, Stop | None] | None
Block = bytes | bytearray | memoryview

_EVENT, _EOF, _ERROR = 0x00, 0xFE, 0xFF
_PACKET_HEAD_BYTES = 4
_PACKET_MAX_BYTES = 0xFF_FFFF
_EOF_BYTES_MAX = 9


class Walker(ABC):
    """Parser of packets, file bytes and events outside the block; it keeps the place in the log."""

    stop: Stop
    message: bytes
    file_number: int
    offset: int
    _checksums: bool | None
    _scope: Scope
    _joining: list[bytes] | None
    _row_at: int
    _closing: bool

    @abstractmethod
    def _dispatch(self, block: memoryview, start: int, end: int, sealed: bool) -> Stop | None:
        """Handle one event, block[start:end] without checksum."""

    @abstractmethod
    def _close(self) -> Stop | None:
        """End the transaction."""

    def _walk(
        self,
        block: Block,
        start: int,
        end: int,
        take: Callable[[memoryview, int, int], Taken],
    ) -> int:
        """Handle packet after packet; events outside the block precede the rest of the block."""
        view = view_block(block, start, end)
        at = start
        self.stop, self.message = Stop.MORE, b""
        while True:
            stop: Stop | None = None
            if self._closing:
                stop = self._close()
            elif self._scope.sides:
                stop = self._side_event()
            else:
                taken = take(view, at, end)
                if taken is None:
                    return at
                at, stop = taken
            if stop is not None:
                self.stop = stop
                return at

    def _packet(self, block: memoryview, at: int, end: int) -> Taken:
        """Handle one packet; return the place of the next one and why to stop, None if
        incomplete.
        """
        if end - at < _PACKET_HEAD_BYTES:
            return None
        length = int.from_bytes(block[at : at + 3], "little")
        start = at + _PACKET_HEAD_BYTES
        behind = start + length
        if behind > end:
            return None
        if self._joining is not None:
            self._join(block[start:behind], at)
            return behind, None
        status = block[start] if length else -1
        if status == _ERROR or (status == _EOF and length < _EOF_BYTES_MAX):
            self.message = bytes(block[start:behind])
            return at, Stop.OTHER_FRAME
        if status != _EVENT:
            raise binlog_error(Reason.PACKET, at)
        if length == _PACKET_MAX_BYTES:
            self._joining = []
            self._join(block[start + 1 : behind], at)
            return behind, None
        stop = self._event(block, start + 1, behind, sealed=True)
        return (at if stop in (Stop.LIMIT, Stop.WIDEN) else behind), stop

    def _join(self, piece: memoryview, at: int) -> None:
        """Append a piece of a long event to the others. The last piece is shorter than
        the maximum.
        """
        assert self._joining is not None
        is_last = len(piece) + (not self._joining) < _PACKET_MAX_BYTES
        self._joining.append(bytes(piece))
        if sum(map(len, self._joining)) > EVENT_LENGTH_MAX_BYTES:
            raise binlog_error(Reason.EVENT_LENGTH, at)
        if is_last:
            self._scope.sides.append(SideEvents(memoryview(b"".join(self._joining)), sealed=True))
            self._joining = None

    def _file_event(self, block: memoryview, at: int, end: int) -> Taken:
        if self.offset == 0:
            if end - at < len(MAGIC):
                return None
            magic = bytes(block[at : at + len(MAGIC)])
            if magic != MAGIC:
                encrypted = magic == MAGIC_ENCRYPTED
                raise binlog_error(Reason.ENCRYPTED if encrypted else Reason.MAGIC, at)
            self.offset = len(MAGIC)
            return at + len(MAGIC), None
        behind = event_end(block, at, end)
        if behind is None:
            return None
        if block[at + 4] == EventKind.START_ENCRYPTION:
            raise binlog_error(Reason.ENCRYPTED, at)
        stop = self._event(block, at, behind, sealed=True)
        return (at if stop in (Stop.LIMIT, Stop.WIDEN) else behind), stop

    def _bare_event(self, block: memoryview, at: int, end: int) -> Taken:
        behind = event_end(block, at, end)
        if behind is None:
            return None
        stop = self._event(block, at, behind, sealed=False)
        return (at if stop in (Stop.LIMIT, Stop.WIDEN) else behind), stop

    def _side_event(self) -> Stop | None:
        sides = self._scope.sides
        side = sides[-1]
        at = side.at
        behind = event_end(side.data, at, len(side.data))
        if behind is None and side.payload is not None and not side.payload.is_used_up:
            side.data, side.at = memoryview(side.payload.more(bytes(side.data[at:]))), 0
            return None
        if at == len(side.data):
            sides.pop()
            return None
        if behind is None:
            raise binlog_error(Reason.EVENT_LENGTH, at)
        side.at = behind  # before more is put on top of it
        stop = self._event(side.data, at, behind, sealed=side.sealed)
        if stop in (Stop.LIMIT, Stop.WIDEN):
            side.at = at
        return stop

    def _event(self, block: memoryview, start: int, end: int, *, sealed: bool) -> Stop | None:
        """Handle one event. sealed: it is from the server, with a checksum, and moves
        the position.
        """
        if end - start < HEAD_BYTES or u32(block, start + 9) != end - start:
            raise binlog_error(Reason.EVENT_LENGTH, start)
        body_end = self._unseal(block, start, end) if sealed else end
        before = self.offset
        if sealed:
            self.offset = self._offset_behind(block, start, end)
        try:
            stop = self._dispatch(block, start, body_end, sealed)
        except BinlogBroken:
            self.offset = before
            raise
        if stop in (Stop.LIMIT, Stop.WIDEN):
            self.offset = before
        return stop

    def _unseal(self, block: memoryview, start: int, end: int) -> int:
        """Check the checksum, if the event has one; return where the body ends."""
        kind, flags = block[start + 4], u16(block, start + 17)
        event = block[start:end]
        if kind == EventKind.FORMAT_DESCRIPTION:
            sealed: bool | None = True
        elif kind == EventKind.ROTATE and flags & EventFlag.ARTIFICIAL:
            sealed = has_checksum(event)
        else:
            sealed = self._checksums
        if sealed is None:
            raise binlog_error(Reason.NO_FORMAT, start)
        if not sealed:
            return end
        if len(event) < HEAD_BYTES + CHECKSUM_BYTES:
            raise binlog_error(Reason.EVENT_LENGTH, start)
        if not self._row_at and not checksum_matches(event):
            raise binlog_error(Reason.CHECKSUM, start)
        return end - CHECKSUM_BYTES

    def _offset_behind(self, block: memoryview, start: int, end: int) -> int:
        """Return where the event ends in its file: the head has only the lower 32 bits of that."""
        kind, flags, stated = block[start + 4], u16(block, start + 17), u32(block, start + 13)
        if flags & EventFlag.ARTIFICIAL or kind in HEARTBEATS:
            return self.offset
        expected = self.offset + end - start
        if stated == 0 and (kind == EventKind.FORMAT_DESCRIPTION or expected & 0xFFFF_FFFF):
            return self.offset
        # The server may have left events out before this one, but never goes back.
        gap = stated - expected & 0xFFFF_FFFF
        behind = expected + gap
        if gap > GAP_MAX_BYTES or behind >> OFFSET_BITS:
            raise binlog_error(Reason.PLACE, start)
        return behind


def event_end(block: memoryview, at: int, end: int) -> int | None:
    """Return where a bare event ends; None if it is not whole. Raises BinlogBroken."""
    if end - at < HEAD_BYTES:
        return None
    length = u32(block, at + 9)
    if not HEAD_BYTES <= length <= EVENT_LENGTH_MAX_BYTES:
        raise binlog_error(Reason.EVENT_LENGTH, at)
    return at + length if at + length <= end else None


def u16(block: memoryview, at: int) -> int:
    """Return two bytes as a number."""
    return int.from_bytes(block[at : at + 2], "little")


def u32(block: memoryview, at: int) -> int:
    """Return four bytes as a number."""
    return int.from_bytes(block[at : at + 4], "little")


def view_block(block: Block, start: int, end: int) -> memoryview:
    """Return the block as bytes that can be indexed. Raises ValueError."""
    view = memoryview(block)
    if view.format != "B" or view.ndim != 1:
        raise ValueError("block must be plain bytes")
    if not 0 <= start <= end <= len(view):
        raise ValueError("start and end must lie within the block")
    return view
