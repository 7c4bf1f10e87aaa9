"""Result of a fold as rows of a merge table: in the order of their keys, part by part.

In key order, rows are looked up in the target in the order of its index, which halves the work if
changes come in random order. For that all frames must fit into memory together, twice. If they do
not, rows come in the order of their last change, frame by frame. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.fold import Ints, KeyCodes, Net, inconsistent
from penstock.ports.target import GONE, NEW, UPSERT, Counts, Layout, NetRows

ROWS_PER_BATCH = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedRows(NetRows):
    """Net rows of folded frames; see `NetRows`.

    Attributes:
        frames: the batches that were folded, in the same order; a table without a key does not
            read them.
        in_key_order: all frames and a copy may be in memory at once.
    """

    net: Net
    layout: Layout
    frames: Iterable[pa.RecordBatch]
    part: int = 0
    in_key_order: bool = False
    any_unsent: bool = False

    @property
    def absent_columns(self) -> frozenset[int]:
        """Indexes of the columns that the target fills in at least one upsert."""
        if not len(self.net.open_places):
            return frozenset()
        return frozenset(np.flatnonzero(self.net.open_bits.any(axis=0)).tolist())

    @property
    def counts(self) -> Counts:
        return self.net.counts

    def deletes(self) -> Iterator[pa.RecordBatch]:
        if self.net.copies is not None:
            yield from self._count_rows(self.net.copies)
            return
        gone = self.net.gone
        order = _order(self.net.keys, gone)
        yield from self._deletes(gone if order is None else gone[order])

    def upserts(self) -> Iterator[pa.RecordBatch]:
        """Yield upserts; see `NetRows`. Raises LogInconsistent if the frames differ from the
        folded ones.
        """
        if self.net.copies is not None:
            return
        order = _order(self.net.keys, self.net.codes) if self.in_key_order else None
        if order is None:
            yield from self._upserts()
        else:
            yield from self._ordered_upserts(order)

    def _count_rows(self, copies: Ints) -> Iterator[pa.RecordBatch]:
        for codes in _pieces(np.flatnonzero(copies)):
            yield self.layout.batch(copies[codes], key_values(self.net.keys, codes))

    def _deletes(self, gone: Ints) -> Iterator[pa.RecordBatch]:
        relation = self.net.relation
        for codes in _pieces(gone):
            columns: list[Any] = [None] * len(relation.columns)
            for index, values in zip(relation.key, key_values(self.net.keys, codes), strict=True):
                columns[index] = values
            yield self.layout.batch(np.full(len(codes), GONE, np.int64), columns)

    def _upserts(self) -> Iterator[pa.RecordBatch]:
        """Yield rows in the order of their last changes: one frame in memory is enough."""
        stash = _Stash(self.net.patches)
        for after, start, places in self._surviving(stash):
            for some in _pieces(places):
                yield self._batch(after, self.net.rows[some] - start, some, stash)

    def _ordered_upserts(self, order: Ints) -> Iterator[pa.RecordBatch]:
        """Yield the rows at these places of net.rows, in this order."""
        stash = _Stash(self.net.patches)
        every = [after for after, _, _ in self._surviving(stash)]
        if not len(order):
            return
        # All rows are joined: to take only the surviving ones from each frame costs more.
        joined = pa.concat_arrays(every)
        for some in _pieces(order):
            yield self._batch(joined, self.net.rows[some], some, stash)

    def _surviving(self, stash: _Stash) -> Iterator[tuple[Any, int, Ints]]:
        """Yield per frame its after images, the number of its first change, and its places."""
        start = 0
        for frame in self.frames:
            end = start + frame.num_rows
            after = frame.column("after")
            stash.keep(after, start, end)
            low, high = np.searchsorted(self.net.rows, (start, end))
            yield after, start, np.arange(low, high)
            start = end
        if start != self.net.counts.changes:
            raise inconsistent(self.net.relation, "other changes at the second reading")

    def _batch(self, after: Any, local: Ints, places: Ints, stash: _Stash) -> pa.RecordBatch:
        """Return the rows at these places of net.rows.

        Args:
            after: after images.
            local: places of the rows in after.
            places: places of the rows in net.rows.
            stash: values of earlier changes.
        """
        net = self.net
        index = pa.array(local)
        columns = [
            stash.patch(number, after.field(number).take(index), places)
            for number in range(len(net.relation.columns))
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
            origin = key_values(net.keys, codes)
        kinds = np.where(net.new[places], NEW, UPSERT).astype(np.int64)
        return self.layout.batch(kinds, columns, bitmaps=bitmaps, origin=origin)


def key_values(keys: KeyCodes, codes: Ints) -> list[Any]:
    """Return the key columns for some codes; null for -1."""
    place = np.where(codes >= 0, keys.first[codes], 0) if keys.size else codes
    index = pa.array(place, mask=codes < 0)
    return [column.take(index) for column in keys.columns]


def _order(keys: KeyCodes, codes: Ints) -> Ints | None:
    """Return the places in codes in ascending order of keys; None if they are in order already.

    The order is Arrow's: texts by their bytes.
    """
    columns = key_values(keys, codes)
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        numbers = columns[0].to_numpy()
        if (numbers[1:] >= numbers[:-1]).all():
            return None
        return np.argsort(numbers, kind="stable")
    if any(pa.types.is_null(column.type) for column in columns):
        return None
    names = [str(place) for place in range(len(columns))]
    table = pa.table(columns, names=names)
    found = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    order = found.to_numpy().astype(np.int64)
    return None if (order == np.arange(len(order))).all() else order


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

    def patch(self, index: int, values: Any, places: Ints) -> Any:
        """Return the column's values with those of the patched places replaced."""
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


def _pieces(values: Ints) -> Iterator[Ints]:
    for at in range(0, len(values), ROWS_PER_BATCH):
        yield values[at : at + ROWS_PER_BATCH]
