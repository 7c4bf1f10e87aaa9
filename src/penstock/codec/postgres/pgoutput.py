"""Decode pgoutput rows from raw wire frames: the readable twin of the kernel `_pgoutput.pyx`.

The twin is the specification, the oracle of the tests and the fallback without a compiler. Both
have one class `Decoder` with the same results, stops and errors; `make_decoder` picks.

The block holds frames as they came from the socket in CopyBoth: a letter, a 32-bit length that
counts itself, and the payload. Only whole frames are consumed. Begin, Commit, Insert, Update and
Delete are decoded here; all other messages are handed back (Stop.MESSAGE) and parsed by
`penstock.codec.postgres.pgoutput_messages`.
Source: PostgreSQL manual, "Streaming Replication Protocol" and "Logical Replication Message
Formats".
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from penstock.codec.columns import transactions_batch
from penstock.codec.errors import DecodeError
from penstock.codec.postgres.pgoutput_images import (
    Images,
    TextStore,
    Widen,
    copy_values,
    find,
    need,
    row_images,
)
from penstock.codec.postgres.pgoutput_messages import MESSAGE_KINDS
from penstock.codec.postgres.pgoutput_outcome import (
    BYTE_LIMIT_DEFAULT,
    BYTE_LIMIT_MAX,
    FRAME_LENGTH_MAX_BYTES,
    POSTGRES_EPOCH_US,
    Reason,
    Stop,
    decode_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.model import Relation, Rows

try:
    from penstock.codec.postgres._pgoutput import Decoder as _Kernel
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.postgres._pgoutput":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

__all__ = ["COMPILED", "DecodeError", "Decoder", "Stop", "make_decoder"]

Block = bytes | bytearray | memoryview

_COPY_DATA, _XLOG_DATA, _KEEPALIVE = ord("d"), ord("w"), ord("k")
_BEGIN, _COMMIT = ord("B"), ord("C")
_INSERT, _UPDATE, _DELETE = ord("I"), ord("U"), ord("D")
_ROW_KINDS = (_INSERT, _UPDATE, _DELETE)
_FRAME_HEAD_BYTES = 5  # letter and length
_XLOG_HEAD_BYTES = 25  # letter, two LSNs, time
_KEEPALIVE_BYTES = 18
_BEGIN_BYTES = 21
_COMMIT_BYTES = 26
_COMMIT_TIME_MAX = 2**63 - 1 - POSTGRES_EPOCH_US


def _u32(block: memoryview, at: int) -> int:
    return int.from_bytes(block[at : at + 4])


def _u64(block: memoryview, at: int) -> int:
    return int.from_bytes(block[at : at + 8])


class Decoder:
    """Decoder of whole blocks of wire frames into Arrow batches per relation version.

    Attributes:
        gsn: last number assigned to a row, also of the open transaction. An update that changed its
            key has two.
        trx: last number assigned to a transaction; it gets one with its first row or marker.
        byte_count: bytes of the buffered row messages.
        commit_position, commit_time_us, xid: facts about the open or last transaction.
        end_position: end of the last committed transaction.
        stop, message: results of the last call.
        widen: relation oid and column index, after Stop.WIDEN.
        ignored_count: skipped rows of ignored relations.

    After an error all rows before the broken one can still be taken. One thread at a time.
    """

    def __init__(
        self,
        *,
        gsn: int = 0,
        trx: int = 0,
        byte_limit: int = BYTE_LIMIT_DEFAULT,
    ) -> None:
        """Start after row `gsn` and transaction `trx`.

        byte_limit: buffered bytes at which a batch is cut even inside a transaction.
        """
        if not 1 <= byte_limit <= BYTE_LIMIT_MAX:
            raise ValueError(f"byte_limit must be from 1 to {BYTE_LIMIT_MAX}")
        self.gsn, self.trx = gsn, trx
        self.row_count, self.byte_count, self.ignored_count = 0, 0, 0
        self.in_transaction = False
        self.commit_position, self.end_position, self.commit_time_us, self.xid = 0, 0, 0, 0
        self.stop = Stop.MORE
        self.message, self.widen = (0, 0), (0, 0)
        self._byte_limit = byte_limit
        self._transactions: list[tuple[int, int, int, int]] = []
        self._counted = False
        self._stores: list[TextStore] = []
        self._current: dict[int, TextStore] = {}
        self._ignored: set[int] = set()
        self._dropped: frozenset[int] = frozenset()
        self._row_limit, self._commit_limit = 1, 1

    # --- relations

    def bind(self, source_id: int, relation: Relation) -> None:
        """Decode rows of this oid as `relation` from now on.

        Rows that were decoded with another version stay, and are taken as batches of that version.
        """
        self._ignored.discard(source_id)
        known = self._current.get(source_id)
        if known is not None and known.relation == relation:
            return
        if known is not None and not len(known):
            self._stores.remove(known)
        self._current[source_id] = TextStore(relation)
        self._stores.append(self._current[source_id])

    def ignore(self, source_id: int) -> None:
        """Skip the rows of this oid from now on, unread and uncounted, until it is bound.

        Rows that were already decoded can still be taken.
        """
        known = self._current.pop(source_id, None)
        if known is not None and not len(known):
            self._stores.remove(known)
        self._ignored.add(source_id)

    def bindings(self) -> dict[int, Relation]:
        """Return the current bindings, by oid."""
        return {source_id: store.relation for source_id, store in self._current.items()}

    def unbind_all(self) -> None:
        """Forget what oids mean (after a reconnect). Buffered rows can still be taken."""
        self._current.clear()
        self._ignored.clear()
        self._stores = [store for store in self._stores if len(store)]

    # --- blocks

    def feed(
        self, block: Block, start: int, end: int, row_limit: int, commit_limit: int | None = None
    ) -> int:
        """Decode whole frames of block[start:end]; return the offset after the last consumed one.

        `stop` is the reason for returning. COMMIT: after a Commit with row_count >= commit_limit
        (default: row_limit; 0 stops at every Commit) or too many bytes. LIMIT: before a row, with
        row_count >= row_limit or too many bytes: take the rows, then continue; the transaction is
        still open. KEEPALIVE, MESSAGE: the frame is consumed; `message` spans its payload or its
        pgoutput message. WIDEN: before a row that needs its column as text: bind the next version
        and feed again from the offset. OTHER_FRAME: before a frame that is not CopyData. MORE: the
        rest is not a whole frame. Raises DecodeError; nothing of the broken row is kept.
        """
        self._limits(row_limit, commit_limit)
        return self._walk(block, start, end, self._plain_message)

    def replay(
        self, block: Block, start: int, end: int, row_limit: int, dropped: Collection[int]
    ) -> int:
        """Decode like `feed` the frames of one streamed transaction; call `begin` before.

        Messages have an xid; rows whose xid is in `dropped` (rolled back) are skipped. A Begin or
        Commit is an error.
        """
        self._limits(row_limit, None)
        self._dropped = frozenset(dropped)
        return self._walk(block, start, end, self._streamed_message)

    def skip_rows(self, block: Block, start: int, end: int) -> int:
        """Skip the rows of a streamed block without decoding: they are written to a side file as
        is.

        Stops like `feed`, with MESSAGE at anything but a row (StreamStop, Relation, ...).
        """
        return self._walk(block, start, end, self._passed_message)

    def _limits(self, row_limit: int, commit_limit: int | None) -> None:
        if row_limit < 1:
            raise ValueError("row_limit must be at least 1")
        self._row_limit = row_limit
        self._commit_limit = row_limit if commit_limit is None else commit_limit

    def _walk(
        self,
        block: Block,
        start: int,
        end: int,
        handle: Callable[[memoryview, int, int], Stop | None],
    ) -> int:
        view = _check_block(block, start, end)
        at = start
        self.stop = Stop.MORE
        while end - at >= _FRAME_HEAD_BYTES:
            length = _u32(view, at + 1)
            if not 4 <= length <= FRAME_LENGTH_MAX_BYTES:
                raise decode_error(Reason.FRAME_LENGTH, at)
            behind = at + 1 + length
            if behind > end:
                break
            if view[at] != _COPY_DATA:
                self.message, self.stop = (at + _FRAME_HEAD_BYTES, behind), Stop.OTHER_FRAME
                return at
            stop = self._copy_data(view, at + _FRAME_HEAD_BYTES, behind, handle)
            if stop in (Stop.LIMIT, Stop.WIDEN):
                self.stop = stop
                return at
            at = behind
            if stop is not None:
                self.stop = stop
                return at
        return at

    def _copy_data(
        self,
        block: memoryview,
        start: int,
        end: int,
        handle: Callable[[memoryview, int, int], Stop | None],
    ) -> Stop | None:
        kind = block[start] if end > start else None
        if kind == _XLOG_DATA and end - start > _XLOG_HEAD_BYTES:
            return handle(block, start + _XLOG_HEAD_BYTES, end)
        if kind == _KEEPALIVE and end - start == _KEEPALIVE_BYTES:
            self.message = (start, end)
            return Stop.KEEPALIVE
        raise decode_error(Reason.COPY_DATA, start)

    def _plain_message(self, block: memoryview, start: int, end: int) -> Stop | None:
        kind = block[start]
        if kind in _ROW_KINDS:
            self._require_transaction(start)
            return self._row_message(block, start, start + 1, end)
        if kind == _BEGIN:
            self._begin_message(block, start, end)
            return None
        if kind == _COMMIT:
            return self._commit_message(block, start, end)
        return self._other_message(block, start, end)

    def _streamed_message(self, block: memoryview, start: int, end: int) -> Stop | None:
        if block[start] not in _ROW_KINDS:
            return self._other_message(block, start, end)
        self._require_transaction(start)
        need(4, start + 1, end)
        if _u32(block, start + 1) in self._dropped:
            return None
        return self._row_message(block, start, start + 5, end)

    def _passed_message(self, block: memoryview, start: int, end: int) -> Stop | None:
        if block[start] in _ROW_KINDS:
            return None
        return self._other_message(block, start, end)

    def _other_message(self, block: memoryview, start: int, end: int) -> Stop:
        if block[start] not in MESSAGE_KINDS:
            raise decode_error(Reason.UNKNOWN_MESSAGE, start)
        self.message = (start, end)
        return Stop.MESSAGE

    def _require_transaction(self, at: int) -> None:
        if not self.in_transaction:
            raise decode_error(Reason.NO_TRANSACTION, at)

    def _full(self) -> bool:
        return self.row_count >= self._row_limit or self.byte_count >= self._byte_limit

    # --- transactions

    def _begin_message(self, block: memoryview, start: int, end: int) -> None:
        if end - start != _BEGIN_BYTES:
            raise decode_error(Reason.MESSAGE_LENGTH, start)
        if self.in_transaction:
            raise decode_error(Reason.NESTED_BEGIN, start)
        time = int.from_bytes(block[start + 9 : start + 17], signed=True)
        if time > _COMMIT_TIME_MAX:
            raise decode_error(Reason.COMMIT_TIME, start)
        self._open(_u64(block, start + 1), time + POSTGRES_EPOCH_US, _u32(block, start + 17))

    def _commit_message(self, block: memoryview, start: int, end: int) -> Stop | None:
        if end - start != _COMMIT_BYTES:
            raise decode_error(Reason.MESSAGE_LENGTH, start)
        self._require_transaction(start)
        if _u64(block, start + 2) != self.commit_position:
            raise decode_error(Reason.COMMIT_MISMATCH, start)
        self._close(_u64(block, start + 10))
        if self.row_count >= self._commit_limit or self.byte_count >= self._byte_limit:
            return Stop.COMMIT
        return None

    def begin(self, commit_position: int, commit_time_us: int, xid: int) -> None:
        """Open a transaction whose Begin was not in a block fed here (a replayed one)."""
        if self.in_transaction:
            raise ValueError("a transaction is already open")
        self._open(commit_position, commit_time_us, xid)

    def commit(self, end_position: int) -> None:
        """Close the transaction that `begin` opened. end_position: end of its commit record."""
        if not self.in_transaction:
            raise ValueError("no transaction is open")
        self._close(end_position)

    def _open(self, commit_position: int, commit_time_us: int, xid: int) -> None:
        self.commit_position, self.commit_time_us, self.xid = commit_position, commit_time_us, xid
        self.in_transaction = True
        self._counted = False

    def _close(self, end_position: int) -> None:
        self.end_position, self.in_transaction = end_position, False
        if self._counted:
            self._transactions.append(
                (self.commit_position, end_position, self.commit_time_us, self.xid)
            )

    def note_marker(self) -> tuple[int, int]:
        """Record that the open transaction has a marker, so that it is numbered. Returns (gsn,
        trx).
        """
        if not self.in_transaction:
            raise ValueError("no transaction is open")
        self._count()
        return self.gsn, self.trx

    def pass_rows(self, count: int) -> None:
        """Skip the numbers of the open transaction's rows from elsewhere.

        Call it after all rows were taken.
        """
        if not self.in_transaction or self.row_count:
            raise ValueError("no transaction is open, or rows are not given out")
        self._count()
        self.gsn += count

    def _count(self) -> None:
        if not self._counted:
            self._counted = True
            self.trx += 1

    # --- rows

    def _row_message(self, block: memoryview, start: int, at: int, end: int) -> Stop | None:
        """Decode the row whose relation oid is at `at`; the message starts at `start`."""
        if self._full():
            return Stop.LIMIT
        need(4, at, end)
        source_id = _u32(block, at)
        if source_id in self._ignored:
            self.ignored_count += 1
            return None
        store = self._current.get(source_id)
        if store is None:
            raise decode_error(Reason.UNBOUND, at, source_id=source_id)
        try:
            images = row_images(store, block, block[start], at + 4, end)
        except Widen as widen:
            self.widen = (source_id, widen.column)
            return Stop.WIDEN
        self._keep(store, block[start], images, end - start)
        return None

    def _keep(
        self,
        store: TextStore,
        op: int,
        images: Images,
        byte_count: int,
    ) -> None:
        self._count()
        self.gsn += 1 + images.moved
        head = (self.gsn, self.trx, op)
        store.add(head, images.after, images.before, images.absent)
        self.row_count += 1
        self.byte_count += byte_count

    # --- COPY lines

    def feed_copy(
        self, block: Block, start: int, end: int, source_id: int, row_limit: int = 2**31 - 1
    ) -> int:
        r"""Decode whole lines of COPY's text format as inserts of the open transaction.

        block: lines as COPY TO STDOUT sends them: values separated by tabs, `\N` for NULL,
        backslash escapes, each line ended by a newline; the columns are the relation's, in order.
        Returns the offset behind the last consumed line. Stops: MORE, LIMIT and WIDEN (before a
        line), as with `feed`. Raises DecodeError.
        """
        self._limits(row_limit, None)
        view = _check_block(block, start, end)
        self._require_transaction(start)
        store = self._current.get(source_id)
        if store is None:
            raise decode_error(Reason.UNBOUND, start, source_id=source_id)
        at = start
        self.stop = Stop.MORE
        while (line_end := find(view, b"\n", at, end)) >= 0:
            if line_end - at > FRAME_LENGTH_MAX_BYTES:
                raise decode_error(Reason.LINE_LENGTH, at, relation=store.relation)
            if self._full():
                self.stop = Stop.LIMIT
                return at
            try:
                values = copy_values(store, view, at, line_end)
            except Widen as widen:
                self.widen, self.stop = (source_id, widen.column), Stop.WIDEN
                return at
            self._keep(store, _INSERT, Images(values, None, [], False), line_end - at)
            at = line_end + 1
        return at

    # --- results

    def take(self) -> list[Rows]:
        """Detach all buffered rows, one batch per relation version that has any.

        Within a batch rows are in order; between batches the gsn column gives the order.
        """
        taken = [store.batch() for store in self._stores if len(store)]
        current = set(map(id, self._current.values()))
        self._stores = [store for store in self._stores if id(store) in current]
        for store in self._stores:
            store.clear()
        self.row_count, self.byte_count = 0, 0
        return taken

    def take_transactions(self) -> pa.RecordBatch | None:
        """Detach the ended transactions as a TRANSACTIONS_SCHEMA batch; None if there are none."""
        taken, self._transactions = self._transactions, []
        return transactions_batch(taken)


def _check_block(block: Block, start: int, end: int) -> memoryview:
    view = memoryview(block)
    if view.format != "B" or view.ndim != 1:
        raise ValueError("block must be plain bytes")
    if not 0 <= start <= end <= len(view):
        raise ValueError("start and end must lie within the block")
    return view


def make_decoder(
    *,
    gsn: int = 0,
    trx: int = 0,
    byte_limit: int = BYTE_LIMIT_DEFAULT,
) -> Decoder:
    """Return the compiled decoder, or the twin if it is not built or PENSTOCK_PURE=1 forbids it."""
    kind = Decoder
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        # The stub promises the same methods; the tests run both through one suite.
        kind = cast("type[Decoder]", _Kernel)
    return kind(gsn=gsn, trx=trx, byte_limit=byte_limit)
