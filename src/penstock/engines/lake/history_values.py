"""Values that the source did not send, found in earlier changes of the same rows.

A history needs them at each change, not only at the last one of a batch as the fold does. Only rows
with such values are followed, and only the columns that some change did not send are kept. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engines.lake.format import WriterSpec
from penstock.model import Op, Relation

Ints = npt.NDArray[np.int64]
Key = tuple[Any, ...]

FROM_TABLE = -1
"""Source of a value that is in the table's old row."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Values to put into a frame.

    Attributes:
        values: By number of a column the places in the frame, and their values.
        open: By place in the frame the bitmap of the columns that the table has, and the number of
            the change whose old key the row has there.
    """

    values: dict[int, tuple[list[int], pa.Array]] = field(default_factory=dict)
    open: dict[int, tuple[bytes, int]] = field(default_factory=dict)

    def apply(self, column: int, values: pa.Array) -> pa.Array:
        """Return a column of the frame with the values."""
        if column not in self.values:
            return values
        places, found = self.values[column]
        choice = np.arange(len(values))
        choice[places] = len(values) + np.arange(len(places))
        return pa.concat_arrays([values, found]).take(pa.array(choice))


@dataclass(slots=True)
class _Row:
    """A row that is followed.

    Attributes:
        origin: Number of the followed change whose old key it has in the table.
        sources: By column the number of the followed change that has its value.
    """

    origin: int
    sources: dict[int, int]


def find_unsent(spec: WriterSpec, frames: Iterable[pa.RecordBatch]) -> UnsentValues | None:
    """Return the values that must be followed; None if none are."""
    columns: set[int] = set()
    keys: set[Key] = set()
    moved: set[Key] = set()
    relation = spec.relation
    if not relation.key:
        return None
    kept = {index for index, column in enumerate(spec.columns) if column is not None}
    for frame in frames:
        absent = frame.column("absent")
        if frame.num_rows:
            old, new = _keys(relation, frame)
            is_moved = np.flatnonzero(np.asarray(_differ(old, new)))
            for side in (old, new):
                moved.update(_tuples(side, is_moved))
        if absent.null_count == len(absent):
            continue
        rows = np.flatnonzero(np.asarray(absent.is_valid()))
        for mask in set(absent.take(pa.array(rows)).to_pylist()):
            columns.update(kept.intersection(_unsent_in(mask)))
        keys.update(_tuples(_keys(relation, frame)[1], rows))
    return UnsentValues(relation, sorted(columns), keys | moved) if columns else None


class UnsentValues:
    """Follows rows through a batch's changes, frame by frame."""

    def __init__(self, relation: Relation, columns: list[int], keys: set[Key]) -> None:
        """Keep what is followed. columns: that some change did not send. keys: of such changes."""
        self._relation = relation
        self._columns = columns
        self._keys = keys
        self._rows: dict[Key, _Row] = {}
        self._count = 0
        self._kept: dict[int, list[pa.Array]] = {column: [] for column in columns}
        self._old_keys: list[list[pa.Array]] = [[] for _ in relation.key]

    def follow(self, frame: pa.RecordBatch) -> Patch:
        """Take the next frame; return the values that its changes lack."""
        patch = Patch()
        if not frame.num_rows:
            return patch
        old, new = _keys(self._relation, frame)
        chosen = self._choose(old, new)
        if not len(chosen):
            return patch
        index = pa.array(chosen)
        after = frame.column("after")
        for column in self._columns:
            self._kept[column].append(after.field(column).take(index))
        for place, values in enumerate(old):
            self._old_keys[place].append(values.take(index))
        ops = frame.column("op").take(index).to_pylist()
        masks = frame.column("absent").take(index).to_pylist()
        wanted: dict[int, tuple[list[int], list[int]]] = {}
        changes = zip(
            chosen.tolist(), ops, masks, _tuples(old, chosen), _tuples(new, chosen), strict=True
        )
        for number, (place, op, mask, before, key) in enumerate(changes, start=self._count):
            self._step(patch, wanted, number, place, op, mask, before, key)
        self._count += len(chosen)
        for column, (places, sources) in wanted.items():
            kept = pa.chunked_array(self._kept[column])
            patch.values[column] = places, _one(kept.take(pa.array(sources)))
        return patch

    def _choose(self, old: list[pa.Array], new: list[pa.Array]) -> Ints:
        """Return the places of changes of rows that are followed."""
        first = pa.array([key[0] for key in self._keys], old[0].type)
        may_be = pc.or_(pc.is_in(old[0], value_set=first), pc.is_in(new[0], value_set=first))
        places = np.flatnonzero(np.asarray(may_be))
        both = zip(places.tolist(), _tuples(old, places), _tuples(new, places), strict=True)
        found = [place for place, before, key in both if before in self._keys or key in self._keys]
        return np.array(found, np.int64)

    def _step(
        self,
        patch: Patch,
        wanted: dict[int, tuple[list[int], list[int]]],
        number: int,
        place: int,
        op: int,
        mask: bytes | None,
        before: Key,
        key: Key,
    ) -> None:
        """Follow one change. number: of it, among those that are followed."""
        if op == Op.DELETE:
            self._rows.pop(before, None)
            return
        every = dict.fromkeys(self._columns, number)
        if op == Op.INSERT:
            self._rows[key] = _Row(number, every)
            return
        row = self._rows.pop(before, None)
        if row is None:
            row = _Row(number, dict.fromkeys(self._columns, FROM_TABLE))
        unsent = set(self._columns).intersection(_unsent_in(mask))
        row.sources = {
            column: row.sources[column] if column in unsent else number for column in every
        }
        self._rows[key] = row
        missing = []
        for column in sorted(unsent):
            if row.sources[column] == FROM_TABLE:
                missing.append(column)
                continue
            places, sources = wanted.setdefault(column, ([], []))
            places.append(place)
            sources.append(row.sources[column])
        if missing:
            patch.open[place] = _bitmap(missing, len(self._relation.columns)), row.origin

    def old_key(self, place: int, numbers: Ints) -> pa.Array:
        """Return a column of the keys that followed changes had before."""
        return _one(pa.chunked_array(self._old_keys[place]).take(pa.array(numbers)))


def _keys(relation: Relation, frame: pa.RecordBatch) -> tuple[list[pa.Array], list[pa.Array]]:
    """Return the columns of each change's key before and after it; equal if one is not known."""
    after, before = frame.column("after"), frame.column("before")
    is_delete = pc.equal(frame.column("op"), pa.scalar(int(Op.DELETE), pa.uint8()))
    new = [after.field(index) for index in relation.key]
    if not set(relation.key) <= set(relation.before):
        return new, new
    has_before = before.is_valid()
    images = [before.field(relation.before.index(index)) for index in relation.key]
    old = [pc.if_else(has_before, one, two) for one, two in zip(images, new, strict=True)]
    return old, [pc.if_else(is_delete, one, two) for one, two in zip(old, new, strict=True)]


def _differ(old: list[pa.Array], new: list[pa.Array]) -> pa.Array:
    differs = pc.fill_null(pc.not_equal(old[0], new[0]), False)
    for one, two in zip(old[1:], new[1:], strict=True):
        differs = pc.or_(differs, pc.fill_null(pc.not_equal(one, two), False))
    return differs


def _tuples(columns: list[pa.Array], places: Ints) -> list[Key]:
    chosen = [column.take(pa.array(places)).to_pylist() for column in columns]
    return list(zip(*chosen, strict=True))


@lru_cache(maxsize=1024)
def _unsent_in(bitmap: bytes | None) -> frozenset[int]:
    """Return the numbers of the columns that a change lacks."""
    flags = np.unpackbits(np.frombuffer(bitmap or b"", np.uint8), bitorder="little")
    return frozenset(np.flatnonzero(flags).tolist())


def _bitmap(columns: Iterable[int], count: int) -> bytes:
    flags = np.zeros(count, np.bool_)
    flags[list(columns)] = True
    return bytes(np.packbits(flags, bitorder="little"))


def _one(values: pa.ChunkedArray) -> pa.Array:
    found = values.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found
