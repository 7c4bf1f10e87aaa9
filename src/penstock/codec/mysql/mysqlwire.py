"""Encode and parse the part of MySQL's protocol that a replica needs. No I/O.

PyMySQL logs in and runs SQL; then its socket is used for the commands that start a dump of the
binlog, and for the packets of the dump. Little-endian throughout. Not here: the events in those
packets (`binlog_events`), sockets (`host`). Source: MySQL Internals Manual, "Replication Protocol";
seen on MySQL 8.0 and MariaDB 10.11.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.model.errors import PenstockError

COM_QUIT = 0x01
COM_BINLOG_DUMP = 0x12
COM_REGISTER_SLAVE = 0x15
COM_BINLOG_DUMP_GTID = 0x1E

DUMP_NON_BLOCK = 1  # end with EOF where the log ends, instead of waiting for more
DUMP_ANNOTATE = 2  # MariaDB: send the statements' text, too; MySQL takes the same bit otherwise

HEAD_BYTES = 4  # u24 length, u8 sequence number
PIECE_BYTES_MAX = 0xFFFFFF  # a packet of this length goes on in the next one
OK, EOF, ERROR = 0x00, 0xFE, 0xFF
EOF_BYTES_MAX = 8  # a longer packet that begins with FE is something else

EVENT_HEAD_BYTES = 19
FORMAT_DESCRIPTION, PREVIOUS_GTIDS, GTID_LIST = 15, 35, 163
_ARTIFICIAL = 0x20
_EVENT_HEAD = struct.Struct("<IBIIIH")
_DUMP = struct.Struct("<BIHI")
_DUMP_GTID = struct.Struct("<BHII")
_CHECKSUM_BYTES = 4


class PacketInvalid(PenstockError):
    """The server sent bytes that break MySQL's protocol."""

    code = "DC22"
    retry = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerError:
    """An error packet: number, SQLSTATE (empty in very early ones) and message."""

    number: int
    sqlstate: str
    message: str


class Packet(NamedTuple):
    """Place of a packet in a buffer.

    Attributes:
        start: start of its payload.
        end: end of its payload.
        is_continued: the next packet continues it.
    """

    sequence: int
    start: int
    end: int
    is_continued: bool


class WireEventHead(NamedTuple):
    """The common header of a binlog event.

    Attributes:
        time_s: seconds since 1970 UTC, 0 in artificial events.
        end_position: offset after the event in the file, modulo 2**32; 0 in artificial events.
    """

    time_s: int
    kind: int
    server_id: int
    length: int
    end_position: int
    flags: int

    @property
    def is_artificial(self) -> bool:
        """Return whether the event was created for the stream and is not in the file."""
        return bool(self.flags & _ARTIFICIAL)


# -- what a client sends -------------------------------------------------------------------------


def packet(payload: bytes) -> bytes:
    """Return a command as one packet; sequence numbers start again with each command."""
    if len(payload) >= PIECE_BYTES_MAX:
        raise PacketInvalid(f"a command of {len(payload)} bytes does not fit one packet")
    return len(payload).to_bytes(3, "little") + b"\0" + payload


def register_replica(server_id: int, *, host: str = "", port: int = 0) -> bytes:
    """Return COM_REGISTER_SLAVE, so that the server lists us among its replicas.

    server_id: ours, 1 to 2**32 - 1. host, port: shown by the server; user and password stay empty.
    """
    name = host.encode()[:60]
    return packet(
        struct.pack("<BIB", COM_REGISTER_SLAVE, server_id, len(name))
        + name
        + struct.pack("<BBHII", 0, 0, port, 0, 0)
    )


def dump(*, server_id: int, file: str, offset: int, flags: int = 0) -> bytes:
    """Return COM_BINLOG_DUMP from an offset of a file on.

    Raises PacketInvalid for an offset of 4 GiB or more, which the command cannot express.
    """
    if offset >= 2**32:
        raise PacketInvalid(f"{file}:{offset} lies beyond 4 GiB: only a GTID set can name it")
    return packet(_DUMP.pack(COM_BINLOG_DUMP, offset, flags, server_id) + file.encode())


def dump_gtid(*, server_id: int, seen: bytes, flags: int = 0) -> bytes:
    """Return COM_BINLOG_DUMP_GTID of MySQL, for everything that is not in the set.

    seen: the set in its stored form (`gtids.GtidSet.encode`).
    """
    head = _DUMP_GTID.pack(COM_BINLOG_DUMP_GTID, flags, server_id, 0)
    return packet(head + struct.pack("<QI", 4, len(seen)) + seen)


QUIT = packet(bytes([COM_QUIT]))


# -- what a server sends -------------------------------------------------------------------------


def packet_at(buffer: bytes | bytearray | memoryview, offset: int, end: int) -> Packet | None:
    """Return the packet that starts at offset; None until it is all in buffer[:end]."""
    start = offset + HEAD_BYTES
    if start > end:
        return None
    length = buffer[offset] | buffer[offset + 1] << 8 | buffer[offset + 2] << 16
    if start + length > end:
        return None
    return Packet(buffer[offset + 3], start, start + length, length == PIECE_BYTES_MAX)


def server_error(payload: bytes) -> ServerError:
    """Read an error packet, its first byte included. Raises PacketInvalid."""
    if len(payload) < 3 or payload[0] != ERROR:
        raise PacketInvalid("an error packet is cut short")
    number = payload[1] | payload[2] << 8
    rest, sqlstate = payload[3:], ""
    if rest[:1] == b"#":
        sqlstate, rest = rest[1:6].decode("ascii", errors="replace"), rest[6:]
    return ServerError(
        number=number, sqlstate=sqlstate, message=rest.decode("utf-8", errors="replace")
    )


def is_end(payload: bytes) -> bool:
    """Return whether a packet ends the dump, as with DUMP_NON_BLOCK at the end of the log."""
    return payload[:1] == bytes([EOF]) and len(payload) <= EOF_BYTES_MAX


def event_head(event: bytes | memoryview) -> WireEventHead:
    """Read an event's header. Raises PacketInvalid if it is shorter than a header or its length."""
    if len(event) < EVENT_HEAD_BYTES:
        raise PacketInvalid(f"an event of {len(event)} bytes is shorter than its header")
    head = WireEventHead(*_EVENT_HEAD.unpack_from(event))
    if head.length != len(event):
        raise PacketInvalid(f"an event says {head.length} bytes and has {len(event)}")
    return head


def log_identity(events: Sequence[bytes]) -> str:
    """Return a hex text that distinguishes binlog files of the same name. Raises PacketInvalid.

    `events` are the first events of the file, read from offset 4 on: the format description, which
    has the second in which the file was created, the server's id and version; and the next one, the
    GTIDs of all earlier files. The first one's checksum is always there and does not include the
    flag that the file is being written.
    """
    head = event_head(events[0])
    if head.kind != FORMAT_DESCRIPTION or head.length < EVENT_HEAD_BYTES + _CHECKSUM_BYTES:
        raise PacketInvalid(f"a file begins with an event of type {head.kind}")
    identity = events[0][-_CHECKSUM_BYTES:].hex()
    if len(events) > 1 and event_head(events[1]).kind in (PREVIOUS_GTIDS, GTID_LIST):
        identity += f"{zlib.crc32(events[1][EVENT_HEAD_BYTES:]):08x}"
    return identity


def column_name(payload: bytes) -> str:
    """Return the name in a packet that describes a column of a result."""
    at = 0
    for _ in range(4):  # catalogue, schema, table, table without alias
        start, length = _text_span(payload, at)
        at = start + length
    start, length = _text_span(payload, at)
    return payload[start : start + length].decode()


def _text_span(payload: bytes, at: int) -> tuple[int, int]:
    """Return the begin and the length of a text that is preceded by its length."""
    size = {0xFC: 2, 0xFD: 3}.get(payload[at], 0)
    length = int.from_bytes(payload[at + 1 : at + 1 + size], "little") if size else payload[at]
    return at + 1 + size, length
