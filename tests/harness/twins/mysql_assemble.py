"""A stream of packets, a catalogue and a follower, for tests of the assembler."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.stream import changes_of
from harness.twins.binlog import DECODERS, fake_rotate, packet
from harness.twins.binlog_events import (
    WRITE,
    Log,
    Table,
    gtid_body,
    query_body,
    rows_body,
)
from harness.twins.binlog_feed import inserts, row
from penstock.codec.mysql.binlog_events import EventKind
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_query import Query
from penstock.codec.mysql.gtids import GtidSet
from penstock.engines.mysql.connect import ServerVersion
from penstock.engines.mysql.source.added_columns import Added, certain_value
from penstock.engines.mysql.source.assemble import Assembler, Limits, StreamMark
from penstock.engines.mysql.source.definitions import source_id_of
from penstock.engines.mysql.source.prepared import PreparedFiles
from penstock.engines.mysql.source.schema_history import SchemaHistory
from penstock.engines.mysql.source.table_notes import AllNotes
from penstock.host.files import REAL_FILES
from penstock.model import (
    ColumnDefinition,
    FlushPoint,
    Identity,
    PenstockError,
    Run,
    TableDefinition,
    TableName,
)
from penstock.sql.decoding import Visit

T = Table(kinds=("int", "varchar(60)"))
WIDER = Table(kinds=("int", "varchar(60)", "int"), table_id=101)
OTHER = Table(kinds=("int",), name="other", table_id=102)
NAME = TableName("rec", "t")


def definition(*more: str) -> TableDefinition:
    """Return table rec.t as the catalogue has it."""
    kinds = [("c0", "int"), ("c1", "varchar(60)"), *((name, "int") for name in more)]
    columns = tuple(
        ColumnDefinition(
            name=name,
            type_text=kind,
            type_oid=0,
            typmod=-1,
            base_type=kind,
            neutral="int32" if kind == "int" else "string",
            charset="" if kind == "int" else "utf8mb4",
        )
        for name, kind in kinds
    )
    return TableDefinition(
        name=NAME,
        source_id=source_id_of(NAME),
        columns=columns,
        primary_key=("c0",),
        identity=Identity.DEFAULT,
        identity_columns=("c0",),
    )


@dataclass
class Catalogue:
    """A catalogue with the same definition at every position, or none."""

    now: TableDefinition | None = None

    def read(self, _: TableName) -> TableDefinition | None:
        """Return its definition."""
        return self.now

    def read_at(self, _: TableName, __: BinlogPosition) -> TableDefinition | None:
        """Return its definition."""
        return self.now

    def added_value(self, _: TableName, added: Added, __: Query) -> str | None:
        """Return the value of an integer's default."""
        return None if added.is_null else certain_value(added)


@dataclass
class Followed:
    """Result of one stream, and its remaining state."""

    runs: list[Run] = field(default_factory=list)
    marks: list[StreamMark] = field(default_factory=list)
    idle: list[tuple[FlushPoint, StreamMark]] = field(default_factory=list)
    notes: AllNotes = field(default_factory=AllNotes)

    def add(self, run: Run, mark: StreamMark | None) -> None:
        """Add a run, with the mark of its end."""
        self.runs.append(run)
        if mark is not None:
            self.marks.append(mark)

    @property
    def rows(self) -> list[Any]:
        """Tuples (gsn, trx, op, values) of every row."""
        return [
            (c.gsn, c.trx, c.op, tuple((c.after or c.before or {}).values()))
            for run in self.runs
            for c in changes_of(run)
        ]


class Following:
    """Streams into one pipeline, each with its own begin."""

    def __init__(self, folder: Path, kind: str, catalogue: Catalogue | None = None) -> None:
        self.folder = folder
        self.kind = kind
        self.catalogue = catalogue or Catalogue()
        self.visit: Visit[Assembler] | None = None

    def follow(
        self,
        stream: Callable[[int], bytes],
        *,
        mark: StreamMark,
        durable: FlushPoint,
        notes: AllNotes | None = None,
        shift: int | None = 0,
        block_bytes: int = 1 << 20,
        limits: Limits | None = None,
        visit: Visit[Assembler] | None = None,
    ) -> Followed:
        """Feed the server's bytes from the mark's position on."""
        found = Followed()
        self.visit = visit
        self._follow(found, stream, mark, durable, notes, shift, block_bytes, limits)
        return found

    def broken(self, stream: Callable[[int], bytes], *, mark: StreamMark) -> Followed:
        """Feed a stream that fails before its end; return the result until then."""
        found = Followed()
        durable = FlushPoint(position=mark.position)
        with pytest.raises(PenstockError):
            self._follow(found, stream, mark, durable, None, 0, 1 << 20, None)
        self.assembler.give_up()
        return found

    def _follow(
        self,
        found: Followed,
        stream: Callable[[int], bytes],
        mark: StreamMark,
        durable: FlushPoint,
        notes: AllNotes | None,
        shift: int | None,
        block_bytes: int,
        limits: Limits | None,
    ) -> None:
        book = SchemaHistory(
            self.catalogue,
            notes,
            tables=[definition()],
            begin=mark.position,
            takes=lambda name: name.schema == "rec" and name.name != "other",
        )
        book.rewind(durable.position)
        self.assembler = assembler = Assembler(
            decoder=DECODERS[self.kind](gsn=durable.gsn, trx=durable.trx),
            server=ServerVersion.parse("8.0.40"),
            book=book,
            prepared=PreparedFiles(self.folder, REAL_FILES, mark.prepared),
            start=durable,
            shift=shift,
            gtids=GtidSet.parse(mark.gtids),
            emit=lambda run, _, one: found.add(run, one),
            on_idle=lambda end, one: found.idle.append((end, one)),
            on_other=lambda payload: pytest.fail(repr(payload)),
            limits=limits,
        )
        if self.visit is not None:
            assembler.visit(self.visit)
        data = stream(mark.position - ((mark.shift) << 40))
        at, end = 0, min(block_bytes, len(data))
        while True:
            at = assembler.feed(memoryview(data), at, end)
            if end == len(data):
                break
            end = min(end + block_bytes, len(data))
        assert at == len(data)
        assembler.cut_when_whole()
        found.notes = book.notes()


XID = b"X'6162',X'',1"


def prepare_body() -> bytes:
    """Return the XA_PREPARE of that transaction."""
    return struct.pack("<BIII", 0, 1, 2, 0) + b"ab"


def whole_log() -> tuple[list[Log], list[int]]:
    """Return two files with all kinds of groups, and every position where a group ends."""
    logs, ends = [Log(), Log()], []
    numbers = iter(range(1, 100))

    def note_end(number: int) -> None:
        ends.append(number << 40 | logs[number - 1].offset)

    first, second = logs
    note_end(1)
    for value in (1, 2):
        first.begin(next(numbers)).table(T).add(*inserts(T, row(T, value, "a"))).commit()
        note_end(1)
    first.begin(next(numbers)).table(OTHER).add(*inserts(OTHER, row(OTHER, 7))).commit()
    note_end(1)
    first.add(EventKind.GTID, gtid_body(next(numbers)))
    first.add(EventKind.QUERY, query_body(b"XA START " + XID)).table(T)
    first.add(*inserts(T, row(T, 50, "xa"))).add(EventKind.QUERY, query_body(b"XA END " + XID))
    first.add(EventKind.XA_PREPARE, prepare_body())
    note_end(1)
    first.begin(next(numbers)).table(T).add(*inserts(T, row(T, 3, "b"), row(T, 4, "c"))).commit()
    note_end(1)
    first.rotate("binlog.000002")
    note_end(2)
    second.add(EventKind.GTID, gtid_body(next(numbers)))
    second.add(EventKind.QUERY, query_body(b"XA COMMIT " + XID))
    note_end(2)
    second.add(EventKind.GTID, gtid_body(next(numbers)))
    second.add(EventKind.QUERY, query_body("alter table t add c2 int default 9"))
    note_end(2)
    second.begin(next(numbers)).table(WIDER)
    second.add(WRITE, rows_body(WIDER, WRITE, row(WIDER, 5, "d", 1))).commit()
    note_end(2)
    second.add(EventKind.GTID, gtid_body(next(numbers)))
    second.add(EventKind.QUERY, query_body("truncate t"))
    note_end(2)
    for value in (6, 7):
        second.begin(next(numbers)).table(WIDER)
        second.add(WRITE, rows_body(WIDER, WRITE, row(WIDER, value, "e", 2))).commit()
        note_end(2)
    ends[6] = 2 << 40 | 4
    return logs, ends


def build_stream(logs: list[Log], begin: int) -> bytes:
    """Return the bytes that a server sends from a position on."""
    number, offset = begin >> 40, begin & (1 << 40) - 1
    parts = []
    for index, log in enumerate(logs[number - 1 :], number):
        parts.append(fake_rotate(f"binlog.{index:06d}", offset))
        at = 4
        for event in log.events:
            is_head = event[4] == EventKind.FORMAT_DESCRIPTION
            if is_head and at < offset:
                event = bytearray(event)  # as it is resent in the middle of a file
                event[13:17] = bytes(4)
                body = bytes(event[:-4])
                parts.append(body + struct.pack("<I", zlib.crc32(body)))
                at += len(event)
                continue
            if at >= offset:
                parts.append(bytes(event))
            at += len(event)
        offset = 4
    return b"".join(packet(b"\0" + part, n) for n, part in enumerate(parts, 1))


def mark_at(position: int, *, gtids: str = "", **more: Any) -> StreamMark:
    """Return a mark without prepared transactions."""
    return StreamMark(position=position, base="binlog", shift=0, gtids=gtids, prepared=(), **more)
