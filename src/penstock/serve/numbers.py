"""LSNs of a change log: one number for each row and each boundary, from the log's own counters.

A row has its gsn, a transaction its trx, and both are given once and kept: so an LSN is computed
from them, nothing has to be stored, and every server, restart and slot finds the same ones. In a
transaction they rise from BEGIN over the rows to COMMIT and its END; the next one begins behind
that. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BEFORE_ALL = 0x1000000
"""The end of what is before all transactions; not 0/0, which is a client's word for `any`."""

_STEPS = 3  # BEGIN, COMMIT and END of each transaction
_ROW = BEFORE_ALL - 2


def end_of(gsn: int, trx: int) -> int:
    """The END of a transaction. gsn: the last number given up to its end, by whichever."""
    return BEFORE_ALL + gsn + _STEPS * trx


def commit_of(gsn: int, trx: int) -> int:
    """Its COMMIT, one lower than its END."""
    return end_of(gsn, trx) - 1


def begin_of(gsn_before: int, trx: int) -> int:
    """Its BEGIN. gsn_before: the last number given before it."""
    return end_of(gsn_before, trx - 1) + 1


def row_of(gsn: int, trx: int) -> int:
    """A row's."""
    return _ROW + gsn + _STEPS * trx


def rows_of(gsns: Any, trxs: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Those of many rows: int64 arrays of equal length."""
    found: np.ndarray[Any, np.dtype[np.uint64]] = (_ROW + gsns + _STEPS * trxs).astype(np.uint64)
    return found
