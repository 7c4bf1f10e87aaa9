"""Decode row changes of a binlog stream: the readable twin of the kernel `_binlog.pyx`.

The twin is the specification, the oracle of the tests and the fallback without a compiler. Both
have one class `Decoder` with the same results, stops and errors; `make_decoder` picks.

The block holds packets as they come from the socket during a dump: a 24-bit length, a sequence
number, a status byte, and an event with its checksum. Only whole packets are consumed; an event
that needs several is joined at the side. The two bytes that a server puts before events for
semi-synchronous replicas are not understood: do not ask for them. Rows, table maps that are known,
the begin and end of transactions are decoded here; everything else is handed back (Stop.MESSAGE)
and read by `binlog_events`, `binlog_query` and `binlog_tables`.

Positions are one number: the file's number above OFFSET_BITS, the offset in it below. A row's is
that of its transaction's first event, so a row is in a snapshot taken at P exactly when its
position is below P.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from penstock.codec.mysql import binlog_events as events
from penstock.codec.mysql.binlog_cells import cells
from penstock.codec.mysql.binlog_compressed import Payload, inflated_rows
from penstock.codec.mysql.binlog_events import CHECKSUM_BYTES, HEAD_BYTES, EventFlag, EventKind
from penstock.codec.mysql.binlog_groups import Groups
from penstock.codec.mysql.binlog_images import (
    NO_TABLE,
    OPERATIONS,
    STATEMENT_END,
    Binding,
    Images,
    Widen,
    check_head,
    make_binding,
    row_images,
    rows_head,
)
from penstock.codec.mysql.binlog_outcome import (
    BYTE_LIMIT_DEFAULT,
    BYTE_LIMIT_MAX,
    OFFSET_BITS,
    BinlogBroken,
    Reason,
    Stop,
    binlog_error,
)
from penstock.codec.mysql.binlog_partial import rewritten
from penstock.codec.mysql.binlog_store import Store
from penstock.codec.mysql.binlog_tables import TableMap
from penstock.codec.mysql.binlog_walk import (
    ENDING_KINDS,
    GTID_KINDS,
    HEARTBEATS,
    INFLATED_KINDS,
    MESSAGE_KINDS,
    OUTER_KINDS,
    PASSED_KINDS,
    ROW_KINDS,
    STATEMENT_KINDS,
    Block,
    Scope,
    SideEvents,
    file_number,
    u16,
)

if TYPE_CHECKING:
    from penstock.model import Relation, Rows

try:
    from penstock.codec.mysql._binlog import Decoder as _Kernel
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.mysql._binlog":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

__all__ = ["COMPILED", "BinlogBroken", "Decoder", "Stop", "make_decoder"]


class Decoder(Groups):
    """Decoder of whole blocks of packets into Arrow batches per relation version.

    Attributes:
        gsn: last number assigned to a row, also of the open transaction. An update that changed its
            key has two.
        trx: last number assigned to a transaction; it gets one with its first row or marker.
        byte_count: bytes of the buffered rows and of the text they became.
        commit_position: where the open or last transaction starts.
        end_position: the place after the last finished transaction.
        commit_time_us, xid, gtid: facts about the open or last transaction. xid is known at its
            end.
        file_name, file_number, offset: where the stream is.
        stop, message: results of the last call.
        widen: table id and column index, after Stop.WIDEN.

    After an error all rows before the broken one can still be taken. The stream cannot continue
    then; it can only be `reset` and read again from a position. One thread at a time.
    """

    def __init__(
        self,
        *,
        gsn: int = 0,
        trx: int = 0,
        byte_limit: int = BYTE_LIMIT_DEFAULT,
        statements: bool = False,
        partial_inserts: bool = False,
    ) -> None:
        """Start after row `gsn` and transaction `trx`.

        byte_limit: buffered bytes at which a batch is cut even inside a transaction. statements:
        stop at ROWS_QUERY and ANNOTATE_ROWS events. partial_inserts: accept inserted rows that lack
        columns. These are marked absent and mean the column's default.
        """
        if not 1 <= byte_limit <= BYTE_LIMIT_MAX:
            raise ValueError(f"byte_limit must be from 1 to {BYTE_LIMIT_MAX}")
        self.gsn, self.trx = gsn, trx
        self.row_count, self.byte_count = 0, 0
        self.heartbeat_count = 0
        self.commit_position, self.end_position, self.commit_time_us, self.xid = 0, 0, 0, 0
        self.gtid = ""
        self.stop = Stop.MORE
        self.message, self.widen = b"", (0, 0)
        self._byte_limit = byte_limit
        self._statements, self._partial_inserts = statements, partial_inserts
        self._transactions: list[tuple[int, int, int, int]] = []
        self._gtids: list[str] = []
        self._stores: list[Store] = []
        self._row_limit, self._commit_limit = 1, 1
        self._parked = bytearray()
        self._park_limit = 0  # 0: rows are decoded
        self._counted, self._gsn_before, self._bytes_before = False, gsn, 0
        self._rows_open = 0
        self.in_transaction = False
        self._forget()

    def reset(self) -> None:
        """Forget the stream: the next block begins a new dump. Buffered rows can still be taken.

        An open transaction is dropped as by `abandon`, as far as it was not taken.
        """
        if self.in_transaction:
            self.abandon()
        self._forget()

    def _forget(self) -> None:
        self.in_transaction = False
        self.file_name, self.file_number, self.offset = "", 0, 0
        self.server_version, self.is_mariadb = "", False
        self._checksums: bool | None = None
        self._scope = self._main = Scope()
        self._again = Scope()
        self._joining: list[bytes] | None = None
        self._row_at = 0  # of the row to go on with, from its event's start
        self._closing = False  # the event just handed out was the transaction's last
        self._begun = False
        self._single = False  # the group is one statement
        self._drop_stores()

    # --- relations

    def bind(
        self,
        table: TableMap,
        relation: Relation | None,
        charsets: Sequence[str | None] = (),
    ) -> None:
        """Decode rows of this table id as `relation` from now on; skip them if it is None.

        charsets: per column the character set that the catalogue names, for a server that writes
        no metadata. Rows already decoded stay and are taken as batches of their relation.
        Raises ShapeMismatch, TypeRefused.
        """
        bindings = self._scope.bindings
        if relation is None:
            bindings[table.table_id] = Binding(table=table, relation=None)
        else:
            plan = cells(table, relation, charsets)
            binding = make_binding(table, relation, plan, self._store(relation))
            bindings[table.table_id] = binding
        self._drop_stores()

    def _store(self, relation: Relation) -> Store:
        for store in self._stores:
            if store.relation == relation:
                return store
        self._stores.append(Store(relation))
        return self._stores[-1]

    def _drop_stores(self) -> None:
        """Remove the stores that are neither bound nor have rows."""
        used = {
            id(binding.store)
            for scope in (self._main, self._again)
            for binding in scope.bindings.values()
        }
        self._stores = [store for store in self._stores if len(store) or id(store) in used]

    def bindings(self) -> dict[int, Relation | None]:
        """Return the current bindings by table id; None for tables that are skipped."""
        return {number: one.relation for number, one in self._scope.bindings.items()}

    def table(self, table_id: int) -> TableMap:
        """Return the TABLE_MAP that an id was bound with. Raises KeyError."""
        return self._scope.bindings[table_id].table

    def unbind_all(self) -> None:
        """Forget what table ids mean. Buffered rows can still be taken."""
        self._scope.bindings.clear()
        self._drop_stores()

    # --- blocks

    def feed(
        self, block: Block, start: int, end: int, row_limit: int, commit_limit: int | None = None
    ) -> int:
        """Decode whole packets of block[start:end]; return the offset after the last consumed one.

        `stop` is the reason for returning. COMMIT: after the end of a transaction, with row_count
        >= commit_limit (default: row_limit; 0 stops at each one) or too many bytes. LIMIT: before a
        row, with row_count >= row_limit or too many bytes: take the rows, then continue from the
        offset. MESSAGE: the event is consumed, and `message` has its head and body without
        checksum; a transaction that it ends (a DDL statement, ROLLBACK) stays open until the next
        call. WIDEN: before a row that needs its column as text: bind `table(id)` with the next
        version and feed again from the offset. OTHER_FRAME: before a packet that is not an event.
        MORE: the rest is not a whole packet. The caller continues from the returned offset. Raises
        BinlogBroken; nothing of the broken row is kept.
        """
        self._limits(row_limit, commit_limit)
        return self._walk(block, start, end, self._packet)

    def feed_file(
        self, block: Block, start: int, end: int, row_limit: int, commit_limit: int | None = None
    ) -> int:
        """Decode like `feed` the bytes of a binlog file; call `start_file` before the
        first ones.
        """
        self._limits(row_limit, commit_limit)
        return self._walk(block, start, end, self._file_event)

    def start_file(self, name: str) -> None:
        """Set the file whose bytes follow for `feed_file`. Raises BinlogBroken for its name."""
        self.file_number = file_number(name.encode(), 0)
        self.file_name, self.offset = name, 0

    def park(self, block: Block, start: int, end: int, byte_limit: int) -> int:
        """Read like `feed`, but put rows aside undecoded, for a transaction that may be undone.

        `take_parked` returns them, and `replay` decodes them. LIMIT: before an event, with at least
        byte_limit bytes put aside: take them, then continue from the offset. MESSAGE: also for a
        commit, whose transaction stays open until the next call.
        """
        if byte_limit < 1:
            raise ValueError("byte_limit must be at least 1")
        self._limits(1, 0)
        self._park_limit = byte_limit
        try:
            return self._walk(block, start, end, self._packet)
        finally:
            self._park_limit = 0

    def take_parked(self) -> bytes:
        """Detach what `park` put aside: whole events, which can be kept for any length of time."""
        taken = bytes(self._parked)
        self._parked.clear()
        return taken

    def replay(self, block: Block, start: int, end: int, row_limit: int) -> int:
        """Decode parked events as rows of the open transaction.

        Table ids of that time have a meaning of their own until the transaction ends: bind them
        when it stops for them. Stops: MORE, LIMIT, MESSAGE (a TABLE_MAP), WIDEN.
        """
        self._limits(row_limit, None)
        if not self.in_transaction:
            raise ValueError("no transaction is open")
        self._scope = self._again
        closing, self._closing = self._closing, False
        try:
            return self._walk(block, start, end, self._bare_event)
        finally:
            self._closing = closing

    def _limits(self, row_limit: int, commit_limit: int | None) -> None:
        if row_limit < 1:
            raise ValueError("row_limit must be at least 1")
        self._row_limit = row_limit
        self._commit_limit = row_limit if commit_limit is None else commit_limit
        self._scope = self._main

    # --- events

    def _dispatch(self, block: memoryview, start: int, end: int, sealed: bool) -> Stop | None:
        kind = block[start + 4]
        if self._scope is self._again and kind not in (*ROW_KINDS, EventKind.TABLE_MAP):
            if kind in INFLATED_KINDS:
                self._put_aside(inflated_rows(bytes(block[start:end])))
                return None
            raise binlog_error(Reason.UNKNOWN_EVENT, start)
        if self._park_limit and kind in (*ROW_KINDS, *INFLATED_KINDS, EventKind.TABLE_MAP):
            return self._park_event(block, start, end)
        if kind == EventKind.TABLE_MAP:
            return self._table_map(block, start, end)
        if kind in ROW_KINDS:
            return self._rows_event(block, start, end)
        if kind in INFLATED_KINDS:
            self._require_transaction(start)
            self._put_aside(inflated_rows(bytes(block[start:end])))
            return None
        if not sealed and kind in OUTER_KINDS:
            raise binlog_error(Reason.UNKNOWN_EVENT, start)
        if kind in GTID_KINDS:
            return self._gtid_event(block, start, end)
        if kind == EventKind.XID:
            self._require_transaction(start)
            if end - start != HEAD_BYTES + 8:
                raise binlog_error(Reason.EVENT_BODY, start)
            self.xid = int.from_bytes(block[start + HEAD_BYTES : end], "little")
            return self._parked_end(block, start, end) if self._park_limit else self._close()
        if kind == EventKind.TRANSACTION_PAYLOAD:
            self._unpack(block, start, end)
            return None
        return self._other_event(block, start, end)

    def _other_event(self, block: memoryview, start: int, end: int) -> Stop | None:
        """Handle rare events, and events to skip."""
        kind, flags = block[start + 4], u16(block, start + 17)
        self.heartbeat_count += kind in HEARTBEATS
        if kind in PASSED_KINDS or kind == EventKind.START_ENCRYPTION:
            return None
        if kind in STATEMENT_KINDS:
            return self._hand_out(block, start, end) if self._statements else None
        if kind not in MESSAGE_KINDS:
            if flags & EventFlag.IGNORABLE:
                return None
            raise binlog_error(Reason.UNKNOWN_EVENT, start)
        if kind == EventKind.QUERY:
            return self._query_event(block, start, end)
        if kind == EventKind.ROTATE:
            self._rotate_event(block, start, end)
        elif kind == EventKind.FORMAT_DESCRIPTION:
            return self._format_event(block, start, end)
        elif kind == EventKind.XA_PREPARE:
            self._require_transaction(start)
            self._closing = True
        elif kind in ENDING_KINDS:
            self._closing = self.in_transaction and self._single
        return self._hand_out(block, start, end)

    def _put_aside(self, data: bytes) -> None:
        self._scope.sides.append(SideEvents(memoryview(data), sealed=False))

    def _unpack(self, block: memoryview, start: int, end: int) -> None:
        # Joined from packets it is a side already, which nothing writes over.
        side = self._scope.sides[-1].data if self._scope.sides else None
        payload = Payload(block[start:end] if block is side else bytes(block[start:end]))
        data = memoryview(payload.more(b""))
        self._scope.sides.append(SideEvents(data, sealed=False, payload=payload))

    def _park_event(self, block: memoryview, start: int, end: int) -> Stop | None:
        if len(self._parked) >= self._park_limit:
            return Stop.LIMIT
        event = bytearray(block[start:end])
        event[9:13] = len(event).to_bytes(4, "little")
        self._parked += event
        return None

    def _format_event(self, block: memoryview, start: int, end: int) -> Stop:
        event = bytes(block[start : end + CHECKSUM_BYTES])
        try:
            said = events.format_description(event)
        except BinlogBroken as error:
            raise binlog_error(Reason.FORMAT, start) from error
        self._checksums = said.has_checksums
        self.server_version, self.is_mariadb = said.server_version, said.is_mariadb
        self.unbind_all()
        self.message = event
        return Stop.MESSAGE

    def _rotate_event(self, block: memoryview, start: int, end: int) -> None:
        at = start + HEAD_BYTES
        if end - at < 8:
            raise binlog_error(Reason.EVENT_BODY, start)
        offset, name = int.from_bytes(block[at : at + 8], "little"), bytes(block[at + 8 : end])
        number = file_number(name, start)
        if offset >> OFFSET_BITS:
            raise binlog_error(Reason.EVENT_BODY, start)
        self.file_number, self.file_name, self.offset = number, name.decode("ascii"), offset

    # --- rows

    def _table_map(self, block: memoryview, start: int, end: int) -> Stop | None:
        if end - start < HEAD_BYTES + 8:
            raise binlog_error(Reason.EVENT_BODY, start)
        table_id = int.from_bytes(block[start + HEAD_BYTES : start + HEAD_BYTES + 6], "little")
        known = self._scope.bindings.get(table_id)
        if known is not None and known.table.body == block[start + HEAD_BYTES : end]:
            return None
        return self._hand_out(block, start, end)

    def _rows_event(self, block: memoryview, start: int, end: int) -> Stop | None:
        """Decode rows from `_row_at` on, where the previous call stopped."""
        self._require_transaction(start)
        at = start + HEAD_BYTES
        if end - at < 8:
            raise binlog_error(Reason.EVENT_BODY, start)
        table_id = int.from_bytes(block[at : at + 6], "little")
        if table_id == NO_TABLE and u16(block, at + 6) & STATEMENT_END:
            return None
        binding = self._scope.bindings.get(table_id)
        if binding is None:
            raise binlog_error(Reason.UNBOUND, start, table_id=table_id)
        if binding.relation is None:
            return None
        if block[start + 4] == EventKind.PARTIAL_UPDATE_ROWS:
            self._put_aside(rewritten(bytes(block[start:end]), start, binding))
            return None
        op = OPERATIONS[EventKind(block[start + 4])]
        head = rows_head(block, start, end, op)
        check_head(binding, head, op, start, self._partial_inserts)
        at = start + self._row_at if self._row_at else head.start
        while at < end:
            self._row_at = at - start
            if self.row_count >= self._row_limit or self.byte_count >= self._byte_limit:
                return Stop.LIMIT
            try:
                row = row_images(binding, block, op, head, at, end)
            except Widen as widen:
                self.widen = (table_id, widen.column)
                return Stop.WIDEN
            self._keep(binding, op, row)
            at = row.behind
        self._row_at = 0
        return None

    def _keep(self, binding: Binding, op: int, row: Images) -> None:
        assert binding.store is not None
        self._count()
        self.gsn += 1 + row.moved
        head = (self.gsn, self.trx, op)
        binding.store.add(head, row.after, row.before, row.absent)
        self.row_count += 1
        self._rows_open += 1
        self.byte_count += row.size

    # --- results

    def take(self) -> list[Rows]:
        """Detach all buffered rows, one batch per relation version that has any.

        Within a batch rows are in order; between batches the gsn column gives the order.
        """
        taken = [store.batch() for store in self._stores if len(store)]
        for store in self._stores:
            store.clear()
        self._drop_stores()
        self.row_count, self.byte_count, self._bytes_before = 0, 0, 0
        return taken


def make_decoder(
    *,
    gsn: int = 0,
    trx: int = 0,
    byte_limit: int = BYTE_LIMIT_DEFAULT,
    statements: bool = False,
    partial_inserts: bool = False,
) -> Decoder:
    """Return the compiled decoder, or the twin if it is not built or PENSTOCK_PURE=1 forbids it.

    Arguments are as for `Decoder`.
    """
    kind = Decoder
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        # The stub promises the same methods; the tests run both through one suite.
        kind = cast("type[Decoder]", _Kernel)
    return kind(
        gsn=gsn,
        trx=trx,
        byte_limit=byte_limit,
        statements=statements,
        partial_inserts=partial_inserts,
    )
