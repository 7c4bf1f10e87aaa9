"""Transactions of a segment: where and when each was committed. Rows name theirs by number.

Numbers are dense, and a segment holds the whole of every transaction that it has rows of, so the
n-th transaction is at the n-th place. A transactions frame is read when it is first needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.ckt import FrameEntry, FrameInvalid, FrameKind, TransactionsFlag
from penstock.codec.columns import COMMIT_TIME, POSITION
from penstock.model import FlushPoint
from penstock.model.position import POSITION_BYTES, to_ordinal

DATED_FIELDS = (pa.field("position", POSITION), pa.field("commit_time", COMMIT_TIME))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction.

    Attributes:
        source_id: the source's own id.
        origin: the log that it is from, in a merged log.
    """

    position: int
    end_position: int
    commit_time_us: int
    source_id: int | str
    origin: int


def check_announced(entries: Iterable[FrameEntry], start: FlushPoint, end: FlushPoint) -> None:
    """Raise FrameInvalid unless every transaction between these points is there once, in order.

    All rows must belong to one of these, too: for another transaction the commit position would be
    unknown.
    """
    announced = start.trx
    for entry in entries:
        if entry.kind == FrameKind.TRANSACTIONS:
            if entry.trx_first != announced + 1:
                raise _not_announced(entry.offset_bytes, announced + 1, entry.trx_first)
            announced = entry.trx_last
        elif entry.kind == FrameKind.ROWS and not (
            start.trx < entry.trx_first <= entry.trx_last <= end.trx
        ):
            raise _not_announced(
                entry.offset_bytes, f"{start.trx + 1} to {end.trx}", entry.trx_last
            )
    if announced != end.trx:
        raise _not_announced(0, end.trx, announced)


def _not_announced(offset_bytes: int, expected: int | str, actual: int) -> FrameInvalid:
    return FrameInvalid(
        f"transactions are missing at byte {offset_bytes}: expected {expected}, got {actual}",
        offset_bytes=offset_bytes,
        expected=expected,
        actual=actual,
    )


def halves(positions: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return positions as two numbers each, the high one first, which compare as the bytes do."""
    data = positions.buffers()[1]
    start = positions.offset * POSITION_BYTES
    both = np.frombuffer(data, ">u8", 2 * len(positions), start).astype(np.uint64)
    return both[::2], both[1::2]


def never_fall(positions: pa.Array) -> bool:
    """Return whether no position is lower than the previous one."""
    high, low = halves(positions)
    rises = high[1:] > high[:-1]
    return bool((rises | ((high[1:] == high[:-1]) & (low[1:] >= low[:-1]))).all())


class Transactions:
    """Transactions of one segment, by number. Several threads may use it."""

    def __init__(
        self,
        entries: Iterable[FrameEntry],
        start: FlushPoint,
        end: FlushPoint,
        read: Callable[[FrameEntry], pa.RecordBatch],
    ) -> None:
        """Index the transactions frames.

        Args:
            entries: the segment's frames, which `check_announced` has checked.
            start: where the segment begins.
            end: where it ends.
            read: reads a frame; its errors are raised.
        """
        self._frames = [entry for entry in entries if entry.kind == FrameKind.TRANSACTIONS]
        self._firsts = [entry.trx_first for entry in self._frames]
        self._read = read
        self._batches: dict[int, pa.RecordBatch] = {}
        self.first = start.trx + 1
        self.last = end.trx

    @classmethod
    def of_frames(
        cls, entries: Sequence[FrameEntry], read: Callable[[FrameEntry], pa.RecordBatch]
    ) -> Self:
        """Return the transactions of some frames, at least one, which follow one another."""
        start = FlushPoint(position=0, trx=entries[0].trx_first - 1)
        end = FlushPoint(position=0, trx=entries[-1].trx_last)
        return cls(entries, start, end, read)

    def find(self, number: int) -> Transaction | None:
        """Return the transaction of this number; None if the segment does not have it."""
        if not self.first <= number <= self.last:
            return None
        frame = bisect_right(self._firsts, number) - 1
        at = number - self._firsts[frame]
        position, end, time, source_id, origin = (
            column[at] for column in self._batch(frame).columns
        )
        return Transaction(
            position=to_ordinal(position.as_py()),
            end_position=to_ordinal(end.as_py()),
            commit_time_us=time.value,
            source_id=source_id.as_py(),
            origin=origin.as_py(),
        )

    def between(self, low: int, high: int) -> pa.RecordBatch:
        """Return transactions low to high, which the segment has, as in TRANSACTIONS_SCHEMA."""
        frames = self._between(low, high)
        batch = pa.concat_batches([self._batch(frame) for frame in frames])
        return batch.slice(low - self._firsts[frames.start], high - low + 1)

    def load(self, low: int, high: int) -> None:
        """Read the transactions of these numbers; later calls find them without the file."""
        for frame in self._between(low, high):
            self._batch(frame)

    def list_commits(self, low: int, high: int) -> tuple[npt.NDArray[np.int64], list[int | str]]:
        """Return the commit times of the transactions of these numbers, and their ids.

        Times are microseconds since 1970 UTC.
        """
        if high < low:
            return np.empty(0, np.int64), []
        if low < self.first or high > self.last:
            raise _not_announced(0, f"{self.first} to {self.last}", high)
        frames = self._between(low, high)
        chosen = [self._batch(number) for number in frames]
        times = np.concatenate([np.asarray(one.column(2).cast(pa.int64())) for one in chosen])
        ids = [each for one in chosen for each in one.column(3).to_pylist()]
        at = low - self._firsts[frames.start]
        return times[at : at + high - low + 1], ids[at : at + high - low + 1]

    def is_marked(self, number: int) -> bool:
        """Return whether BEGIN and COMMIT of a transaction are wanted when the log is printed."""
        if not self.first <= number <= self.last:
            return False
        frame = self._frames[bisect_right(self._firsts, number) - 1]
        return bool(frame.flags & TransactionsFlag.COMMITS)

    def first_from(self, position: int) -> int:
        """Return the number of the first transaction at or after this position; last + 1 if none.

        Positions rise with the numbers, so all earlier ones have lower positions.
        """
        if not self._frames or self._position(0, 0) >= position:
            return self.first  # nearly always, and only one frame is read
        frame = bisect_left(range(len(self._frames)), position, key=lambda n: self._position(n, -1))
        if frame == len(self._frames):
            return self.last + 1
        count = self._frames[frame].row_count
        at = bisect_left(range(count), position, key=lambda n: self._position(frame, n))
        return self._firsts[frame] + at

    def add_commit(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the segment with two more columns: `position` and `commit_time`.

        Raises FrameInvalid for a row of a transaction that the segment does not have.
        """
        numbers = rows.column("trx")
        bounds = pc.min_max(numbers).as_py()
        low, high = bounds["min"] or self.first, bounds["max"] or self.first - 1
        if low < self.first or high > self.last:
            raise _not_announced(0, f"{self.first} to {self.last}", high)
        batches = self._between(low, high)
        schema = rows.schema
        for field in DATED_FIELDS:
            schema = schema.append(field)
        if not rows.num_rows:
            empty = [pa.nulls(0, field.type) for field in DATED_FIELDS]
            return pa.RecordBatch.from_arrays([*rows.columns, *empty], schema=schema)
        places = pc.subtract(numbers, pa.scalar(self._firsts[batches.start], pa.int64()))
        chosen = [self._batch(number) for number in batches]
        dates = [
            pa.concat_arrays([batch.column(at) for batch in chosen]).take(places) for at in (0, 2)
        ]
        return pa.RecordBatch.from_arrays([*rows.columns, *dates], schema=schema)

    def _between(self, low: int, high: int) -> range:
        """Return the frames that hold these numbers."""
        return range(bisect_right(self._firsts, low) - 1, bisect_right(self._firsts, high))

    def _position(self, frame: int, at: int) -> int:
        column = self._batch(frame).column(0)
        return to_ordinal(column[at % len(column)].as_py())

    def _batch(self, frame: int) -> pa.RecordBatch:
        found = self._batches.get(frame)
        if found is None:
            found = self._batches[frame] = self._read(self._frames[frame])
        return found
