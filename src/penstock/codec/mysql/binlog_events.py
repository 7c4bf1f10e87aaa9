"""Parse binlog events that are not rows, given in `Decoder.message`, to dataclasses.

Each parser takes a whole event, its head of 19 bytes and its body, without checksum. An invalid
body raises BinlogBroken with the reason event_body. Not here: QUERY events (`binlog_query`),
TABLE_MAP (`binlog_tables`), rows (`binlog_images`), compressed events (`binlog_compressed`).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from typing import TypeVar

from penstock.codec.mysql.binlog_outcome import Reason, binlog_error
from penstock.codec.mysql.gtids import NUMBER_MAX, GtidSet, MariaGtids
from penstock.codec.mysql.malformed import Malformed

HEAD_BYTES = 19
CHECKSUM_BYTES = 4
_COMMIT_TIME_BITS = 55  # of 56; the uppermost says that another time follows
_VERSION_TEXT_BYTES = 50

Parsed = TypeVar("Parsed")


class EventKind(IntEnum):
    """Event types by number; from 160 on MariaDB's own."""

    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIA_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171


class EventFlag(IntEnum):
    """Bits of an event's head."""

    IN_USE = 1
    THREAD_SPECIFIC = 4
    SUPPRESS_USE = 8
    ARTIFICIAL = 0x20
    IGNORABLE = 0x80
    SKIP_REPLICATION = 0x8000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHead:
    """The head of every event. timestamp_s: since 1970; end_position: its lower 32 bits."""

    timestamp_s: int
    kind: int
    server_id: int
    length: int
    end_position: int
    flags: int


def event_head(event: bytes) -> EventHead:
    """Read an event's head; event has at least 19 bytes."""
    timestamp, kind, server_id, length, end, flags = struct.unpack_from("<IBIIIH", event)
    return EventHead(
        timestamp_s=timestamp,
        kind=kind,
        server_id=server_id,
        length=length,
        end_position=end,
        flags=flags,
    )


def malformed_is_broken(parse: Callable[..., Parsed]) -> Callable[..., Parsed]:
    """Raise BinlogBroken for any error of a parser that the body causes."""

    @wraps(parse)
    def parse_event(event: bytes, *arguments: object, **more: object) -> Parsed:
        try:
            return parse(bytes(event), *arguments, **more)
        except (struct.error, IndexError, UnicodeDecodeError, Malformed) as error:
            raise binlog_error(Reason.EVENT_BODY, 0) from error

    return parse_event


def _piece(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise Malformed
    return data[at : at + size]


# --- files


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatDescription:
    """The first event of a file. created_s: not 0 if the server had just started."""

    server_version: str
    created_s: int
    has_checksums: bool

    @property
    def is_mariadb(self) -> bool:
        """Return whether MariaDB wrote the file."""
        return "mariadb" in self.server_version.lower()


def format_description(event: bytes) -> FormatDescription:
    """Read a FORMAT_DESCRIPTION event WITH its last five bytes: algorithm and CRC.

    Raises BinlogBroken (reason format) if the format is not version 4, the heads have another
    length, or the checksum algorithm is unknown.
    """
    body = bytes(event[HEAD_BYTES:])
    fixed = 2 + _VERSION_TEXT_BYTES + 4 + 1
    if len(body) < fixed + 5 or body[:2] != b"\x04\x00" or body[fixed - 1] != HEAD_BYTES:
        raise binlog_error(Reason.FORMAT, 0)
    algorithm = body[-5]
    if algorithm not in (0, 1):
        raise binlog_error(Reason.FORMAT, 0)
    version = body[2 : 2 + _VERSION_TEXT_BYTES].split(b"\0")[0]
    return FormatDescription(
        server_version=version.decode("utf-8", "replace"),
        created_s=int.from_bytes(body[fixed - 5 : fixed - 1], "little"),
        has_checksums=algorithm == 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotate:
    """The stream continues at `offset` of another file."""

    file_name: str
    offset: int


@malformed_is_broken
def rotate(event: bytes) -> Rotate:
    """Read a ROTATE event."""
    (offset,) = struct.unpack_from("<Q", event, HEAD_BYTES)
    return Rotate(file_name=event[HEAD_BYTES + 8 :].decode(), offset=offset)


@malformed_is_broken
def previous_gtids(event: bytes) -> GtidSet:
    """Read a PREVIOUS_GTIDS event: the GTIDs of all earlier files."""
    return GtidSet.decode(event[HEAD_BYTES:])


@malformed_is_broken
def gtid_list(event: bytes) -> MariaGtids:
    """Read MariaDB's GTID_LIST event: the last transaction of each domain and server."""
    (head,) = struct.unpack_from("<I", event, HEAD_BYTES)
    made = MariaGtids()
    for index in range(head & 0x0FFF_FFFF):
        made.add(*struct.unpack_from("<IIQ", event, HEAD_BYTES + 4 + 16 * index))
    return made


# --- transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Gtid:
    """The beginning of a transaction in MySQL.

    Attributes:
        server: uuid of the server.
        number: 0 for an anonymous transaction.
        commit_time_us: time of the commit on this server, microseconds since 1970; 0 if the event
            has none (5.7).
    """

    server: str
    tag: str
    number: int
    commit_time_us: int

    def __str__(self) -> str:
        """Return the GTID as the server prints it; empty if anonymous."""
        if not self.number:
            return ""
        return (
            f"{self.server}:{self.tag}:{self.number}"
            if self.tag
            else (f"{self.server}:{self.number}")
        )


@malformed_is_broken
def gtid(event: bytes) -> Gtid:
    """Read a GTID or ANONYMOUS_GTID event."""
    body = event[HEAD_BYTES:]
    server, number = _piece(body, 1, 16), int.from_bytes(_piece(body, 17, 8), "little")
    commit_time = 0
    if len(body) >= 49 and body[25] == 2:
        commit_time = int.from_bytes(body[42:49], "little") & ((1 << _COMMIT_TIME_BITS) - 1)
    if event_head(event).kind == EventKind.ANONYMOUS_GTID:
        number = 0
    elif not 1 <= number <= NUMBER_MAX:
        raise Malformed
    return Gtid(
        server=str(uuid.UUID(bytes=server)), tag="", number=number, commit_time_us=commit_time
    )


class _Serialized:
    """Reader of the tagged fields of MySQL's newer events. A number's first byte gives
    its length.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read_unsigned(self) -> int:
        first = _piece(self.data, self.at, 1)[0]
        extra = 8 if first == 0xFF else (~first & 0xFF & -(~first & 0xFF)).bit_length() - 1
        raw = int.from_bytes(_piece(self.data, self.at, extra + 1), "little")
        self.at += extra + 1
        # With eight more bytes the first one is all length.
        return raw >> 8 if extra == 8 else raw >> extra + 1

    def read_signed(self) -> int:
        number = self.read_unsigned()
        return -1 - (number >> 1) if number & 1 else number >> 1

    def text(self) -> str:
        size = self.read_unsigned()
        self.at += size
        return _piece(self.data, self.at - size, size).decode()


@malformed_is_broken
def gtid_tagged(event: bytes) -> Gtid:
    """Read a GTID_TAGGED event."""
    fields = _Serialized(event[HEAD_BYTES:])
    if fields.read_unsigned() != 1:  # the version
        raise Malformed
    size, _ = fields.read_unsigned(), fields.read_unsigned()
    server, tag, number, commit_time = b"", "", 0, 0
    while fields.at < min(size, len(fields.data)):
        match fields.read_unsigned():
            case 0:
                fields.read_unsigned()
            case 1:
                server = bytes(fields.read_unsigned() & 0xFF for _ in range(16))
            case 2:
                number = fields.read_signed()
            case 3:
                tag = fields.text()
            case 4 | 5:
                fields.read_signed()
            case 6:
                commit_time = fields.read_unsigned()
                break  # what follows is of no use here
            case _:
                break
    if len(server) != 16 or not 1 <= number <= NUMBER_MAX or len(tag) > 32:
        raise Malformed
    return Gtid(
        server=str(uuid.UUID(bytes=server)), tag=tag, number=number, commit_time_us=commit_time
    )


class MariaFlag(IntEnum):
    """Flags of MariaDB's GTID event; ALTER ones are in `flags_extra`."""

    STANDALONE = 1
    GROUP_COMMIT_ID = 2
    TRANSACTIONAL = 4
    DDL = 0x20
    PREPARED_XA = 0x40
    COMPLETED_XA = 0x80


class MariaExtraFlag(IntEnum):
    """Flags of the two parts of an ALTER that replicas start before it is committed."""

    MULTI_ENGINE = 1
    START_ALTER = 2
    COMMIT_ALTER = 4
    ROLLBACK_ALTER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaGtid:
    """The beginning of a group of events in MariaDB.

    Attributes:
        xid: format, global part and branch part of a prepared transaction.
        alter_number: number of the START_ALTER that a COMMIT_ALTER or ROLLBACK_ALTER belongs to.
    """

    domain: int
    server_id: int
    number: int
    flags: int
    flags_extra: int = 0
    xid: tuple[int, bytes, bytes] | None = None
    alter_number: int = 0

    def __str__(self) -> str:
        """Return the GTID as the server prints it."""
        return f"{self.domain}-{self.server_id}-{self.number}"


@malformed_is_broken
def maria_gtid(event: bytes) -> MariaGtid:
    """Read MariaDB's GTID event."""
    number, domain, flags = struct.unpack_from("<QIB", event, HEAD_BYTES)
    at = HEAD_BYTES + 13
    if flags & MariaFlag.GROUP_COMMIT_ID:
        _piece(event, at, 8)
        at += 8
    xid = None
    if flags & (MariaFlag.PREPARED_XA | MariaFlag.COMPLETED_XA):
        form, size, more = struct.unpack_from("<IBB", event, at)
        parts = _piece(event, at + 6, size + more)
        xid = (form, parts[:size], parts[size:])
        at += 6 + size + more
    extra = event[at] if at < len(event) else 0
    at += 1 + bool(extra & MariaExtraFlag.MULTI_ENGINE)
    alter = 0
    if extra & (MariaExtraFlag.COMMIT_ALTER | MariaExtraFlag.ROLLBACK_ALTER):
        (alter,) = struct.unpack_from("<Q", event, at)
    return MariaGtid(
        domain=domain,
        server_id=event_head(event).server_id,
        number=number,
        flags=flags,
        flags_extra=extra,
        xid=xid,
        alter_number=alter,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class XaPrepare:
    """A transaction was prepared. one_phase: whether it was committed at once."""

    one_phase: bool
    xid: tuple[int, bytes, bytes]


@malformed_is_broken
def xa_prepare(event: bytes) -> XaPrepare:
    """Read an XA_PREPARE event."""
    one_phase, form, size, more = struct.unpack_from("<BIII", event, HEAD_BYTES)
    parts = _piece(event, HEAD_BYTES + 13, size + more)
    return XaPrepare(one_phase=bool(one_phase), xid=(form, parts[:size], parts[size:]))


# --- said beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Changes are missing in the binlog from here on."""

    number: int
    text: str


@malformed_is_broken
def incident(event: bytes) -> Incident:
    """Read an INCIDENT event."""
    number, size = struct.unpack_from("<HB", event, HEAD_BYTES)
    text = _piece(event, HEAD_BYTES + 3, size)
    return Incident(number=number, text=text.decode("utf-8", "replace"))


@malformed_is_broken
def statement_text(event: bytes) -> str:
    """Return the statement in a ROWS_QUERY or ANNOTATE_ROWS event, as far as it is UTF-8."""
    head = 1 if event_head(event).kind == EventKind.ROWS_QUERY else 0
    return event[HEAD_BYTES + head :].decode("utf-8", "replace")
