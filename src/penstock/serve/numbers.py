"""LSNs of a change log: one number for each row and each boundary, from the log's own counters.

A row has its gsn, a transaction its trx, and both are assigned once and kept. So an LSN is
computed from them, nothing has to be stored, and every server, restart and slot finds the same
ones. In a transaction they rise from BEGIN over the rows to COMMIT and its END; the next
transaction begins after that. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BEFORE_ALL = 0x1000000
"""END before all transactions; not 0/0, which is a client's word for `any`."""

_STEPS = 3  # BEGIN, COMMIT and END of each transaction
_ROW = BEFORE_ALL - 2


def end_of(gsn: int, trx: int) -> int:
    """Return the END of a transaction; `gsn` is the last number assigned up to its end."""
    return BEFORE_ALL + gsn + _STEPS * trx


def commit_of(gsn: int, trx: int) -> int:
    """Return a transaction's COMMIT, one lower than its END."""
    return end_of(gsn, trx) - 1


def begin_of(gsn_before: int, trx: int) -> int:
    """Return a transaction's BEGIN; `gsn_before` is the last number assigned before it."""
    return end_of(gsn_before, trx - 1) + 1


def row_of(gsn: int, trx: int) -> int:
    """Return the LSN of a row."""
    return _ROW + gsn + _STEPS * trx


def rows_of(gsns: Any, trxs: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the LSNs of many rows, given as int64 arrays of equal length."""
    found: np.ndarray[Any, np.dtype[np.uint64]] = (_ROW + gsns + _STEPS * trxs).astype(np.uint64)
    return found
