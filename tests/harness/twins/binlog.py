"""A small follower of binlogs for tests: acts like a source at each stop of the decoder.

`Replica` applies decoded rows to tables in memory, so that they can be compared with the server's
output. Not here: builders of single events (`harness.twins.binlog_events`).
"""

from __future__ import annotations

import json
import lzma
import struct
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.codec.mysql import binlog
from penstock.codec.mysql.binlog_events import EventKind, MariaFlag, maria_gtid, xa_prepare
from penstock.codec.mysql.binlog_outcome import Stop
from penstock.codec.mysql.binlog_query import query
from penstock.codec.mysql.binlog_tables import TableMap, relation_of, table_map
from penstock.codec.mysql.types import neutral_type, parse_type
from penstock.codec.mysql.values import ewkb_hex
from penstock.model import Column, Identity, Relation

DATA = Path(__file__).parents[2] / "data" / "binlog"
DECODERS: dict[str, type[binlog.Decoder]] = {"twin": binlog.Decoder}
if binlog.COMPILED:
    from penstock.codec.mysql import _binlog

    DECODERS["kernel"] = _binlog.Decoder  # type: ignore[assignment]

MANY = 1_000_000
Row = dict[str, Any]


def packet(payload: bytes, sequence: int = 0) -> bytes:
    """Return a payload as packets; one of 16 MiB less a byte and more needs several."""
    parts = []
    for at in range(0, len(payload) + 1, 0xFFFFFF):
        piece = payload[at : at + 0xFFFFFF]
        parts.append(len(piece).to_bytes(3, "little") + bytes((sequence & 0xFF,)) + piece)
        sequence += 1
    return b"".join(parts)


def file_events(data: bytes) -> list[bytes]:
    """Return the events of a binlog file."""
    found, at = [], 4
    while at < len(data):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        found.append(data[at : at + length])
        at += length
    return found


def fake_rotate(name: str, offset: int = 4) -> bytes:
    """Return the event without checksum that starts every dump."""
    body = struct.pack("<Q", offset) + name.encode()
    return struct.pack("<IBIIIH", 0, 4, 1, 19 + len(body), 0, 0x20) + body


def as_packets(name: str, data: bytes) -> bytes:
    """Return a binlog file as a server sends it."""
    events = [fake_rotate(name), *file_events(data)]
    return b"".join(packet(b"\0" + event, number) for number, event in enumerate(events))


@dataclass
class Recorded:
    """A server's output for one table: its columns and rows, values as it prints them."""

    columns: list[dict[str, str]]
    rows: list[list[str | None]] = field(default_factory=list)

    @property
    def charsets(self) -> list[str | None]:
        return [column["charset"] or None for column in self.columns]


def recorded_tables(name: str) -> dict[str, Recorded]:
    """Return all tables of a recording."""
    tables: dict[str, Recorded] = {}
    current = Recorded(columns=[])
    with lzma.open(DATA / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        for line in file:
            said = json.loads(line)
            if "table" in said:
                current = tables[said["table"]] = Recorded(columns=said["columns"])
            else:
                current.rows.append(said["row"])
    return tables


def recorded_files(name: str) -> list[tuple[str, bytes]]:
    """Return the binlog files of a recording, with their original names."""
    return [
        ("binlog." + path.name.split(".")[-3], lzma.decompress(path.read_bytes()))
        for path in sorted(DATA.glob(f"{name}.*.binlog.xz"))
    ]


def catalogue_relation(table: TableMap, recorded: Recorded) -> Relation:
    """Return the relation as a source makes it from the catalogue."""
    columns = tuple(
        Column(
            name=one["name"],
            source_type=one["type"],
            neutral=neutral_type(one["type"]),
            nullable=one["nullable"] == "YES",
        )
        for one in recorded.columns
    )
    key = tuple(index for index, one in enumerate(recorded.columns) if one["key"] == "PRI")
    return Relation(
        schema=table.schema,
        name=table.name,
        columns=columns,
        key=key,
        before=key or tuple(range(len(columns))),
        identity=Identity.DEFAULT if key else Identity.FULL,
    )


class Replica:
    """A follower of one stream that keeps the resulting tables."""

    def __init__(
        self, decoder: binlog.Decoder, tables: dict[str, Recorded], *, catalogue: bool = False
    ) -> None:
        """Prepare to follow; catalogue means all relations are from the recorded definitions."""
        self.decoder = decoder
        self.tables = tables
        self.catalogue = catalogue
        self.contents: dict[str, list[tuple[Relation, Row]]] = {}
        self.widened: dict[tuple[str, str], set[str]] = {}
        self.queries: list[str] = []
        self.kinds: list[int] = []
        self.gtids: list[str] = []
        self.operations: list[Row] = []
        self.parked: dict[tuple[int, bytes, bytes], bytes] = {}
        self._parking = b""
        self._is_parking = False

    # --- the stream

    def follow_file(self, name: str, data: bytes, block_bytes: int = 1 << 20) -> None:
        """Decode a file, passed as packets of a dump."""
        self.follow(as_packets(name, data), self.decoder.feed, block_bytes)

    def follow(self, data: bytes, feed: Any, block_bytes: int = 1 << 20, row_limit: int = 7) -> int:
        """Decode until the data is used up; return the consumed length."""
        at = 0
        end = min(block_bytes, len(data))
        while True:
            if self._is_parking and feed == self.decoder.feed:
                at = self.decoder.park(data, at, end, 100)
            else:
                at = feed(data, at, end, row_limit, 3)
            stop = self.decoder.stop
            if stop is Stop.MORE:
                if end == len(data):
                    break
                end = min(end + block_bytes, len(data))
            elif stop is Stop.OTHER_FRAME:
                break
            elif stop is Stop.WIDEN:
                self.widen()
            elif stop is Stop.MESSAGE:
                self.message()
            else:
                self.take()
        self.take()
        return at

    def take(self) -> None:
        """Apply the buffered rows."""
        self.gtids += self.decoder.take_gtids()
        self._parking += self.decoder.take_parked()
        rows = []
        for taken in self.decoder.take():
            taken.batch.validate(full=True)
            rows += [(taken.relation, row) for row in taken.batch.to_pylist()]
        for relation, row in sorted(rows, key=lambda one: one[1]["gsn"]):
            self.apply(relation, row)

    def widen(self) -> None:
        """Keep a column as text from now on."""
        table_id, index = self.decoder.widen
        relation = self.decoder.bindings()[table_id]
        assert relation is not None
        assert relation.columns[index].neutral != "string"
        name = relation.columns[index].name
        self.widened.setdefault((relation.schema, relation.name), set()).add(name)
        self.bind(self.decoder.table(table_id), relation.with_text_column(index))

    def bind(self, table: TableMap, relation: Relation) -> None:
        recorded = self.tables.get(table.name)
        self.decoder.bind(table, relation, recorded.charsets if recorded else ())

    def message(self) -> None:
        """Process an event that the decoder does not handle."""
        event = self.decoder.message
        kind = event[4]
        self.kinds.append(kind)
        if kind == EventKind.TABLE_MAP:
            self.table_map(event)
        elif kind in (EventKind.QUERY, EventKind.QUERY_COMPRESSED):
            self.query(event)
        elif kind == EventKind.MARIA_GTID:
            self._is_parking = bool(maria_gtid(event).flags & MariaFlag.PREPARED_XA)
        elif kind == EventKind.XA_PREPARE:
            self.take()
            said = xa_prepare(event)
            self._is_parking = False
            parked, self._parking = self._parking, b""
            if said.one_phase:
                self.follow_parked(parked)
            else:
                self.parked[said.xid] = parked

    def table_map(self, event: bytes) -> None:
        table = table_map(
            event[19:],
            is_mariadb=self.decoder.is_mariadb,
            server_version=self.decoder.server_version,
        )
        if table.schema != "rec":
            self.decoder.bind(table, None)
            return
        relation = None
        if not self.catalogue:
            relation = relation_of(table, is_mariadb=self.decoder.is_mariadb)
        if relation is None:
            relation = catalogue_relation(table, self.tables[table.name])
        names = self.widened.get((table.schema, table.name), set())
        for index, column in enumerate(relation.columns):
            if column.name in names:
                relation = relation.with_text_column(index)
        self.bind(table, relation)

    def query(self, event: bytes) -> None:
        said = query(event)
        text = said.text
        self.queries.append(text)
        if self.decoder.in_transaction:
            self.decoder.note_marker()
        if text.startswith("XA START"):
            self.take()
            self._is_parking = True
        elif text.startswith("XA COMMIT"):
            self.take()
            self.follow_parked(self.parked.pop(_xid(text), b""))
        elif text.startswith("XA ROLLBACK"):
            self.parked.pop(_xid(text), None)
        elif text.lower().startswith("truncate"):
            self.take()
            self.contents[text.split()[-1].strip("`")] = []
        elif text.startswith("alter table gone"):
            self.alter(text)
        elif text.lower().startswith("rename table gone"):
            self.take()
            self.contents["went"] = self.contents.pop("gone")

    def alter(self, text: str) -> None:
        """Carry out the two statements of the recordings that change values of older rows."""
        self.take()
        rows = [row for _, row in self.contents["gone"]]
        for row in rows:
            if "add column w" in text:
                row["w"] = 4
            else:
                row["renamed"] = row.pop("v")

    def follow_parked(self, events: bytes) -> None:
        at = 0
        while True:
            at = self.decoder.replay(events, at, len(events), 2)
            stop = self.decoder.stop
            if stop is Stop.MORE:
                break
            if stop is Stop.MESSAGE:
                self.message()
            elif stop is Stop.WIDEN:
                self.widen()
            else:
                self.take()
        assert at == len(events)

    # --- the tables

    def apply(self, relation: Relation, row: Row) -> None:
        """Apply one row change."""
        self.operations.append(row | {"table": relation.name})
        content = self.contents.setdefault(relation.name, [])
        if row["op"] != ord("I"):
            identity = row["before"] or {
                relation.columns[index].name: row["after"][relation.columns[index].name]
                for index in relation.before
            }
            found = self.find(content, relation, identity)
            if row["op"] == ord("D"):
                content.pop(found)
                return
            old = content[found][1]
            after = dict(row["after"])
            absent = row["absent"] or b""
            for index, column in enumerate(relation.columns):
                if absent and absent[index >> 3] >> (index & 7) & 1:
                    after[column.name] = old[column.name]
            content[found] = (relation, after)
        else:
            content.append((relation, dict(row["after"])))

    def find(self, content: list[tuple[Relation, Row]], relation: Relation, identity: Row) -> int:
        """Return the index of the row that has these values."""
        for index, (_, row) in enumerate(content):
            if all(row.get(name) == value for name, value in identity.items()):
                return index
        raise AssertionError(f"no row of {relation.name} with {identity}")


def _xid(text: str) -> tuple[int, bytes, bytes]:
    words = text.split(None, 2)[2].split(",")
    parts = [bytes.fromhex(word.strip().lstrip("Xx").strip("'")) for word in words[:2]]
    return int(words[2]), parts[0], parts[1]


# --- values as the server prints them


def show_value(relation: Relation, index: int, value: Any) -> str | None:
    """Return a decoded value in the server's form."""
    column = relation.columns[index]
    parsed = parse_type(column.source_type)
    if value is None:
        return None
    digits = parsed.arguments[0] if parsed and parsed.arguments else 0
    if parsed and parsed.base == "year" and column.neutral != "string":
        return f"{value:04d}"
    if column.neutral == "uuid":
        text = value.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    if column.neutral in ("timestamp", "timestamptz"):
        moment: datetime = value
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC)
        text = f"{moment.year:04d}-{moment:%m-%d %H:%M:%S}.{moment.microsecond:06d}"
        return text[: 19 + (digits and digits + 1)]
    if column.neutral == "time":
        return value.isoformat("microseconds")[: 8 + (digits and digits + 1)]
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, date):
        return value.isoformat()
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def assert_same_value(relation: Relation, index: int, value: Any, expected: str | None) -> None:
    """Raise an error unless a decoded value is what the server printed."""
    column = relation.columns[index]
    place = f"{relation.full_name}.{column.name}"
    if expected is not None and value is not None:
        if column.neutral in ("float32", "float64"):
            number = float(expected)
            if column.neutral == "float32":
                number = struct.unpack("<f", struct.pack("<f", number))[0]
            assert value == number, place
            return
        if "zerofill" in column.source_type or column.name == "z":
            assert value == int(expected), place
            return
        base = parse_type(column.source_type)
        if base is not None and base.base in ("geometry", "point"):
            expected = ewkb_hex(bytes.fromhex(expected))
    assert show_value(relation, index, value) == expected, place
