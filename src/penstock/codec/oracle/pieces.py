"""Join the pieces of long statements of LogMiner.

SQL_REDO has at most 4,000 bytes: a longer statement comes in several rows that follow each other,
all but the last with CSF 1. The cut may lie anywhere, also between two quotes that mean one or in
the middle of a byte's two hexadecimal digits, so nothing is read before the last piece. SCN, XID,
RS_ID and the row id are those of the first row. Pure.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.codec.oracle.redo_outcome import (
    STATEMENT_BYTES_MAX,
    Reason,
    RedoRow,
    redo_error,
)


class PieceJoiner:
    """Joiner of rows in the order in which LogMiner returns them.

    Attributes:
        first: first piece of the statement that is not whole yet; None between statements.
    """

    def __init__(self) -> None:
        self.first: RedoRow | None = None
        self._operation = 0
        self._texts: list[str] = []
        self._size = 0

    def add(self, row: RedoRow, *, operation: int, is_continued: bool) -> RedoRow | None:
        """Return the row with its whole statement; None if more pieces follow.

        Args:
            row: next row; its text is a piece of the statement, empty for NULL.
            operation: OPERATION_CODE.
            is_continued: whether CSF is 1.

        Raises:
            RedoBroken: The row is not the next piece of the previous one, or the statement has more
                than 1 GiB.
        """
        first = self.first
        if first is None:
            if not is_continued:
                return row
            self.first, self._operation = row, operation
            self._texts, self._size = [row.text], len(row.text)
            return None
        is_next = (row.table, row.scn, row.xid) == (first.table, first.scn, first.xid)
        if not is_next or operation != self._operation:
            raise redo_error(Reason.PIECES, self._size, first)
        self._texts.append(row.text)
        self._size += len(row.text)
        if self._size > STATEMENT_BYTES_MAX:
            raise redo_error(Reason.TOO_LONG, self._size, first)
        if is_continued:
            return None
        whole = replace(first, text="".join(self._texts))
        self.forget()
        return whole

    def close(self) -> None:
        """Check that no statement is unfinished, at the end of a window of the log.

        Raises RedoBroken.
        """
        if self.first is not None:
            raise redo_error(Reason.PIECES, self._size, self.first)

    def forget(self) -> None:
        """Forget the pieces so far, before rows are read again."""
        self.first = None
        self._texts, self._size = [], 0
