"""Assembly of the transactions of one window, from rows of V$LOGMNR_CONTENTS.

Rows are kept by transaction until its commit or rollback. Nothing is undone here: an undo row is
kept in its place, and read when the transaction is known to be committed (`undo`). A row belongs to
a transaction by its XID. Undo and ROLLBACK rows of a transaction that began before the window may
have an XID with the sequence 2^32 - 1, and belong to the open transaction of that slot.

(RS_ID, SSN) does not identify a row: rows of an array statement share it (reference, 1a O1).
Follows the reference, section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from penstock.codec.oracle.mined_rows import Operation
from penstock.codec.oracle.pieces import PieceJoiner
from penstock.codec.oracle.redo_outcome import RedoRow
from penstock.codec.oracle.scn import commit_ordinal
from penstock.engines.oracle.source.entries import (
    MISMATCH,
    UNDO,
    UNREADABLE,
    Entry,
    Spill,
    Transaction,
)
from penstock.engines.oracle.source.errors import (
    ParallelChild,
    RedoUnreadable,
    TransactionTooLarge,
    TransactionTooOld,
)
from penstock.engines.oracle.source.kept_rows import (
    CHANGES,
    LOBS,
    LONG_STRINGS,
    TEMPORARY,
    classify,
    count_untied,
    tie_rows,
)

SPILL_BYTES = 64 * 1024 * 1024
ROW_BYTES = 350  # of an entry in memory, besides its text
LARGE_SHARE = 16  # a transaction with this part of the memory is written before small ones
_PARTIAL = b"\xff\xff\xff\xff"
_NO_XID = bytes(8)
_CORRUPT = 1343
_MISSING_SCN, _START = int(Operation.MISSING_SCN), int(Operation.START)
_COMMIT = int(Operation.COMMIT)

Row = tuple[Any, ...]
"""Columns of `statements.CONTENTS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of open transactions; 0 is none.

    Attributes:
        rows_max: Rows.
        age_max_s: Seconds between the START and the newest row.
    """

    rows_max: int = 0
    age_max_s: float = 0.0


class Assembly:
    """Transactions of one window.

    Attributes:
        committed: Those with rows or DDL that were committed after the log's end, as they came.
        torn: Names of transactions that were committed after it and whose START is missing.
        row_count: Rows that came.
    """

    def __init__(
        self,
        after: int,
        *,
        number_of: Callable[[str, str, int, int], int],
        spill: Spill,
        limits: Limits,
        spill_bytes: int | None = None,
    ) -> None:
        """Begin a window.

        Args:
            after: Ordinal of the log's end: commits up to there are passed over.
            number_of: Returns the number of a table version by owner, name, DATA_OBJ# and
                DATA_OBJV#; -1 if the table is not captured.
            spill: Place for large transactions.
            limits: Of open transactions.
            spill_bytes: Bytes of rows that are kept in memory.
        """
        self.committed: list[Transaction] = []
        self.torn: dict[str, bool] = {}
        self.row_count = 0
        self._after = after
        self._number_of = number_of
        self._spill = spill
        self._limits = limits
        self._rows_max = limits.rows_max or 1 << 62
        self._spill_bytes = SPILL_BYTES if spill_bytes is None else spill_bytes
        self._open: dict[bytes, Transaction] = {}
        self._slots: dict[bytes, bytes] = {}
        self._parents: set[bytes] = set()  # of parts of parallel statements
        self._ended: set[bytes] = set()  # those that were committed
        self._numbers: dict[tuple[int, int], int] = {}
        self._joiner = PieceJoiner()
        self._piece_row: Row = ()
        self._size_bytes = 0
        self._first_kept = 0  # of the committed ones; those before it are in the side file
        self._newest: datetime | None = None

    # ------------------------------------------------------------------ rows

    def add(self, rows: Iterable[Row]) -> None:
        """Take rows in the order in which LogMiner returns them.

        Raises:
            RedoUnreadable: LogMiner misses redo.
            RedoBroken: The pieces of a statement do not follow each other.
            TransactionTooLarge: See `Limits`.
        """
        opened, numbers, joiner = self._open, self._numbers, self._joiner
        size, count = 0, 0
        for row in rows:
            (
                scn, xid, pxid, code, rollback, csf, status, _, owner, name, row_id, rs_id, object_,
                version, _, _, text,
            ) = row  # fmt: skip
            count += 1
            if csf or joiner.first is not None:
                whole = self._join(row)
                if whole is None:
                    continue
                row, text = whole
                scn, xid, pxid, code, rollback, _, status = row[:7]
                owner, name, row_id, rs_id, object_, version = row[8:14]
            transaction = opened.get(xid)
            if (
                transaction is None
                or status
                or rollback
                or code not in CHANGES
                or pxid != xid
                or not text
            ):
                self._add_other(row, transaction, text)
                continue
            number = numbers.get((object_, version))
            if number is None:
                number = self._find_number(owner, name, object_, version)
            if number < 0 or text.startswith(TEMPORARY):
                continue
            transaction.entries.append(
                Entry(number, text, scn, transaction.name, rs_id, code, row_id)
            )
            transaction.count += 1
            length = len(text) + ROW_BYTES
            transaction.size_bytes += length
            size += length
            if transaction.count > self._rows_max:
                self._refuse_large(transaction)
        self.row_count += count
        self._size_bytes += size
        if self._size_bytes > self._spill_bytes:
            self._spill_rows()

    def _join(self, row: Row) -> tuple[Row, str] | None:
        """Return the first row of a statement and its whole text, after its last piece."""
        if self._joiner.first is None:
            self._piece_row = row
        piece = RedoRow(row[12], row[16] or "", row[0], row[1].hex().upper(), row[11])
        whole = self._joiner.add(piece, operation=row[3], is_continued=bool(row[5]))
        return None if whole is None else (self._piece_row, whole.text)

    def _find_number(self, owner: str, name: str, object_: int, version: int) -> int:
        number = self._number_of(owner or "", name or "", object_ or 0, version or 0)
        self._numbers[(object_, version)] = number
        return number

    def _add_other(self, row: Row, transaction: Transaction | None, text: str | None) -> None:
        """Take any row but a plain change of a transaction whose START was seen."""
        scn, xid, pxid, code, rollback, _, status, thread = row[:8]
        if status == _CORRUPT or code == _MISSING_SCN:
            raise RedoUnreadable(
                f"LogMiner could not read redo at SCN {scn} of thread {thread}: "
                f"{row[14] or 'MISSING_SCN'}",
                hint="Check the archived logs with RMAN: VALIDATE ARCHIVELOG ALL; then load the "
                "tables again: penstock reset --target, then penstock run.",
                scn=scn,
            )
        if code == _START:
            self._begin(row)
            return
        if transaction is None and xid[4:] == _PARTIAL:
            found = self._slots.get(xid[:4])
            if found is None:
                return  # it ended before the window, or has no row in it
            transaction = self._open.get(found)
        if code == _COMMIT:
            self._commit(row, transaction)
        elif code == Operation.ROLLBACK:
            self._forget(transaction)
        else:
            if transaction is None:
                if rollback:
                    return  # what it undoes is not here
                transaction = Transaction(xid, 0, row[15])
                self._open[xid] = transaction
                self._slots[xid[:4]] = xid
            self._note_parent(transaction, pxid)
            self._keep(row, transaction, text)

    def _begin(self, row: Row) -> None:
        xid, pxid = row[1], row[2]
        self._forget(self._open.get(xid))
        transaction = Transaction(xid, row[0], row[15])
        self._note_parent(transaction, pxid)
        self._open[xid] = transaction
        self._slots[xid[:4]] = xid

    def _note_parent(self, transaction: Transaction, pxid: bytes | None) -> None:
        if pxid not in (transaction.xid, None, _NO_XID):
            transaction.parent = pxid or b""
            self._parents.add(transaction.parent)

    def _commit(self, row: Row, transaction: Transaction | None) -> None:
        scn, thread, rs_id, time = row[0], row[7], row[11], row[15]
        self._newest = time or self._newest
        position = commit_ordinal(scn, thread, rs_id)
        is_new = position > self._after
        if is_new and (transaction is None or not transaction.start_scn):
            name = transaction.name if transaction is not None else row[1].hex().upper()
            self.torn[name] = transaction is not None and bool(transaction.count)
        if row[1] in self._parents:
            self._ended.add(row[1])
        if transaction is None:
            return
        if not is_new or not (transaction.count or transaction.ddl):
            self._forget(transaction)
            return
        del self._open[transaction.xid]
        transaction.position, transaction.time = position, time
        self.committed.append(transaction)

    def _forget(self, transaction: Transaction | None) -> None:
        if transaction is None:
            return
        del self._open[transaction.xid]
        self._size_bytes -= transaction.size_bytes

    def release(self, transaction: Transaction) -> None:
        """Forget a committed transaction that was given to the log."""
        self._size_bytes -= transaction.size_bytes
        transaction.entries = []

    # ------------------------------------------------------------------ rows of other kinds

    def _keep(self, row: Row, transaction: Transaction, text: str | None) -> None:
        scn, _, _, code, rollback, _, status = row[:7]
        owner, name, row_id, rs_id, object_, version, info = row[8:15]
        if code == Operation.DDL:
            if (info or "").startswith("USER DDL"):
                statement = owner or "", name or "", object_ or 0, text or ""
                transaction.ddl = (*transaction.ddl, statement)
            return
        number = self._numbers.get((object_, version))
        if number is None:
            number = self._find_number(owner, name, object_, version)
        if number < 0:
            return
        if code == Operation.INTERNAL:
            tie_rows(transaction.entries, number, row_id)
            return
        kept = classify(code, rollback, status, info, text)
        if kept < 0:
            return
        if kept & UNDO:
            transaction.has_undo, text = True, ""
        transaction.has_marks |= bool(kept & (MISMATCH | UNREADABLE))
        transaction.has_lobs |= code in LOBS or code in LONG_STRINGS
        self._append(
            transaction, Entry(number, text or "", scn, transaction.name, rs_id, kept, row_id)
        )

    def _append(self, transaction: Transaction, entry: Entry) -> None:
        transaction.entries.append(entry)
        transaction.count += 1
        length = len(entry.text) + ROW_BYTES
        transaction.size_bytes += length
        self._size_bytes += length
        if transaction.count > self._rows_max:
            self._refuse_large(transaction)

    def _refuse_large(self, transaction: Transaction) -> None:
        raise TransactionTooLarge(
            f"transaction {transaction.name}, begun at SCN {transaction.start_scn}, has more than "
            f"{self._limits.rows_max} rows",
            hint="Raise transactionRowsMax in [changeExtractor] if it may have so many.",
            xid=transaction.name,
        )

    def _spill_rows(self) -> None:
        """Write transactions to the side file until half of the memory is free.

        Large ones come first, which need few frames; then the committed ones in the order in which
        they are read again, then the open ones.
        """
        committed = self.committed
        while self._first_kept < len(committed) and not committed[self._first_kept].size_bytes:
            self._first_kept += 1
        held = [*committed[self._first_kept :], *self._open.values()]
        large_bytes = self._spill_bytes // LARGE_SHARE
        large = [one for one in held if one.size_bytes > large_bytes]
        large.sort(key=lambda one: one.size_bytes, reverse=True)
        for transaction in (*large, *held):
            if self._size_bytes <= self._spill_bytes // 2:
                return
            if transaction.size_bytes:
                self._size_bytes -= transaction.size_bytes
                transaction.spill(self._spill, count_untied(transaction.entries))

    @property
    def spilled_byte_count(self) -> int:
        """Return the bytes of the side file."""
        return self._spill.size_bytes

    # ------------------------------------------------------------------ the end of the window

    def finish(self) -> None:
        """Check the transactions after the last row.

        Raises:
            RedoBroken: The last statement is not whole.
            ParallelChild: A part of a committed parallel statement has no commit.
            TransactionTooOld: See `Limits`.
        """
        self._joiner.close()
        for transaction in self._open.values():
            if transaction.parent in self._ended and transaction.count:
                raise ParallelChild(
                    f"transaction {transaction.name} is a part of the parallel transaction "
                    f"{transaction.parent.hex().upper()}, which was committed, and has no commit",
                    hint="Report this with the version of the server. To continue, load the tables "
                    "again, and run ALTER SESSION DISABLE PARALLEL DML before such statements.",
                )
            self._check_age(transaction)

    def _check_age(self, transaction: Transaction) -> None:
        age_max_s, newest = self._limits.age_max_s, self._newest
        if not age_max_s or newest is None or not isinstance(transaction.time, datetime):
            return
        if newest - transaction.time > timedelta(seconds=age_max_s):
            raise TransactionTooOld(
                f"transaction {transaction.name} has been open since SCN {transaction.start_scn}, "
                f"{transaction.time}",
                hint="End its session, or raise transactionHoursMax in [changeExtractor]. Until it "
                "ends, the redo since its begin is read again and again.",
                xid=transaction.name,
            )

    def open_starts(self) -> list[int]:
        """Return the SCNs at which the open transactions began."""
        return [one.start_scn for one in self._open.values() if one.start_scn]
