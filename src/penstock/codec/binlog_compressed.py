"""Compressed events: MySQL's TRANSACTION_PAYLOAD, MariaDB's compressed QUERY and rows events.

What comes out is events as they would have stood in the log, without checksums. Sizes that an
event claims are never trusted before the bytes are there.
"""

from __future__ import annotations

import struct
import zlib

import pyarrow as pa

from penstock.codec.binlog_events import HEAD_BYTES, EventKind
from penstock.codec.binlog_outcome import (
    EVENT_LENGTH_MAX_BYTES,
    PAYLOAD_LENGTH_MAX_BYTES,
    Reason,
    binlog_error,
)
from penstock.codec.mysql_malformed import Malformed

_ZSTD, _STORED = 0, 255
_CHUNK_BYTES = 1 << 20
_INFLATED_KINDS = {
    EventKind.WRITE_ROWS_COMPRESSED_V1: EventKind.WRITE_ROWS_V1,
    EventKind.UPDATE_ROWS_COMPRESSED_V1: EventKind.UPDATE_ROWS_V1,
    EventKind.DELETE_ROWS_COMPRESSED_V1: EventKind.DELETE_ROWS_V1,
    EventKind.WRITE_ROWS_COMPRESSED: EventKind.WRITE_ROWS,
    EventKind.UPDATE_ROWS_COMPRESSED: EventKind.UPDATE_ROWS,
    EventKind.DELETE_ROWS_COMPRESSED: EventKind.DELETE_ROWS,
}


def inflated(data: bytes) -> bytes:
    """What MariaDB compressed: a byte 0x80 and the size's bytes, the size, a zlib stream.

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


def _length(data: bytes, at: int) -> tuple[int, int]:
    if at >= len(data):
        raise Malformed
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if size is None or at + 1 + size > len(data):
        raise Malformed
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def payload_events(event: bytes) -> bytes:
    """The events inside a TRANSACTION_PAYLOAD event, one behind the other.

    Raises BinlogBroken (reason payload).
    """
    try:
        return _payload(bytes(event[HEAD_BYTES:]))
    except (Malformed, OSError, pa.ArrowException) as error:
        raise binlog_error(Reason.PAYLOAD, 0) from error


def _payload(body: bytes) -> bytes:
    compression, size, claimed = _ZSTD, -1, -1
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
            claimed = number
        at += length
    packed = body[at:]
    if size not in (-1, len(packed)):
        raise Malformed
    if compression == _STORED:
        out = packed
    elif compression == _ZSTD:
        out = _unpacked(packed, claimed)
    else:
        raise Malformed
    if claimed not in (-1, len(out)):
        raise Malformed
    return out


def _unpacked(packed: bytes, claimed: int) -> bytes:
    """zstd, piece by piece: a size that is a lie asks for no memory."""
    bound = claimed if 0 <= claimed <= PAYLOAD_LENGTH_MAX_BYTES else PAYLOAD_LENGTH_MAX_BYTES
    pieces: list[bytes] = []
    total = 0
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        while total <= bound and (piece := stream.read(_CHUNK_BYTES)):
            pieces.append(piece)
            total += len(piece)
    if total > bound:
        raise Malformed
    return b"".join(pieces)


def inflated_rows(event: bytes) -> bytes:
    """A rows event that MariaDB compressed, as it would have been without.

    The head's length is set anew. Raises BinlogBroken (reason payload).
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
    rows = inflated(event[at:])
    head = bytearray(event[:at])
    head[4] = kind
    struct.pack_into("<I", head, 9, at + len(rows))
    return bytes(head) + rows
