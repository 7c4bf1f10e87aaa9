"""Hashes of rows: summed by bucket, and merged row by row, without a server.

A row's image is the text of all its compared columns, so that NULL and '' differ. Rows fall into
buckets, which are ranges of their key's hash: the same row falls into the same bucket on both
servers, however they sort text and wherever the row lies. A bucket's checksum is the number of its
rows and two independent 64-bit hashes, each summed: sums see duplicates, which exclusive-or would
cancel.

Rows of buckets that differ are merged as four hashes each: numbers only, whole arrays at a time.
If everything differs, every row of both sides passes here, so no work is done row by row. Not
here: the SQL (`ports.verify.Dialect`), and the readers of the sides (`compare.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.ports.verify import Hashes

BUCKETS_MIN = 64
BUCKETS_MAX = 65_536
ROWS_PER_BUCKET = 128  # few enough to ship when a bucket differs, many enough to cost nothing

Sums = dict[int, tuple[int, int, int]]
"""Map of bucket number to (rows, sum of hash 1, sum of hash 2)."""


def bucket_count(row_estimate: int) -> int:
    """Return the number of buckets of a table with so many rows: a power of two."""
    wanted = max(BUCKETS_MIN, min(BUCKETS_MAX, row_estimate // ROWS_PER_BUCKET))
    return 1 << (wanted - 1).bit_length()


def add_sums(total: Sums, more: Sums) -> None:
    """Add a part's checksums to its table's."""
    for bucket, (rows, one, two) in more.items():
        had = total.get(bucket, (0, 0, 0))
        total[bucket] = (had[0] + rows, had[1] + one, had[2] + two)


def differing_buckets(source: Sums, target: Sums) -> list[int]:
    """Return the buckets whose checksums are not equal, in order."""
    return sorted(b for b in source.keys() | target.keys() if source.get(b) != target.get(b))


Kind = Literal["missing", "surplus", "different"]
KEYS_MAX = 10_000
_EMPTY: Hashes = np.empty((0, 4), dtype=np.int64)


@dataclass(slots=True)
class Tally:
    """Counts of a merge. named: the first differences, as `(kind, key hash 1, key hash 2)`.

    keys: the first hashes of all keys that differ; None if there are more than KEYS_MAX.
    """

    named_max: int
    keys: tuple[int, ...] | None = ()
    missing: int = 0
    surplus: int = 0
    different: int = 0
    named: list[tuple[Kind, int, int]] | None = None

    def add(self, kind: Kind, keys: Hashes, counts: Hashes) -> None:
        """Count differences of one kind. keys: shape (n, 2); counts: number of each, n."""
        total = int(counts.sum())
        if self.keys is not None:
            self.keys = (
                (*self.keys, *keys[:, 0].tolist())
                if len(self.keys) + len(keys) <= KEYS_MAX
                else None
            )
        setattr(self, kind, getattr(self, kind) + total)
        self.named = self.named if self.named is not None else []
        for (one, two), count in zip(keys.tolist(), counts.tolist(), strict=True):
            room = self.named_max - len(self.named)
            if room <= 0:
                return
            self.named += [(kind, one, two)] * min(count, room)


def merge(source: Iterator[Hashes], target: Iterator[Hashes], named_max: int) -> Tally:
    """Merge two streams ordered by key hash 1.

    Rows of one key are matched as multisets: equal ones cancel out, then one of each side makes a
    `different`, and the remaining ones are missing or surplus.
    """
    tally = Tally(named_max)
    sides = (_Side(source), _Side(target))
    while sides[0].fill() | sides[1].fill():  # not `or`: both have to be filled
        ends = [side.last for side in sides if not side.ended]
        # A key may continue in the next array, so rows of the smallest last key have to wait.
        limit = min(ends) if ends else None
        pieces = [side.take_below(limit) for side in sides]
        if len(pieces[0]) or len(pieces[1]):
            _count(pieces[0], pieces[1], tally)
        else:
            for side in sides:
                if not side.ended and side.last == limit:
                    side.extend()
    return tally


class _Side:
    """Stream with the rows that were read and not yet taken."""

    def __init__(self, stream: Iterator[Hashes]) -> None:
        self._stream = stream
        self._rows = _EMPTY
        self.ended = False

    def fill(self) -> bool:
        """Read rows; return False if there are none any more."""
        while not len(self._rows) and not self.ended:
            self.extend()
        return bool(len(self._rows))

    def extend(self) -> None:
        """Read another array after the present rows."""
        more = next(self._stream, None)
        if more is None:
            self.ended = True
        elif len(more):
            self._rows = np.concatenate([self._rows, more]) if len(self._rows) else more

    @property
    def last(self) -> int:
        """Greatest key hash 1 that was read."""
        return int(self._rows[-1, 0])

    def take_below(self, limit: int | None) -> Hashes:
        """Return the rows whose key hash 1 is smaller than limit; all without one."""
        count = (
            len(self._rows)
            if limit is None
            else int(np.searchsorted(self._rows[:, 0], limit, side="left"))
        )
        taken, self._rows = self._rows[:count], self._rows[count:]
        return taken


def _count(source: Hashes, target: Hashes, tally: Tally) -> None:
    rows = np.concatenate([source, target])
    signs = np.ones(len(rows), dtype=np.int64)
    signs[len(source) :] = -1
    order = np.lexsort((rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0]))
    rows, signs = rows[order], signs[order]
    # Equal rows of both sides cancel out; the remaining ones are on one side only.
    net = np.add.reduceat(signs, starts := _starts(rows))
    keys = rows[starts][:, :2]
    left = net != 0
    if not left.any():
        return
    net, keys = net[left], keys[left]
    starts = _starts(keys)
    only_source = np.add.reduceat(np.maximum(net, 0), starts)
    only_target = np.add.reduceat(np.maximum(-net, 0), starts)
    keys = keys[starts]
    both = np.minimum(only_source, only_target)
    counts: tuple[tuple[Kind, Hashes], ...] = (
        ("different", both),
        ("missing", only_source - both),
        ("surplus", only_target - both),
    )
    for kind, count in counts:
        some = count > 0
        tally.add(kind, keys[some], count[some])


def _starts(rows: Hashes) -> npt.NDArray[np.intp]:
    """Return where each new value begins in sorted rows."""
    changed = np.any(rows[1:] != rows[:-1], axis=1)
    return np.concatenate([[0], np.flatnonzero(changed) + 1]).astype(np.intp)
