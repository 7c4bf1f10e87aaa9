"""Decompress events: MySQL's TRANSACTION_PAYLOAD, MariaDB's compressed QUERY and rows events.

The results are events as in an uncompressed log, without checksums. Sizes that an event claims are
never trusted before the bytes are there. A payload is decompressed in pieces: however large it
becomes, only its compressed bytes, two pieces and one event are in memory.
"""

from __future__ import annotations

import struct
import zlib

import pyarrow as pa

from penstock.codec.mysql.binlog_events import HEAD_BYTES, EventKind
from penstock.codec.mysql.binlog_outcome import EVENT_LENGTH_MAX_BYTES, Reason, binlog_error
from penstock.codec.mysql.malformed import Malformed

_ZSTD, _STORED = 0, 255
CHUNK_BYTES = 1 << 20
_INFLATED_KINDS = {
    EventKind.WRITE_ROWS_COMPRESSED_V1: EventKind.WRITE_ROWS_V1,
    EventKind.UPDATE_ROWS_COMPRESSED_V1: EventKind.UPDATE_ROWS_V1,
    EventKind.DELETE_ROWS_COMPRESSED_V1: EventKind.DELETE_ROWS_V1,
    EventKind.WRITE_ROWS_COMPRESSED: EventKind.WRITE_ROWS,
    EventKind.UPDATE_ROWS_COMPRESSED: EventKind.UPDATE_ROWS,
    EventKind.DELETE_ROWS_COMPRESSED: EventKind.DELETE_ROWS,
}


def inflate(data: bytes) -> bytes:
    """Decompress data of MariaDB: a byte, 0x80 plus the number of size bytes, the size, a zlib
    stream.

    Raises Malformed.
    """
    if not data or data[0] & 0xF8 != 0x80 or not 1 <= data[0] & 7 <= 4:
        raise Malformed
    width = data[0] & 7
    size = int.from_bytes(data[1 : 1 + width])
    if size > EVENT_LENGTH_MAX_BYTES:
        raise Malformed
    machine = zlib.decompressobj()
    try:
        out = machine.decompress(data[1 + width :], size + 1)
    except zlib.error as error:
        raise Malformed from error
    if len(out) != size or not machine.eof:
        raise Malformed
    return out


def _length(data: bytes | memoryview, at: int) -> tuple[int, int]:
    if at >= len(data):
        raise Malformed
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if size is None or at + 1 + size > len(data):
        raise Malformed
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


class Payload:
    """The events inside a TRANSACTION_PAYLOAD event, returned in pieces."""

    def __init__(self, event: bytes | memoryview) -> None:
        """Read the event's fields. event: head and body; it is kept. Raises BinlogBroken (reason
        payload).
        """
        self._size = 0
        self._claimed = -1
        try:
            self._open(memoryview(event)[HEAD_BYTES:])
        except Malformed as error:
            raise binlog_error(Reason.PAYLOAD, 0) from error
        self._ahead = self._read()

    @property
    def is_used_up(self) -> bool:
        """Return whether nothing more will arrive."""
        return not self._ahead

    def more(self, rest: bytes) -> bytes:
        """Return the next bytes, which follow `rest`, the remaining part of an event.

        They contain the whole event that begins with `rest`, unless there is no more. The last
        bytes are returned only after everything was decompressed and has the right size, so a
        commit in them is not seen earlier. Raises BinlogBroken (reason payload).
        """
        wanted = len(rest) + 1
        if len(rest) >= HEAD_BYTES:
            wanted = int.from_bytes(rest[9:13], "little")
        parts, size = [rest], len(rest)
        while self._ahead and size < wanted:
            parts.append(self._ahead)
            size += len(self._ahead)
            self._ahead = self._read()
        return b"".join(parts)

    def _open(self, body: memoryview) -> None:
        compression, size = _ZSTD, -1
        at = 0
        while True:
            kind, at = _length(body, at)
            if kind == 0:
                break
            length, at = _length(body, at)
            if at + length > len(body):
                raise Malformed
            number, end = _length(body, at)
            if end > at + length:
                raise Malformed
            if kind == 1:
                size = number
            elif kind == 2:
                compression = number
            elif kind == 3:
                self._claimed = number
            at += length
        packed = body[at:]
        if size not in (-1, len(packed)):
            raise Malformed
        if compression not in (_ZSTD, _STORED):
            raise Malformed
        stored = pa.BufferReader(packed)
        self._stream = (
            stored if compression == _STORED else pa.CompressedInputStream(stored, "zstd")
        )

    def _read(self) -> bytes:
        try:
            piece: bytes = self._stream.read(CHUNK_BYTES)
        except (OSError, pa.ArrowException) as error:
            raise binlog_error(Reason.PAYLOAD, 0) from error
        self._size += len(piece)
        is_wrong = self._size > self._claimed if piece else self._size != self._claimed
        if is_wrong and self._claimed != -1:
            raise binlog_error(Reason.PAYLOAD, 0)
        return piece


def inflated_rows(event: bytes) -> bytes:
    """Return a rows event that MariaDB compressed in its uncompressed form.

    The length in the head is replaced. Raises BinlogBroken (reason payload).
    """
    try:
        return _inflated_rows(bytes(event))
    except (Malformed, IndexError) as error:
        raise binlog_error(Reason.PAYLOAD, 0) from error


def _inflated_rows(event: bytes) -> bytes:
    kind = _INFLATED_KINDS[EventKind(event[4])]
    at = HEAD_BYTES + 8
    if kind in (EventKind.WRITE_ROWS, EventKind.UPDATE_ROWS, EventKind.DELETE_ROWS):
        at += int.from_bytes(event[at : at + 2], "little")
    width, at = _length(event, at)
    is_update = kind in (EventKind.UPDATE_ROWS, EventKind.UPDATE_ROWS_V1)
    at += (width + 7) // 8 * (2 if is_update else 1)
    if at > len(event):
        raise Malformed
    rows = inflate(event[at:])
    head = bytearray(event[:at])
    head[4] = kind
    struct.pack_into("<I", head, 9, at + len(rows))
    return bytes(head) + rows
