"""Many changes to one net row per key: what a batch leaves behind, as rows of a merge table.

Pure and vectorized. Frames of one table in gsn order go in twice: first `add()` looks at keys
only, then `merge_rows()` picks from the same frames, so that memory holds the keys and one frame,
not the batch. A Python loop runs only over keys that took part in a key change.

A merge row is an upsert (the whole new row), or the delete of a key. Columns that the source did
not send (ABSENT) are taken from the last change in the batch that had them; when none had, the
row names its ORIGIN, the key under which it stands in the target before the batch, and the apply
statement fills them from there. An upsert is told apart from a NEW row, whose key nobody had before
the batch, since the first change that the batch has of this key made it. A table without a key
folds to a count per distinct row: so many copies to insert (positive) or to delete (negative).

Not here: truncations and changes of shape, which bound what is folded together (`plan.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.load.folded import Folded, LogInconsistent, Net, inconsistent
from penstock.load.keys import KeyCodes, encode
from penstock.model import Op, Relation
from penstock.ports.target import Layout

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Fold:
    """Folds the changes of one relation version."""

    def __init__(self, relation: Relation, layout: Layout, *, overlaps: bool = False) -> None:
        """layout: how the merge rows shall lie.

        overlaps: the target may have some of these changes already. A row that they make and take
        away again may be there then, copied in between: its key is deleted as well.
        """
        self._overlaps = overlaps
        self.relation = relation
        self.layout = layout
        self._key = relation.key or tuple(range(len(relation.columns)))
        self._after: list[list[Any]] = [[] for _ in self._key]
        self._before: list[list[Any]] = [[] for _ in self._key]
        self._ops: list[npt.NDArray[np.uint8]] = []
        self._has_before: list[Bools] = []
        self._absent_rows: list[Ints] = []
        self._absent_bits: list[bytes] = []
        self._size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in the next frame. Raises LogInconsistent."""
        if not batch.num_rows:
            return
        op = batch.column("op").to_numpy()
        after, before = batch.column("after"), batch.column("before")
        has_before = np.asarray(before.is_valid())
        has_after = op != Op.DELETE
        self._check(op, has_before)
        for place, index in enumerate(self._key):
            self._after[place].append(_picked(after.field(index), has_after))
            if has_before.any():
                inside = self.relation.before.index(index)
                self._before[place].append(_picked(before.field(inside), has_before))
        self._ops.append(op)
        self._has_before.append(has_before)
        absent = batch.column("absent")
        if absent.null_count < len(absent):
            rows = np.flatnonzero(np.asarray(absent.is_valid()))
            self._absent_rows.append(rows + self._size)
            self._absent_bits += absent.take(pa.array(rows)).to_pylist()
        self._size += batch.num_rows

    def _check(self, op: npt.NDArray[np.uint8], has_before: Bools) -> None:
        """A delete must name its row, and so must every update of a table without a key."""
        needs = op == Op.DELETE if self.relation.key else op != Op.INSERT
        if not has_before[needs].all():
            raise self._inconsistent("a change without the before image that identifies its row")
        if has_before.any() and not set(self._key) <= set(self.relation.before):
            raise self._inconsistent("before images that lack columns of the key")

    def _inconsistent(self, what: str) -> LogInconsistent:
        return inconsistent(self.relation, what)

    def finish(self) -> Folded:
        """Come to the net result of all frames added. Raises LogInconsistent."""
        keys = encode(self._after, self._before, whole_rows=not self.relation.key)
        if not self.relation.key:
            if self._absent_rows:
                raise self._inconsistent("unsent columns in a change without a key")
            net = Net(_empty(), _empty(), _none(), _empty())
            return self._folded(keys, net, copies=keys.copies())
        op = _joined(self._ops, np.uint8)
        destination, origin = self._codes(keys, op)
        net, lineage, origin_of = _net_by_key(self, keys.size, op, destination, origin)
        if self._overlaps:
            touched = np.union1d(destination, origin)
            net.gone = np.setdiff1d(touched[touched >= 0], net.codes)
        if self._absent_rows:
            _resolve_absent(self, net, op, lineage, origin_of)
        return self._folded(keys, net, copies=None)

    def _folded(self, keys: KeyCodes, net: Net, *, copies: Ints | None) -> Folded:
        return Folded(self.relation, self.layout, keys, net, changes=self._size, copies=copies)

    def _codes(self, keys: KeyCodes, op: npt.NDArray[np.uint8]) -> tuple[Ints, Ints]:
        """Per change: the code of the key it leads to (-1 for deletes) and comes from."""
        destination = np.full(self._size, -1, np.int64)
        destination[op != Op.DELETE] = keys.after
        origin = destination.copy()
        origin[_joined(self._has_before, np.bool_)] = keys.before
        return destination, origin

    @property
    def absent(self) -> tuple[Ints, list[bytes]]:
        """Numbers of the changes with unsent columns, ascending, and their bitmaps."""
        return _joined(self._absent_rows, np.int64), self._absent_bits


def _net_by_key(
    fold: Fold, size: int, op: npt.NDArray[np.uint8], destination: Ints, origin: Ints
) -> tuple[Net, Ints, Ints]:
    """Net result; lineage per change; per lineage the code of its origin key, -1 for a new row.

    A lineage is one row through its key changes. Without key changes it is simply the key.
    """
    lineage = np.where(op == Op.DELETE, origin, destination)
    number = np.arange(len(op))
    moved = (op == Op.UPDATE) & (destination != origin)
    touched = np.zeros(size, np.bool_)
    origin_of: Ints = np.arange(size)
    extra_rows, extra_new, extra_gone = _empty(), _none(), _empty()
    if moved.any():
        touched[destination[moved]] = True
        touched[origin[moved]] = True
        chosen = touched[lineage] | touched[origin]
        walk = _Walk(fold, size)
        for change in np.flatnonzero(chosen).tolist():
            lineage[change] = walk.step(
                int(op[change]), int(origin[change]), int(destination[change])
            )
        origin_of = np.concatenate([origin_of, np.array(walk.origins, np.int64)])
        extra_gone = np.array(sorted(walk.gone()), np.int64)
        last = np.full(size + len(walk.origins), -1, np.int64)
        last[lineage] = number
        extra_rows = last[np.array(walk.alive(), np.int64)]
        extra_new = np.array(walk.alive_new(), np.bool_)
    # numpy keeps the last of several values assigned to one index, so this is "last per key".
    last = np.full(len(origin_of), -1, np.int64)
    last[lineage] = number
    first = np.full(len(origin_of), -1, np.int64)
    first[lineage[::-1]] = number[::-1]
    codes = np.flatnonzero((last[:size] >= 0) & ~touched)
    alive = op[last[codes]] != Op.DELETE
    existed = op[first[codes]] != Op.INSERT
    origin_of[codes[~existed]] = -1
    rows = np.concatenate([last[codes[alive]], extra_rows])
    new = np.concatenate([~existed[alive], extra_new])
    order = np.argsort(rows)
    gone = np.concatenate([codes[~alive & existed], extra_gone])
    rows = rows[order]
    net = Net(rows=rows, codes=destination[rows], new=new[order], gone=gone)
    return net, lineage, origin_of


class _Walk:
    """Follows rows through key changes, one change at a time, for the keys that took part."""

    def __init__(self, fold: Fold, size: int) -> None:
        self._fold = fold
        self._size = size
        self.origins: list[int] = []  # of lineages size, size + 1, ...
        self._at: dict[int, int | None] = {}  # key code to the lineage that stands there
        self._existed: set[int] = set()

    def _new(self, origin: int) -> int:
        self.origins.append(origin)
        return self._size + len(self.origins) - 1

    def step(self, op: int, origin: int, destination: int) -> int:
        """Take one change; the lineage it belongs to."""
        if op == Op.INSERT:
            found = self._new(-1)
        elif origin in self._at:
            resume_state = self._at[origin]
            if resume_state is None:
                raise self._fold._inconsistent("a change of a row that is not there")
            found = resume_state
            self._at[origin] = None
        else:
            found = self._new(origin)
            self._existed.add(origin)
            self._at[origin] = None
        if op != Op.DELETE:
            if self._at.get(destination) is not None:
                raise self._fold._inconsistent("two rows with one key at the same moment")
            self._at[destination] = found
        return found

    def alive(self) -> list[int]:
        return [lineage for lineage in self._at.values() if lineage is not None]

    def alive_new(self) -> list[bool]:
        """For each of alive(): whether the key it ends under was nobody's before the batch."""
        return [
            code not in self._existed for code, lineage in self._at.items() if lineage is not None
        ]

    def gone(self) -> set[int]:
        return {code for code in self._existed if self._at[code] is None}


def _resolve_absent(
    fold: Fold, net: Net, op: npt.NDArray[np.uint8], lineage: Ints, origin_of: Ints
) -> None:
    """Find for each unsent column of a surviving row the change that had it last."""
    column_count = len(fold.relation.columns)
    absent_rows, bitmaps = fold.absent
    final = np.isin(net.rows, absent_rows)
    if not final.any():
        return
    wanted = np.zeros(len(origin_of), np.bool_)
    wanted[lineage[net.rows[final]]] = True
    changes = np.flatnonzero(wanted[lineage])
    order = np.lexsort((changes, lineage[changes]))
    changes = changes[order]
    group = lineage[changes]
    starts = np.searchsorted(group, group, side="left")
    ends = np.searchsorted(group, lineage[net.rows[final]], side="right") - 1
    unsent = _bits(changes, absent_rows, bitmaps, column_count)
    places = np.flatnonzero(final)
    left = np.zeros((len(places), column_count), np.bool_)
    number = np.arange(len(changes))
    for index in np.flatnonzero(unsent[ends].any(axis=0)).tolist():
        seen = np.maximum.accumulate(np.where(unsent[:, index], -1, number))[ends]
        here = unsent[ends, index]
        known = here & (seen >= starts[ends])
        if known.any():
            sources = changes[seen[known]]
            if (op[sources] == Op.DELETE).any():
                raise fold._inconsistent("an update of a row that was deleted before")
            net.patches[index] = (places[known], sources)
        left[:, index] = here & ~known
    still = left.any(axis=1)
    net.open_places = places[still]
    net.open_bits = left[still]
    net.open_origin = origin_of[lineage[net.rows[net.open_places]]]
    if (net.open_origin < 0).any():
        raise fold._inconsistent("an inserted row with unsent columns")


def _bits(changes: Ints, absent_rows: Ints, bitmaps: list[bytes], column_count: int) -> Bools:
    """One row of flags per change: true where a column was not sent."""
    flags = np.zeros((len(changes), column_count), np.bool_)
    at = np.searchsorted(absent_rows, changes)
    inside = at < len(absent_rows)
    hit = np.zeros(len(changes), np.bool_)
    hit[inside] = absent_rows[at[inside]] == changes[inside]
    width = (column_count + 7) // 8
    joined = b"".join(bitmaps[i].ljust(width, b"\0")[:width] for i in at[hit].tolist())
    packed = np.frombuffer(joined, np.uint8).reshape(-1, width)
    flags[hit] = np.unpackbits(packed, axis=1, count=column_count, bitorder="little").astype(bool)
    return flags


def _picked(values: Any, mask: Bools) -> Any:
    return values if mask.all() else values.filter(pa.array(mask))


def _joined(parts: list[Any], kind: Any) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _empty() -> Ints:
    return np.empty(0, np.int64)


def _none() -> Bools:
    return np.empty(0, np.bool_)
