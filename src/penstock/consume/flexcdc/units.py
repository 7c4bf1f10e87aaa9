"""Units of work of a segment's transactions: their numbers and commit times."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.consume.flexcdc.state import UnitOfWork
from penstock.log.segment import Segment
from penstock.model import MarkerKind

_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - a DATETIME column has no zone
TIMES_MAX = 10_000  # of one lookup


class Units:
    """Numbers of transactions: they continue after the state's, without our own transactions.

    A transaction has the same number however often it is read, until its number is committed.
    """

    def __init__(self, segment: Segment, trx: int, last: UnitOfWork) -> None:
        """Find our own transactions in the segment.

        Args:
            segment: the segment.
            trx: the last transaction that is in the destination.
            last: its unit, the newest.
        """
        self._segment = segment
        self._trx = trx
        self._last = last
        self._ours = np.array(
            sorted(
                {m.trx for m in segment.markers() if m.kind is MarkerKind.HEARTBEAT and m.trx > trx}
            ),
            np.int64,
        )

    def of(self, transactions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the unit of each of these transactions."""
        ours = np.searchsorted(self._ours, transactions, side="right")
        numbers: npt.NDArray[np.int64] = self._last.uow_id + transactions - self._trx - ours
        return numbers

    def number(self, trx: int) -> int:
        """Return the unit of one transaction."""
        return int(self.of(np.array([trx], np.int64))[0])

    def is_ours(self, trx: int) -> bool:
        """Return whether a transaction is a heartbeat, which has no unit."""
        at = int(np.searchsorted(self._ours, trx))
        return at < len(self._ours) and int(self._ours[at]) == trx

    def between(
        self, after: int, through: int, ends: dict[int, int], last: int
    ) -> list[UnitOfWork]:
        """Return the units of transactions after `after`, up to `through`.

        Args:
            after: the transaction before the first.
            through: the last transaction.
            ends: by transaction the last number of its row images, if it has any.
            last: the last number before them.
        """
        found = []
        for trx, time_us in self._times(after, through):
            last = ends.get(trx, last)
            if not self.is_ours(trx):
                found.append(
                    UnitOfWork(
                        uow_id=self.number(trx),
                        commit_time=_EPOCH + datetime.timedelta(seconds=time_us // 1_000_000),
                        gsn_hwm=last,
                    )
                )
        return found

    def _times(self, after: int, through: int) -> Iterator[tuple[int, int]]:
        for start in range(after + 1, through + 1, TIMES_MAX):
            numbers = range(start, min(start + TIMES_MAX, through + 1))
            batch = pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], names=["trx"])
            times: Any = self._segment.add_commit(batch).column("commit_time").cast(pa.int64())
            yield from zip(numbers, times.to_pylist(), strict=True)
