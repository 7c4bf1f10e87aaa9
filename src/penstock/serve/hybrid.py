"""LSNs of HYBRID_TIME, in the dialect of YugabyteDB: a transaction's is when it was committed.

BEGIN, rows and COMMIT of a transaction share one number, its END is one higher: microseconds since
1970 with 12 bits below them. Commit times of a log may be equal, or fall, and numbers must rise: a
transaction whose time is not behind the one before is two higher than that one. So a number follows
from all transactions before it. What the number was in front of one segment, the anchor, is kept
beside the slots; from there on the log says the rest, the same again at every start.
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
    """before: the COMMIT of the last transaction in front of a segment, or as if of one."""

    segment: int
    before: int


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """Numbers of a segment's transactions. commits: from transaction `first` on."""

    first: int
    before: int
    commits: Ints

    def commit(self, trx: int) -> int:
        """A transaction's; of one in front of the segment: that of the last in front of it."""
        return int(self.commits[trx - self.first]) if trx >= self.first else self.before

    def end(self, trx: int) -> int:
        """Its END."""
        return self.commit(trx) + 1

    def rows(self, trxs: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Of rows of these transactions."""
        found: np.ndarray[Any, np.dtype[np.uint64]] = self.commits[trxs - self.first].astype(
            np.uint64
        )
        return found


def hybrid_time(time_us: int) -> int:
    """Of microseconds since 1970 UTC."""
    return time_us << LOGICAL_BITS


def commits_behind(before: int, times_us: Ints) -> Ints:
    """Numbers of transactions with these commit times, behind one of number `before`. Pure."""
    steps = _STEP * np.arange(len(times_us), dtype=np.int64)
    wanted = (times_us << LOGICAL_BITS) - steps
    found: Ints = np.maximum(np.maximum.accumulate(wanted), before + _STEP) + steps
    return found


class HybridTimes:
    """The numbers of one log. For several threads; blocking."""

    def __init__(self, log: SourceLog, anchor: Callable[[], Anchor | None]) -> None:
        """anchor: the durable one; None where no slot has such numbers."""
        self._log, self._anchor = log, anchor
        self._lock = threading.RLock()
        self._from: Anchor | None = None
        self._before: dict[int, int] = {}
        self._kept: OrderedDict[int, SegmentTimes] = OrderedDict()

    def of(self, segment: Segment, head: Head) -> SegmentTimes:
        """The numbers of a segment, as far as it is read. Raises SegmentGone, SegmentCorrupt."""
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
        """The COMMIT in front of a segment. Raises SegmentGone, SegmentCorrupt."""
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
        """Numbers of another anchor count anew; one that has only moved on says the same."""
        if self._before.get(anchor.segment) != anchor.before:
            self._before.clear()
            self._kept.clear()
        self._before[anchor.segment] = anchor.before
        for number in [one for one in self._before if one < anchor.segment]:
            del self._before[number]
        self._from = anchor

    def end_at(self, number: int, trx: int, head: Head) -> int:
        """The END of a transaction, which a segment has or which is the last in front of it.

        Raises SegmentGone, SegmentCorrupt.
        """
        try:
            with self._log.segment(number, head) as segment:
                return self.of(segment, head).end(trx)
        except SegmentGone:  # one that has not begun
            return self.before(number, head) + 1

    def head(self, head: Head) -> int:
        """The END of the log's last transaction."""
        return self.end_at(head.number, head.end.trx, head)

    def first_anchor(self, head: Head) -> Anchor:
        """An anchor for the first slot with such numbers: where the log is now."""
        time_us = head.end.commit_time_us
        if head.is_open:
            with self._log.segment(head.number, head) as segment:
                time_us = segment.start.commit_time_us
        return Anchor(segment=head.number, before=max(hybrid_time(time_us), _LOWEST))

    def anchor_at(self, number: int, head: Head) -> Anchor:
        """The anchor of a segment, from which segments in front of it are not needed."""
        return Anchor(segment=number, before=self.before(number, head))
