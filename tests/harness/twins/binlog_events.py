"""Builders of binlog events, packets and streams, with every type of column."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from harness.twins.binlog import packet
from penstock.codec.mysql.binlog_events import EventKind

SERVER_ID = 7
TIMESTAMP = 1_700_000_000
SERVER = bytes(range(16))
COMMIT_TIME_US = 1_700_000_000_123_456
WRITE, UPDATE, DELETE = EventKind.WRITE_ROWS, EventKind.UPDATE_ROWS, EventKind.DELETE_ROWS


def pack_number(number: int) -> bytes:
    """Return a length-encoded number."""
    if number < 0xFB:
        return bytes((number,))
    for mark, size in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        if number >> 8 * size == 0:
            return bytes((mark,)) + number.to_bytes(size, "little")
    raise ValueError(number)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Form of a column in a TABLE_MAP event."""

    code: int
    meta: bytes = b""
    unsigned: bool | None = None
    collation: int | None = None
    labels: tuple[str, ...] | None = None
    size: int = 0  # of a fixed value
    prefix: int = 0  # bytes of the length before a value


UTF8, LATIN1, BINARY, GBK = 45, 8, 63, 28
LABELS = ("", "a", "größe")
KINDS: dict[str, Kind] = {
    "tinyint": Kind(code=1, unsigned=False, size=1),
    "tinyint unsigned": Kind(code=1, unsigned=True, size=1),
    "smallint": Kind(code=2, unsigned=False, size=2),
    "smallint unsigned": Kind(code=2, unsigned=True, size=2),
    "mediumint": Kind(code=9, unsigned=False, size=3),
    "mediumint unsigned": Kind(code=9, unsigned=True, size=3),
    "int": Kind(code=3, unsigned=False, size=4),
    "int unsigned": Kind(code=3, unsigned=True, size=4),
    "bigint": Kind(code=8, unsigned=False, size=8),
    "bigint unsigned": Kind(code=8, unsigned=True, size=8),
    "float": Kind(code=4, meta=b"\x04", unsigned=False, size=4),
    "double": Kind(code=5, meta=b"\x08", unsigned=False, size=8),
    "decimal(10,4)": Kind(code=246, meta=b"\x0a\x04", unsigned=False, size=5),
    "decimal(38,10)": Kind(code=246, meta=b"\x26\x0a", unsigned=False, size=18),
    "decimal(65,30)": Kind(code=246, meta=b"\x41\x1e", unsigned=False, size=30),
    "decimal(5,5)": Kind(code=246, meta=b"\x05\x05", unsigned=False, size=3),
    "bit(9)": Kind(code=16, meta=b"\x01\x01", size=2),
    "bit(64)": Kind(code=16, meta=b"\x00\x08", size=8),
    "year": Kind(code=13, unsigned=True, size=1),
    "date": Kind(code=10, size=3),
    "time": Kind(code=19, meta=b"\0", size=3),
    "time(3)": Kind(code=19, meta=b"\3", size=5),
    "time(6)": Kind(code=19, meta=b"\6", size=6),
    "datetime": Kind(code=18, meta=b"\0", size=5),
    "datetime(2)": Kind(code=18, meta=b"\2", size=6),
    "datetime(6)": Kind(code=18, meta=b"\6", size=8),
    "timestamp": Kind(code=17, meta=b"\0", size=4),
    "timestamp(6)": Kind(code=17, meta=b"\6", size=7),
    "old time": Kind(code=11, size=3),
    "old datetime": Kind(code=12, size=8),
    "old timestamp": Kind(code=7, size=4),
    "varchar(60)": Kind(code=15, meta=b"\xf0\0", collation=UTF8, prefix=1),
    "varchar(300) latin1": Kind(code=15, meta=b"\x2c\1", collation=LATIN1, prefix=2),
    "varchar(20) gbk": Kind(code=15, meta=b"\x28\0", collation=GBK, prefix=1),
    "char(200)": Kind(code=254, meta=b"\xce\x20", collation=UTF8, prefix=2),
    "binary(4)": Kind(code=254, meta=b"\xfe\x04", collation=BINARY, prefix=1),
    "varbinary(10)": Kind(code=15, meta=b"\x0a\0", collation=BINARY, prefix=1),
    "tinytext": Kind(code=252, meta=b"\1", collation=UTF8, prefix=1),
    "blob": Kind(code=252, meta=b"\2", collation=BINARY, prefix=2),
    "mediumblob": Kind(code=252, meta=b"\3", collation=BINARY, prefix=3),
    "longtext": Kind(code=252, meta=b"\4", collation=UTF8, prefix=4),
    "enum": Kind(code=254, meta=b"\xf7\x01", collation=UTF8, labels=LABELS, size=1),
    "set": Kind(code=254, meta=b"\xf8\x01", collation=UTF8, labels=LABELS, size=1),
    "json": Kind(code=245, meta=b"\4", prefix=4),
    "geometry": Kind(code=255, meta=b"\4", prefix=4),
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with full metadata.

    Attributes:
        kinds: Names in KINDS.
        key: Indexes of the key's columns.
    """

    kinds: tuple[str, ...]
    table_id: int = 100
    name: str = "t"
    key: tuple[int, ...] = (0,)
    nullable: bool = True
    is_mariadb: bool = False  # it has a collation for geometry columns, too

    def body(self) -> bytes:
        """Return the body of its TABLE_MAP event."""
        kinds = [KINDS[name] for name in self.kinds]
        count = len(kinds)
        metadata = b"".join(kind.meta for kind in kinds)
        nullable = bytearray((count + 7) // 8)
        if self.nullable:
            for index in range(count):
                nullable[index >> 3] |= 1 << (index & 7)
        name = self.name.encode()
        body = self.table_id.to_bytes(6, "little") + b"\1\0\3rec\0" + bytes((len(name),)) + name
        body += b"\0" + pack_number(count) + bytes(kind.code for kind in kinds)
        body += pack_number(len(metadata)) + metadata + bytes(nullable)
        for number, data in self._optional(kinds):
            body += bytes((number,)) + pack_number(len(data)) + data
        return body

    def _optional(self, kinds: list[Kind]) -> Iterable[tuple[int, bytes]]:
        signs = [kind.unsigned for kind in kinds if kind.unsigned is not None]
        bits = bytearray((len(signs) + 7) // 8)
        for index, sign in enumerate(signs):
            bits[index >> 3] |= sign << 7 >> (index & 7)
        if signs:
            yield 1, bytes(bits)
        geometry = BINARY if self.is_mariadb else None
        counted = [
            geometry if kind.code == 255 else kind.collation for kind in kinds if not kind.labels
        ]
        collations = [pack_number(number) for number in counted if number is not None]
        if collations:
            yield 3, b"".join(collations)
        yield 4, b"".join(_short(f"c{index}") for index in range(len(kinds)))
        for number, mark in ((5, 0xF8), (6, 0xF7)):
            members = [kind.labels or () for kind in kinds if kind.labels and kind.meta[0] == mark]
            if members:
                yield (
                    number,
                    b"".join(
                        pack_number(len(labels)) + b"".join(map(_short, labels))
                        for labels in members
                    ),
                )
        if any(kind.labels for kind in kinds):
            yield 11, bytes(UTF8 for kind in kinds if kind.labels)
        if self.key:
            yield 8, bytes(self.key)


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


Cells = Sequence[bytes | None]  # a value without its length, or NULL


def image(table: Table, cells: Cells, present: Sequence[int] | None = None) -> bytes:
    """Return one row image: null bits and values of the present columns."""
    columns = range(len(table.kinds)) if present is None else present
    nulls = bytearray((len(columns) + 7) // 8)
    values = b""
    for place, index in enumerate(columns):
        value = cells[index]
        if value is None:
            nulls[place >> 3] |= 1 << (place & 7)
            continue
        prefix = KINDS[table.kinds[index]].prefix
        values += (len(value).to_bytes(prefix, "little") if prefix else b"") + value
    return bytes(nulls) + values


def bitmap(table: Table, present: Sequence[int] | None = None) -> bytes:
    """Return which columns an image has; the bits after the last column are set, as servers do."""
    count = len(table.kinds)
    bits = bytearray(b"\xff" * ((count + 7) // 8))
    if present is not None:
        for index in set(range(count)) - set(present):
            bits[index >> 3] &= ~(1 << (index & 7))
    return bytes(bits)


def rows_body(
    table: Table,
    kind: int,
    rows: bytes,
    *,
    before: Sequence[int] | None = None,
    after: Sequence[int] | None = None,
    extra: bytes = b"",
    flags: int = 1,
) -> bytes:
    """Return the body of a rows event; `rows` are the images one after the other."""
    body = table.table_id.to_bytes(6, "little") + struct.pack("<H", flags)
    if kind >= 30:
        body += struct.pack("<H", 2 + len(extra)) + extra
    body += pack_number(len(table.kinds))
    if kind in (UPDATE, EventKind.UPDATE_ROWS_V1, EventKind.PARTIAL_UPDATE_ROWS):
        body += bitmap(table, before) + bitmap(table, after)
    else:
        is_delete = kind in (DELETE, EventKind.DELETE_ROWS_V1)
        body += bitmap(table, before if is_delete else after)
    return body + rows


def query_body(text: str | bytes, schema: str = "rec", status: bytes = b"") -> bytes:
    """Return the body of a QUERY event."""
    data = text.encode() if isinstance(text, str) else text
    name = schema.encode()
    head = struct.pack("<IIBHH", 1, 0, len(name), 0, len(status))
    return head + status + name + b"\0" + data


def gtid_body(number: int, time_us: int = COMMIT_TIME_US, server: bytes = SERVER) -> bytes:
    """Return the body of MySQL's GTID event."""
    head = b"\0" + server + struct.pack("<QBQQ", number, 2, 0, 1)
    return head + time_us.to_bytes(7, "little") + b"\0"


def maria_body(number: int, flags: int = 0, domain: int = 0, more: bytes = b"") -> bytes:
    """Return the body of MariaDB's GTID event."""
    return (struct.pack("<QIB", number, domain, flags) + more).ljust(19, b"\0")


@dataclass
class Log:
    """Events of one binlog file, each with its position and, if wanted, its checksum."""

    checksums: bool = True
    version: str = "8.0.40"
    offset: int = 4
    events: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with the format description."""
        body = struct.pack("<H50sIB", 4, self.version.encode(), 0, 19) + bytes(40)
        self._put(EventKind.FORMAT_DESCRIPTION, body + bytes((self.checksums,)), 0, seal=True)

    def _put(self, kind: int, body: bytes, flags: int, *, seal: bool) -> bytes:
        length = 19 + len(body) + 4 * seal
        artificial = flags & 0x20 or kind in (EventKind.HEARTBEAT, EventKind.HEARTBEAT_V2)
        self.offset += 0 if artificial else length
        end = 0 if artificial else self.offset & 0xFFFF_FFFF
        event = struct.pack("<IBIIIH", TIMESTAMP, kind, SERVER_ID, length, end, flags) + body
        if seal:
            event += struct.pack("<I", zlib.crc32(event))
        self.events.append(event)
        return event

    def add(self, kind: int, body: bytes = b"", flags: int = 0) -> Log:
        """Add an event at the end."""
        self._put(kind, body, flags, seal=self.checksums)
        return self

    def begin(self, number: int = 1) -> Log:
        """Add a GTID and a BEGIN."""
        self.add(EventKind.GTID, gtid_body(number))
        return self.add(EventKind.QUERY, query_body("BEGIN"))

    def table(self, table: Table) -> Log:
        """Add a TABLE_MAP."""
        return self.add(EventKind.TABLE_MAP, table.body())

    def commit(self, xid: int = 9) -> Log:
        """Add an XID."""
        return self.add(EventKind.XID, struct.pack("<Q", xid))

    def rotate(self, name: str, offset: int = 4, artificial: bool = False) -> Log:
        """Add a ROTATE."""
        body = struct.pack("<Q", offset) + name.encode()
        return self.add(EventKind.ROTATE, body, 0x20 if artificial else 0)

    def file(self) -> bytes:
        """Return the bytes of the file."""
        return b"\xfebin" + b"".join(self.events)

    def packets(self) -> bytes:
        """Return the events as a server sends them."""
        return b"".join(
            packet(b"\0" + event, number) for number, event in enumerate(self.events, 1)
        )


def payload_body(*events: bytes, zstd: bool = False) -> bytes:
    """Return the body of a TRANSACTION_PAYLOAD event, stored or compressed as by the server."""
    data = b"".join(events)
    packed = pa.compress(data, "zstd", asbytes=True) if zstd else data
    return payload_head(len(packed), len(data), zstd=zstd) + packed


def payload_head(packed: int, size: int, *, zstd: bool = False) -> bytes:
    """Return the head of a TRANSACTION_PAYLOAD: packed and whole size in bytes."""
    return struct.pack(
        "<BBBHBBBQBBBQB", 2, 3, 0xFC, 0 if zstd else 255, 3, 9, 0xFE, size, 1, 9, 0xFE, packed, 0
    )


def bare(kind: int, body: bytes) -> bytes:
    """Return an event as it is inside a payload or among parked ones: without checksum."""
    length = 19 + len(body)
    return struct.pack("<IBIIIH", TIMESTAMP, kind, SERVER_ID, length, 0, 0) + body
