"""Rows of a transaction that wait for its commit: which are kept, and what they are. Pure."""

from __future__ import annotations

from msgspec import structs

from penstock.codec.oracle.mined_rows import Operation, unreadable_reason
from penstock.codec.oracle.redo_outcome import Reason
from penstock.engines.oracle.source.entries import (
    MISMATCH,
    REASON_BITS,
    UNDO,
    UNREADABLE,
    Entry,
)

PLACEHOLDER = "A" * 18  # ROW_ID of rows of large objects
TEMPORARY = "/* No SQL_REDO"
# Plain numbers: millions of rows are compared with them.
CHANGES = frozenset(map(int, (Operation.INSERT, Operation.DELETE, Operation.UPDATE)))
LOBS = frozenset(
    (
        Operation.SEL_LOB_LOCATOR,
        Operation.LOB_WRITE,
        Operation.LOB_TRIM,
        Operation.LOB_ERASE,
        Operation.LOB_ERASE_OBSERVED,
    )
)
LONG_STRINGS = frozenset(
    (Operation.LONG_STRING_BEGIN, Operation.LONG_STRING_WRITE, Operation.LONG_STRING_END)
)
_UNSUPPORTED = frozenset(
    (Operation.UNSUPPORTED, Operation.XML_BEGIN, Operation.XML_WRITE, Operation.XML_END)
)


def classify(code: int, rollback: int, status: int, info: str | None, text: str | None) -> int:
    """Return Entry.code of a row; -1 if it is not kept: a lock, a marker, a temporary table."""
    if rollback:
        return code | UNDO if code in CHANGES else -1
    if code in LOBS or code in LONG_STRINGS:
        return code
    if code in _UNSUPPORTED:
        return code | UNREADABLE | Reason.UNSUPPORTED << REASON_BITS
    if code not in CHANGES or not text or text.startswith(TEMPORARY):
        return -1
    reason = unreadable_reason(status=status, info=info)
    if reason is Reason.DICTIONARY:
        return code | MISMATCH
    return code if reason is None else code | UNREADABLE | reason << REASON_BITS


def tie_rows(entries: list[Entry], number: int, row_id: str) -> None:
    """Give the rows of large objects before an INTERNAL row its row id (reference, 1a O2)."""
    for at in range(len(entries) - 1, -1, -1):
        one = entries[at]
        if one.row_id != PLACEHOLDER:
            return
        if one.table == number:
            entries[at] = structs.replace(one, row_id=row_id)


def count_untied(entries: list[Entry]) -> int:
    """Return how many of the last rows wait for the row that has their row id."""
    count = 0
    while count < len(entries) and entries[-1 - count].row_id == PLACEHOLDER:
        count += 1
    return count
