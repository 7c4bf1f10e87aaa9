"""Drive a binlog decoder through a case and record its behaviour; compare twin and kernel.

A case can be made from plain bytes, so that the fuzzer and the kept corpus use the same driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.twins.binlog import DECODERS
from harness.twins.binlog_events import KINDS, Log, Table
from harness.twins.pgoutput import assert_same_batch
from penstock.codec.mysql.binlog import Decoder, Stop
from penstock.codec.mysql.binlog_events import EventKind, MariaFlag, maria_gtid
from penstock.codec.mysql.binlog_outcome import BinlogBroken
from penstock.codec.mysql.binlog_tables import relation_of, table_map
from penstock.codec.mysql.gtids import GtidSet, MariaGtids
from penstock.model import PenstockError, Relation, Rows

MODES = ("packets", "file", "replay")
EVERY = Table(kinds=tuple(KINDS), name="every", table_id=101)
KEYLESS = Table(kinds=("int", "varchar(60)", "json", "decimal(10,4)"), name="keyless", key=())
WIDE = Table(
    kinds=("bigint", *(["int", "varchar(60)"] * 4), "blob"), name="wide", table_id=103, key=(2, 0)
)
WORLD = {table.table_id: table for table in (EVERY, KEYLESS, WIDE)}
# Stands for the transactions in the result of `run`.
RECORDED = Relation(schema="rec", name="transactions", columns=())


@dataclass(frozen=True, kw_only=True)
class Case:
    """Bytes, their division into blocks, and the limits."""

    block: bytes
    mode: str = "packets"
    cuts: tuple[int, ...] = ()
    row_limit: int = 1_000_000
    commit_limit: int | None = None
    byte_limit: int = 1 << 20
    partial_inserts: bool = True
    statements: bool = False

    @classmethod
    def of(cls, data: bytes) -> Case:
        """Return a case from any bytes: the first five choose mode, limits, cut; the rest is the
        block.
        """
        head, block = data[:5].ljust(5, b"\0"), data[5:]
        return cls(
            block=block,
            mode=MODES[head[0] % 3],
            row_limit=head[1] % 8 + 1 if head[1] < 128 else 1_000_000,
            commit_limit=head[2] % 4 if head[2] < 128 else None,
            byte_limit=200 * (head[3] + 1),
            cuts=(len(block) * head[4] // 256,),
            partial_inserts=not head[0] & 64,
            statements=bool(head[0] & 128),
        )


def state(decoder: Decoder) -> tuple[Any, ...]:
    """Return the visible state of a decoder."""
    return (
        decoder.stop,
        decoder.message,
        decoder.widen,
        decoder.gsn,
        decoder.trx,
        decoder.row_count,
        decoder.byte_count,
        decoder.heartbeat_count,
        decoder.in_transaction,
        decoder.commit_position,
        decoder.end_position,
        decoder.commit_time_us,
        decoder.xid,
        decoder.gtid,
        decoder.file_name,
        decoder.file_number,
        decoder.offset,
        decoder.server_version,
        decoder.is_mariadb,
        decoder.bindings(),
    )


class Driver:
    """Acts like a source, and records what it saw."""

    def __init__(self, kind: type[Decoder], case: Case) -> None:
        self.case = case
        self.decoder = kind(
            byte_limit=case.byte_limit,
            partial_inserts=case.partial_inserts,
            statements=case.statements,
        )
        self.events: list[Any] = []
        self.batches: list[Rows] = []
        self.gtids: list[str] = []
        self.parking = False
        self.parked = b""

    def run(self) -> None:
        """Decode a case to its end or first error."""
        decoder, case = self.decoder, self.case
        try:
            if case.mode == "replay":
                self.open()
                self.feed(decoder.replay, case.block, case.cuts)
            elif case.mode == "file":
                decoder.start_file("binlog.000003")
                self.feed(decoder.feed_file, case.block, case.cuts)
            else:
                self.feed(decoder.feed, case.block, case.cuts)
        except PenstockError as error:
            self.events.append(
                (type(error), error.message, error.hint, error.fields, *state(decoder))
            )
        self.take()
        transactions = decoder.take_transactions()
        if transactions is not None:
            self.batches.append(Rows(relation=RECORDED, batch=transactions))
        decoder.reset()
        self.events.append((state(decoder), self.parked, decoder.take()))

    def open(self) -> None:
        """Open a transaction whose rows are replayed."""
        log = Log(checksums=False).begin()
        block = log.packets()
        self.feed(self.decoder.feed, block, ())

    def feed(self, call: Any, block: bytes, cuts: tuple[int, ...]) -> None:
        decoder, case = self.decoder, self.case
        at = 0
        for end in sorted({*(min(cut, len(block)) for cut in cuts), len(block)}):
            for _ in range(4 * len(block) + 100):  # a bound: no call may do nothing forever
                if self.parking and call == decoder.feed:
                    at = decoder.park(block, at, end, 60)
                elif call == decoder.replay:
                    at = call(block, at, end, case.row_limit)
                else:
                    at = call(block, at, end, case.row_limit, case.commit_limit)
                self.events.append((at, *state(decoder)))
                if decoder.stop in (Stop.MORE, Stop.OTHER_FRAME):
                    break
                self.answer()
            else:
                raise AssertionError("no end")

    def take(self) -> None:
        self.batches += self.decoder.take()
        self.gtids += self.decoder.take_gtids()
        self.parked += self.decoder.take_parked()

    def answer(self) -> None:
        """Act like a caller at each stop."""
        decoder = self.decoder
        if decoder.stop in (Stop.LIMIT, Stop.COMMIT):
            self.take()
        elif decoder.stop is Stop.WIDEN:
            table_id, index = decoder.widen
            relation = decoder.bindings()[table_id]
            assert relation is not None
            assert relation.columns[index].neutral not in ("string", "binary")
            decoder.bind(decoder.table(table_id), relation.with_text_column(index))
        else:
            self.message(decoder.message)

    def message(self, event: bytes) -> None:
        decoder = self.decoder
        kind = event[4]
        if kind == EventKind.TABLE_MAP:
            table = table_map(
                event[19:],
                is_mariadb=decoder.is_mariadb,
                server_version=decoder.server_version,
            )
            decoder.bind(table, relation_of(table, is_mariadb=decoder.is_mariadb))
            return
        if kind == EventKind.MARIA_GTID:
            self.parking = bool(maria_gtid(event).flags & MariaFlag.PREPARED_XA)
        elif kind == EventKind.QUERY and b"XA START" in event:
            self.parking = True
        elif kind == EventKind.XA_PREPARE and self.parking:
            self.parking = False
            self.take()
            parked, self.parked = self.parked, b""
            self.feed(decoder.replay, parked, ())
        elif decoder.in_transaction and (
            event.endswith(b"ROLLBACK") or kind == EventKind.FORMAT_DESCRIPTION
        ):
            self.events.append(decoder.abandon())
        elif decoder.in_transaction:
            self.events.append(decoder.note_marker())


def gather_gtids(pieces: list[str]) -> tuple[str, str]:
    """Return GTIDs as sets: their division into pieces is ignored."""
    mysql, maria = GtidSet(), MariaGtids()
    for piece in pieces:
        if ":" in piece:
            mysql.update(GtidSet.parse(piece))
        else:
            maria.update(MariaGtids.parse(piece))
    return str(mysql), str(maria)


def assert_same(case: Case) -> tuple[list[Any], list[Rows]]:
    """Raise an error unless twin and kernel behave alike; return the twin's result."""
    twin = Driver(DECODERS["twin"], case)
    twin.run()
    for name, kind in DECODERS.items():
        if name == "twin":
            continue
        other = Driver(kind, case)
        other.run()
        assert other.events == twin.events
        assert gather_gtids(other.gtids) == gather_gtids(twin.gtids)
        assert [rows.relation for rows in other.batches] == [rows.relation for rows in twin.batches]
        for one, rows in zip(other.batches, twin.batches, strict=True):
            assert_same_batch(one.batch, rows.batch)
    return twin.events, twin.batches


def is_refused(events: list[Any]) -> bool:
    """Return whether a run ended with an error."""
    return any(isinstance(event, tuple) and event and event[0] is BinlogBroken for event in events)
