"""Merge of the changes of several capture instances into the order of the source. Pure.

Each instance is a `Feed` of chunks in order. `Merge` takes from all feeds the changes that are
certainly the next ones, and orders them by (transaction, command, seqval, operation): the order of
the reference's section 4 and of S1, S2. One sort of whole columns does the work of a heap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.codec.columns import batch_schema
from penstock.engines.sqlserver.source.change_rows import HALVES, Chunk, Ints, Keys
from penstock.model import Rows


def whole_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a change table, cut so that none splits a change.

    The last row of a batch is given with the next one if its change may continue there.
    """
    kept: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch if kept is None else pa.concat_batches([kept, batch])
        kept = None
        if rows.column(3)[rows.num_rows - 1].as_py() in HALVES:
            kept = rows.slice(rows.num_rows - 1)
            rows = rows.slice(0, rows.num_rows - 1)
        if rows.num_rows:
            yield rows
    if kept is not None:
        yield kept


@dataclass(slots=True)
class _Part:
    """Rest of a chunk. start: number of its changes that were taken."""

    chunk: Chunk
    start: int = 0

    @property
    def keys(self) -> Keys:
        """Order of the changes that are left."""
        return self.chunk.keys.take(slice(self.start, None))

    @property
    def count(self) -> int:
        """Number of changes that are left."""
        return len(self.chunk.keys) - self.start


class Feed:
    """Changes of one instance. chunks: in order, none of them empty."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._parts: deque[_Part] = deque()
        self.is_ended = False

    def fill(self) -> None:
        """Have at least one change, unless all were taken."""
        while not self._parts and not self.is_ended:
            chunk = next(self._chunks, None)
            if chunk is None:
                self.is_ended = True
            elif len(chunk.keys):
                self._parts.append(_Part(chunk))

    @property
    def is_empty(self) -> bool:
        """Return whether no change is at hand."""
        return not self._parts

    def last(self) -> tuple[int, int, int, int, int]:
        """Return the order of the last change at hand."""
        return self._parts[-1].chunk.keys.of(-1)

    def first_transaction(self) -> int:
        """Return the transaction of the first change at hand."""
        part = self._parts[0]
        return int(part.chunk.keys.transactions[part.start])

    def take_through(
        self, bound: tuple[int, int, int, int, int]
    ) -> Iterator[tuple[Chunk, int, int]]:
        """Take the changes at hand that are not after a bound: pieces of chunks."""
        while self._parts:
            part = self._parts[0]
            count = part.keys.count_through(bound)
            if count:
                yield part.chunk, part.start, count
            part.start += count
            if part.count:
                return
            self._parts.popleft()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Changes that follow each other, in pieces by relation.

    Attributes:
        pieces: A chunk, the first of its changes and their number.
        numbers: For each piece the row numbers of its changes.
        transactions: For each piece the transactions' indexes.
        last_number: The last row number.
        indexes: Indexes of all transactions that have a change here, rising.
        is_last_ended: Whether the last of them has no further change.
        is_end: Whether nothing follows.
    """

    pieces: tuple[tuple[Chunk, int, int], ...]
    numbers: tuple[Ints, ...]
    transactions: tuple[Ints, ...]
    last_number: int
    indexes: Ints
    is_last_ended: bool
    is_end: bool

    def rows(self, log_number: int) -> tuple[Rows, ...]:
        """Return the rows for the log. log_number: the log's number of the first transaction."""
        found = []
        for (chunk, start, count), numbers, indexes in zip(
            self.pieces, self.numbers, self.transactions, strict=True
        ):
            places = np.searchsorted(self.indexes, indexes)
            op, absent, after, before = (one.slice(start, count) for one in chunk.columns)
            relation = chunk.layout.relation
            batch = pa.RecordBatch.from_arrays(
                [pa.array(numbers), pa.array(log_number + places), op, absent, after, before],
                schema=batch_schema(relation),
            )
            found.append(Rows(relation=relation, batch=batch))
        return tuple(found)


class Merge:
    """Merge of feeds. number: the last row number given so far."""

    def __init__(self, feeds: list[Feed], *, number: int) -> None:
        self._feeds = feeds
        self._number = number

    def windows(self) -> Iterator[Window]:
        """Yield the changes of all feeds in order; nothing if there are none."""
        while True:
            for feed in self._feeds:
                feed.fill()
            open_feeds = [feed for feed in self._feeds if not feed.is_empty]
            if not open_feeds:
                return
            bound = min(feed.last() for feed in open_feeds)
            yield self._window([one for feed in open_feeds for one in feed.take_through(bound)])

    def _window(self, pieces: list[tuple[Chunk, int, int]]) -> Window:
        keys = [chunk.keys.take(slice(start, start + count)) for chunk, start, count in pieces]
        steps = np.concatenate(
            [chunk.steps[start : start + count] for chunk, start, count in pieces]
        )
        numbers = np.empty(len(steps), np.int64)
        if len(pieces) == 1:
            numbers[:] = self._number + np.cumsum(steps)
        else:
            order = order_of(keys)
            numbers[order] = self._number + np.cumsum(steps[order])
        self._number += int(steps.sum())
        cuts = np.cumsum([len(one) for one in keys])[:-1]
        indexes = np.unique(np.concatenate([one.transactions for one in keys]))
        for feed in self._feeds:
            feed.fill()
        following = [feed.first_transaction() for feed in self._feeds if not feed.is_empty]
        return Window(
            pieces=tuple(pieces),
            numbers=tuple(np.split(numbers, cuts)),
            transactions=tuple(one.transactions for one in keys),
            last_number=self._number,
            indexes=indexes,
            is_last_ended=not following or min(following) > int(indexes[-1]),
            is_end=not following,
        )


def order_of(keys: list[Keys]) -> Ints:
    """Return the order of changes of several pieces, which are concatenated."""
    found: Ints = np.lexsort(
        (
            np.concatenate([one.operations for one in keys]),
            np.concatenate([one.low for one in keys]),
            np.concatenate([one.high for one in keys]),
            np.concatenate([one.commands for one in keys]),
            np.concatenate([one.transactions for one in keys]),
        )
    )
    return found
