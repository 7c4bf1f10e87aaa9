"""What a fold leaves behind, as rows of a merge table: in order of their keys, part by part.

In order of the keys a batch's rows are looked up in the target as they lie there, which halves the
work where changes come in no order. For that the rows that survive must fit into memory together;
where they do not, they come in the order of their last change, frame by frame. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.load.keys import KeyCodes
from penstock.model import LOAD_AFRESH, PenstockError, Relation
from penstock.ports.target import GONE, NEW, UPSERT, Counts, Layout

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ROWS_PER_BATCH = 20_000


class LogInconsistent(PenstockError):
    """Changes of one table contradict each other: the log cannot have come from one history."""

    code = "LD10"
    retry = "never"


def inconsistent(relation: Relation, what: str) -> LogInconsistent:
    """The error for a log that holds this of a table."""
    return LogInconsistent(
        f"the log holds {what} of table {relation.full_name}",
        hint=f"Please report it with the output of `penstock log cat`. {LOAD_AFRESH}",
        table=relation.full_name,
    )


@dataclass(slots=True)
class Net:
    """The verdict per key, in terms of numbers of changes (rows) and codes of keys.

    rows: the last change of each surviving row, ascending; for each codes: of its key, and new:
    whether that was free before. gone: codes to delete. patches: column to (places in rows, changes
    to take the value from). open_places: places in rows with columns left to the target; open_bits:
    which columns, open_origin: the codes of their origin keys.
    """

    rows: Ints
    codes: Ints
    new: Bools
    gone: Ints
    patches: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    open_places: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    open_bits: Bools = field(default_factory=lambda: np.empty((0, 0), np.bool_))
    open_origin: Ints = field(default_factory=lambda: np.empty(0, np.int64))


class Folded:
    """The net result of a fold; `merge_rows` turns it into rows of the merge table.

    changes: how many went in. copies: of a table without a key, the count of each row by code.
    """

    def __init__(
        self,
        relation: Relation,
        layout: Layout,
        keys: KeyCodes,
        net: Net,
        *,
        changes: int,
        copies: Ints | None,
    ) -> None:
        self._relation = relation
        self._layout = layout
        self._keys = keys
        self._net = net
        self._changes = changes
        self._copies = copies

    def counts(self) -> Counts:
        """How many changes went in and what came out."""
        if self._copies is not None:
            return Counts(
                changes=self._changes,
                upserts=int(np.count_nonzero(self._copies > 0)),
                deletes=int(np.count_nonzero(self._copies < 0)),
            )
        return Counts(
            changes=self._changes,
            upserts=len(self._net.rows),
            deletes=len(self._net.gone),
            absent=len(self._net.open_places),
            new=int(np.count_nonzero(self._net.new)),
        )

    def absent_columns(self) -> frozenset[int]:
        """Indexes of the columns that some upsert leaves to the target."""
        if not len(self._net.open_places):
            return frozenset()
        return frozenset(np.flatnonzero(self._net.open_bits.any(axis=0)).tolist())

    def merge_rows(
        self,
        frames: Iterable[pa.RecordBatch],
        *,
        bucket: int = 0,
        buckets: int = 1,
        in_key_order: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of `Layout.schema`: of the result the part `bucket` of so many.

        frames: the same batches, in the same order, that went into `add()`; a table without a
        key does not look at them. in_key_order: all rows of the part may be in memory at once.
        Raises LogInconsistent when the frames are not the same.
        """
        yield from self.deletes(bucket=bucket, buckets=buckets)
        yield from self.upserts(frames, bucket=bucket, buckets=buckets, in_key_order=in_key_order)

    def deletes(self, *, bucket: int = 0, buckets: int = 1) -> Iterator[pa.RecordBatch]:
        """Of `merge_rows` the keys that are gone; all of it where a table has no key."""
        if self._copies is not None:
            yield from self._counted(bucket, buckets)
            return
        gone = self._net.gone
        order = self._keys.order(gone)
        yield from self._deletes(_part(gone if order is None else gone[order], bucket, buckets))

    def upserts(
        self,
        frames: Iterable[pa.RecordBatch],
        *,
        bucket: int = 0,
        buckets: int = 1,
        in_key_order: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Of `merge_rows` the rows behind the deletes."""
        if self._copies is not None:
            return
        order = self._keys.order(self._net.codes) if in_key_order else None
        if order is None:
            yield from self._upserts(frames, bucket, buckets)
        else:
            yield from self._ordered_upserts(frames, _part(order, bucket, buckets))

    def _counted(self, bucket: int, buckets: int) -> Iterator[pa.RecordBatch]:
        assert self._copies is not None
        codes = _part(np.flatnonzero(self._copies), bucket, buckets)
        for part in _parts(codes):
            yield self._layout.batch(self._copies[part], self._keys.values(part))

    def _deletes(self, codes: Ints) -> Iterator[pa.RecordBatch]:
        for part in _parts(codes):
            columns: list[Any] = [None] * len(self._relation.columns)
            for index, values in zip(self._relation.key, self._keys.values(part), strict=True):
                columns[index] = values
            yield self._layout.batch(np.full(len(part), GONE, np.int64), columns)

    def _upserts(
        self, frames: Iterable[pa.RecordBatch], bucket: int, buckets: int
    ) -> Iterator[pa.RecordBatch]:
        """In the order of the last changes: one frame in memory is enough."""
        stash = _Stash(self._net.patches)
        for after, start, places in self._surviving(frames, stash):
            for part in _parts(places[places % buckets == bucket]):
                yield self._batch(after, self._net.rows[part] - start, part, stash)

    def _ordered_upserts(
        self, frames: Iterable[pa.RecordBatch], order: Ints
    ) -> Iterator[pa.RecordBatch]:
        """These places of net.rows, in this order."""
        stash = _Stash(self._net.patches)
        wanted = np.zeros(len(self._net.rows), np.bool_)
        wanted[order] = True
        kept = []
        for after, start, places in self._surviving(frames, stash):
            chosen = places[wanted[places]]
            kept.append(after.take(pa.array(self._net.rows[chosen] - start)))
        if not len(order):
            return
        rows, place_of = pa.concat_arrays(kept), np.cumsum(wanted) - 1
        for part in _parts(order):
            yield self._batch(rows, place_of[part], part, stash)

    def _surviving(
        self, frames: Iterable[pa.RecordBatch], stash: _Stash
    ) -> Iterator[tuple[Any, int, Ints]]:
        """Per frame its after images, the number of its first change, and the places it holds."""
        start = 0
        for frame in frames:
            end = start + frame.num_rows
            after = frame.column("after")
            stash.keep(after, start, end)
            low, high = np.searchsorted(self._net.rows, (start, end))
            yield after, start, np.arange(low, high)
            start = end
        if start != self._changes:
            raise inconsistent(self._relation, "other changes at the second reading")

    def _batch(self, after: Any, local: Ints, places: Ints, stash: _Stash) -> pa.RecordBatch:
        """The rows at these places of net.rows; local: where in after they are."""
        net = self._net
        index = pa.array(local)
        columns = [
            stash.patched(number, after.field(number).take(index), places)
            for number in range(len(self._relation.columns))
        ]
        bitmaps, origin = None, None
        open_at = np.searchsorted(net.open_places, places)
        inside = open_at < len(net.open_places)
        is_open = np.zeros(len(places), np.bool_)
        is_open[inside] = net.open_places[open_at[inside]] == places[inside]
        if is_open.any():
            picked = open_at[is_open]
            packed = np.packbits(net.open_bits[picked], axis=1, bitorder="little")
            found = iter([bytes(row) for row in packed])
            bitmaps = pa.array([next(found) if flag else None for flag in is_open], pa.binary())
            codes = np.full(len(places), -1, np.int64)
            codes[is_open] = net.open_origin[picked]
            origin = self._keys.values(codes)
        kinds = np.where(net.new[places], NEW, UPSERT).astype(np.int64)
        return self._layout.batch(kinds, columns, bitmaps=bitmaps, origin=origin)


class _Stash:
    """Keeps the few rows whose values later changes of the same row did not repeat."""

    def __init__(self, patches: dict[int, tuple[Ints, Ints]]) -> None:
        self._patches = patches
        sources = [rows for _, rows in patches.values()]
        self._wanted = np.unique(np.concatenate(sources)) if sources else np.empty(0, np.int64)
        self._kept: list[Any] = []

    def keep(self, after: Any, start: int, end: int) -> None:
        low, high = np.searchsorted(self._wanted, (start, end))
        if low < high:
            self._kept.append(after.take(pa.array(self._wanted[low:high] - start)))

    def patched(self, index: int, values: Any, places: Ints) -> Any:
        """The column's values with those of the patched places replaced."""
        if index not in self._patches:
            return values
        all_places, sources = self._patches[index]
        at = np.searchsorted(all_places, places)
        inside = at < len(all_places)
        hit = np.zeros(len(places), np.bool_)
        hit[inside] = all_places[at[inside]] == places[inside]
        if not hit.any():
            return values
        kept = pa.concat_arrays([part.field(index) for part in self._kept])
        choice = np.arange(len(places))
        choice[hit] = len(values) + np.searchsorted(self._wanted, sources[at[hit]])
        return pa.concat_arrays([values, kept]).take(pa.array(choice))


def _part(values: Ints, bucket: int, buckets: int) -> Ints:
    """One of so many pieces of about equal length."""
    size = len(values)
    return values[size * bucket // buckets : size * (bucket + 1) // buckets]


def _parts(values: Ints) -> Iterator[Ints]:
    for at in range(0, len(values), ROWS_PER_BATCH):
        yield values[at : at + ROWS_PER_BATCH]
