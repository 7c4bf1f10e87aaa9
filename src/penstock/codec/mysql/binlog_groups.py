"""Begin and end of transactions in a binlog, and their ids.

The middle part of the decoder in `binlog`. It interprets GTID, QUERY and XID events. `binlog` adds
rows; `binlog_walk` handles packets.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.codec.columns import transactions_batch
from penstock.codec.mysql import binlog_events as events
from penstock.codec.mysql.binlog_events import EventKind
from penstock.codec.mysql.binlog_outcome import BinlogBroken, Reason, Stop, binlog_error
from penstock.codec.mysql.binlog_query import query_text_start
from penstock.codec.mysql.binlog_store import Store
from penstock.codec.mysql.binlog_walk import Scope, Walker, position_of, u32
from penstock.codec.mysql.malformed import Malformed

# What MariaDB says only where a transaction begins: DDL and its halves, XA.
_MARIA_TELLING = events.MariaFlag.DDL | events.MariaFlag.PREPARED_XA | events.MariaFlag.COMPLETED_XA
_MARIA_TELLING_EXTRA = (
    events.MariaExtraFlag.START_ALTER
    | events.MariaExtraFlag.COMMIT_ALTER
    | events.MariaExtraFlag.ROLLBACK_ALTER
)


class Groups(Walker):
    """Part of the decoder that opens and closes transactions."""

    gsn: int
    trx: int
    row_count: int
    byte_count: int
    in_transaction: bool
    commit_position: int
    end_position: int
    commit_time_us: int
    xid: int
    gtid: str
    _again: Scope
    _stores: list[Store]
    _transactions: list[tuple[int, int, int, int]]
    _gtids: list[str]
    _counted: bool
    _begun: bool
    _single: bool
    _gsn_before: int
    _rows_open: int  # of the open transaction
    _bytes_before: int
    _byte_limit: int
    _commit_limit: int
    _park_limit: int

    def _hand_out(self, block: memoryview, start: int, end: int) -> Stop:
        self.message = bytes(block[start:end])
        return Stop.MESSAGE

    def _require_transaction(self, at: int) -> None:
        if not self.in_transaction:
            raise binlog_error(Reason.NO_TRANSACTION, at)

    def _gtid_event(self, block: memoryview, start: int, end: int) -> Stop | None:
        if self.in_transaction:
            raise binlog_error(Reason.NESTED_BEGIN, start)
        event = bytes(block[start:end])
        try:
            if event[4] == EventKind.MARIA_GTID:
                said = events.maria_gtid(event)
                self._open(start, block, str(said), 0)
                self._begun = True
                self._single = bool(said.flags & events.MariaFlag.STANDALONE)
                if said.flags & _MARIA_TELLING or said.flags_extra & _MARIA_TELLING_EXTRA:
                    return self._hand_out(block, start, end)
                return None
            parse = events.gtid_tagged if event[4] == EventKind.GTID_TAGGED else events.gtid
            one = parse(event)
        except BinlogBroken as error:
            raise binlog_error(Reason.EVENT_BODY, start) from error
        self._open(start, block, str(one), one.commit_time_us)
        return None

    def _open(self, start: int, block: memoryview, gtid: str, commit_time_us: int) -> None:
        """Begin a transaction at the event at `start`."""
        length = u32(block, start + 9)
        begins = max(self.offset - length, 0)
        self.commit_position = position_of(self.file_number, begins)
        self.commit_time_us = commit_time_us or u32(block, start) * 1_000_000
        self.gtid, self.xid = gtid, 0
        self.in_transaction, self._begun, self._single = True, False, False
        self._counted, self._gsn_before, self._bytes_before = False, self.gsn, self.byte_count
        self._rows_open = 0

    def _query_event(self, block: memoryview, start: int, end: int) -> Stop | None:
        event = bytes(block[start:end])
        try:
            text = event[query_text_start(event) :]
        except Malformed as error:
            raise binlog_error(Reason.EVENT_BODY, start) from error
        if text == b"BEGIN":
            if self.in_transaction and (self._begun or self._single):
                raise binlog_error(Reason.NESTED_BEGIN, start)
            if not self.in_transaction:
                self._open(start, block, "", 0)
            self._begun = True
            return None
        if text == b"COMMIT":
            self._require_transaction(start)
            return self._parked_end(block, start, end) if self._park_limit else self._close()
        if not self.in_transaction:
            self._open(start, block, "", 0)
        if not self._begun:
            # MySQL says BEGIN or XA START when more follows.
            self._begun = text.startswith(b"XA START")
            self._single = not self._begun
        self._closing = (
            self._single or text.startswith((b"XA COMMIT", b"XA ROLLBACK")) or (text == b"ROLLBACK")
        )
        return self._hand_out(block, start, end)

    def _parked_end(self, block: memoryview, start: int, end: int) -> Stop:
        """Stop at a commit while rows are parked, so that they are replayed before the transaction
        ends.
        """
        self._closing = True
        return self._hand_out(block, start, end)

    def _close(self) -> Stop | None:
        """End the transaction; return COMMIT if there is enough to take."""
        self.end_position = position_of(self.file_number, self.offset)
        self.in_transaction, self._closing = False, False
        self._again = Scope()
        if self.gtid:
            self._gtids.append(self.gtid)
        if self._counted:
            self._transactions.append(
                (self.commit_position, self.end_position, self.commit_time_us, self.xid)
            )
        full = self.row_count >= self._commit_limit or self.byte_count >= self._byte_limit
        return Stop.COMMIT if full else None

    def abandon(self) -> bool:
        """Undo the open transaction: drop its rows, and use its numbers again.

        Returns False, and changes nothing, if some of its rows were already taken. At a ROLLBACK in
        the log the transaction ends, empty, with the next call, so that its id and place are
        recorded. Elsewhere (a server that died in it) it is as if it had never begun.
        """
        if not self.in_transaction:
            raise ValueError("no transaction is open")
        count = self._rows_open
        held = sum(store.count_of(self.trx) for store in self._stores) if self._counted else 0
        if held != count:
            return False
        for store in self._stores:
            store.drop_last(store.count_of(self.trx) if self._counted else 0)
        self.gsn, self.row_count = self._gsn_before, self.row_count - count
        self.byte_count = self._bytes_before if count else self.byte_count
        self.trx -= self._counted
        self.in_transaction, self._counted = self._closing, False
        self._again = Scope()
        return True

    def note_marker(self) -> tuple[int, int]:
        """Record that the open transaction has a marker, so that it is numbered. Returns (gsn,
        trx).
        """
        if not self.in_transaction:
            raise ValueError("no transaction is open")
        self._count()
        return self.gsn, self.trx

    def skip(self, row_count: int, trx_count: int) -> None:
        """Skip numbers that rows and transactions from elsewhere have.

        Call it between transactions, after all rows were taken.
        """
        if self.in_transaction or self.row_count:
            raise ValueError("rows are not given out")
        self.gsn += row_count
        self.trx += trx_count

    def _count(self) -> None:
        if not self._counted:
            self._counted = True
            self.trx += 1

    def take_gtids(self) -> list[str]:
        """Detach the ids of the transactions that ended, in order, as pieces of a GTID set.

        `GtidSet.parse` or `MariaGtids.parse` reads a piece. A run of numbers may be one piece.
        """
        taken, self._gtids = self._gtids, []
        return taken

    def take_transactions(self) -> pa.RecordBatch | None:
        """Detach the ended transactions as a TRANSACTIONS_SCHEMA batch; None if there are none."""
        taken, self._transactions = self._transactions, []
        return transactions_batch(taken)
