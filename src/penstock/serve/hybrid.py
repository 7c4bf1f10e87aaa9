"""LSNs of HYBRID_TIME, in the dialect of YugabyteDB: commit times of transactions.

BEGIN, rows and COMMIT of a transaction share one number, its END is one higher: microseconds since
1970 with 12 bits below them. Commit times of a log may be equal, or fall, and numbers must rise: a
transaction whose time is not after the previous one gets the previous number plus two. So a number
follows from all earlier transactions. The number before one segment, the anchor, is kept beside
the slots; from there the log gives the rest, the same at every start.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.log.segment import Segment
from penstock.serve.source_log import Head, SegmentGone, SourceLog

LOGICAL_BITS = 12  # of a hybrid time, below its microseconds
SEQUENCE, HYBRID_TIME = "SEQUENCE", "HYBRID_TIME"
_STEP = 2  # a COMMIT and its END
_LOWEST = 1  # 0/0 is a client's word for `any`
_SEGMENTS_KEPT = 8
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Start of the numbers.

    Attributes:
        before: the COMMIT of the last transaction before the segment, real or assumed.
    """

    segment: int
    before: int


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """Numbers of a segment's transactions.

    Attributes:
        commits: from transaction `first` on.
    """

    first: int
    before: int
    commits: Ints

    def commit(self, trx: int) -> int:
        """Return a transaction's COMMIT; for one before the segment, the COMMIT of the last
        transaction before it.
        """
        return int(self.commits[trx - self.first]) if trx >= self.first else self.before

    def end(self, trx: int) -> int:
        """Return a transaction's END."""
        return self.commit(trx) + 1

    def rows(self, trxs: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return the numbers of rows of these transactions."""
        found: np.ndarray[Any, np.dtype[np.uint64]] = self.commits[trxs - self.first].astype(
            np.uint64
        )
        return found


def hybrid_time(time_us: int) -> int:
    """Return the hybrid time of microseconds since 1970 UTC."""
    return time_us << LOGICAL_BITS


def commits_behind(before: int, times_us: Ints) -> Ints:
    """Return the numbers of transactions with these commit times, after number `before`. Pure."""
    steps = _STEP * np.arange(len(times_us), dtype=np.int64)
    wanted = (times_us << LOGICAL_BITS) - steps
    found: Ints = np.maximum(np.maximum.accumulate(wanted), before + _STEP) + steps
    return found


class HybridTimes:
    """Numbers of one log. Used by several threads; blocking."""

    def __init__(self, log: SourceLog, anchor: Callable[[], Anchor | None]) -> None:
        """Set the log; `anchor` returns the durable anchor, None without slots of such numbers."""
        self._log, self._anchor = log, anchor
        self._lock = threading.RLock()
        self._from: Anchor | None = None
        self._before: dict[int, int] = {}
        self._kept: OrderedDict[int, SegmentTimes] = OrderedDict()

    def of(self, segment: Segment, head: Head) -> SegmentTimes:
        """Return the numbers of a segment, as far as it is read. Raises SegmentGone,
        SegmentCorrupt.
        """
        with self._lock:
            before = self.before(segment.number, head)
            known = self._kept.get(segment.number)
            if known is None:
                known = SegmentTimes(segment.start.trx + 1, before, np.empty(0, np.int64))
            low, high = known.first + len(known.commits), segment.end.trx
            if high >= low:
                column = segment.transactions.between(low, high).column("commit_time")
                times = np.asarray(column.cast(pa.int64()))
                more = commits_behind(known.commit(low - 1), times)
                known = SegmentTimes(known.first, before, np.concatenate([known.commits, more]))
            self._kept[segment.number] = known
            self._kept.move_to_end(segment.number)
            if len(self._kept) > _SEGMENTS_KEPT:
                self._kept.popitem(last=False)
            return known

    def before(self, number: int, head: Head) -> int:
        """Return the COMMIT before a segment. Raises SegmentGone, SegmentCorrupt."""
        with self._lock:
            anchor = self._anchor()
            assert anchor is not None, "only slots with such numbers ask"
            if anchor != self._from:
                self._begin(anchor)
            last = max(known for known in self._before if known <= number)
            for between in range(last, number):
                with self._log.segment(between, head) as segment:
                    found = self.of(segment, head)
                    self._before[between + 1] = found.commit(segment.end.trx)
            return self._before[number]

    def _begin(self, anchor: Anchor) -> None:
        """Start with an anchor. Known numbers are kept if the anchor only moved along them."""
        if self._before.get(anchor.segment) != anchor.before:
            self._before.clear()
            self._kept.clear()
        self._before[anchor.segment] = anchor.before
        for number in [one for one in self._before if one < anchor.segment]:
            del self._before[number]
        self._from = anchor

    def end_at(self, number: int, trx: int, head: Head) -> int:
        """Return the END of a transaction in a segment; if it has none there, of the last
        transaction before it.

        Raises SegmentGone, SegmentCorrupt.
        """
        try:
            with self._log.segment(number, head) as segment:
                return self.of(segment, head).end(trx)
        except SegmentGone:  # the segment has not begun
            return self.before(number, head) + 1

    def head(self, head: Head) -> int:
        """Return the END of the log's last transaction."""
        return self.end_at(head.number, head.end.trx, head)

    def first_anchor(self, head: Head) -> Anchor:
        """Return an anchor at the log's end, for the first slot with such numbers."""
        time_us = head.end.commit_time_us
        if head.is_open:
            with self._log.segment(head.number, head) as segment:
                time_us = segment.start.commit_time_us
        return Anchor(segment=head.number, before=max(hybrid_time(time_us), _LOWEST))

    def anchor_at(self, number: int, head: Head) -> Anchor:
        """Return the anchor of a segment; earlier segments are not needed from there."""
        return Anchor(segment=number, before=self.before(number, head))
