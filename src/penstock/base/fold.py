"""Fold of many changes to one net row per key: the result of a batch for one table.

Pure and vectorized. Keys become small dense numbers, so only numbers are compared; a Python loop
runs only over keys that took part in a key change. The frames of a table are added in gsn order,
and only their keys are kept. The result is a `Net`, in terms of the numbers of changes and of
keys; `FoldedRows` picks those rows from the same frames, which are read again.

A net row is an upsert (the whole new row), or the delete of a key. Columns that the source did not
send (ABSENT) are taken from the last change in the batch that had them. If none had, the row names
its ORIGIN, the key that it has in the target before the batch, and the apply statement fills the
columns from there. A NEW row is an upsert whose key no row had before the batch: the first change
of this key in the batch created it. A table without a key folds to a count per distinct row:
copies to insert (positive) or to delete (negative).

Two keys are equal if their kept forms are: texts as they are, floats by value with both zeros
equal (as an index has them) or, for whole rows, by their bits. A database that compares more
loosely (citext, 1.0 = 1.00) sees such a pair as a key change, which folds to a delete and an
upsert.

The rows of a merge table are in the order of their keys, part by part: they are then looked up in
the target in the order of its index, which halves the work if changes come in random order. For
that all frames must fit into memory together, twice. If they do not, rows come in the order of
their last change, frame by frame.

Not here: truncations and changes of shape, which limit what is folded together (`plan.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import cast_exactly
from penstock.model import LOAD_AFRESH, Op, PenstockError, Relation
from penstock.ports.target import GONE, NEW, UPSERT, Counts, Layout, NetRows

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

TEXT_BYTES_MAX = 2**30  # Arrow's plain strings end at 2 GiB


class LogInconsistent(PenstockError):
    """Changes of one table contradict each other: the log cannot be from one history."""

    code = "LD10"
    retry = "never"


class RowUnidentified(PenstockError):
    """A change of a table without a key lacks a value by which its row is found."""

    code = "LD16"
    retry = "operator"


def inconsistent(relation: Relation, what: str) -> LogInconsistent:
    """Return the error for a log with a contradiction in a table. what: the contradicting changes,
    in words.
    """
    return LogInconsistent(
        f"the log holds {what} of table {relation.full_name}",
        hint=f"Please report it with the output of `penstock log cat`. {LOAD_AFRESH}",
        table=relation.full_name,
    )


def make_unidentified(relation: Relation, lacking: Sequence[int]) -> RowUnidentified:
    """Return the error for a change of a table without a key. lacking: indexes of the columns whose
    old values the source does not send.
    """
    names = ", ".join(relation.columns[index].name for index in lacking)
    return RowUnidentified(
        f"table {relation.full_name} has no key, and its source sends no old values of {names}, so "
        "the rows of its updates and deletes cannot be found",
        hint="Add a primary key to the table at the source, then run: penstock table resync FILE "
        f"{relation.full_name}. Or continue without it: penstock table remove FILE "
        f"{relation.full_name}",
        table=relation.full_name,
    )


# --- keys -----------------------------------------------------------------------------------------


def _empty() -> Ints:
    return np.empty(0, np.int64)


def _none() -> Bools:
    return np.empty(0, np.bool_)


@dataclass(frozen=True, slots=True)
class KeyCodes:
    """Keys numbered 0 to size - 1.

    Attributes:
        after: the codes of the keys after the changes.
        before: the codes of the keys before the changes.
        columns: all given keys, those of after first.
        first: by code, its first place in columns.
    """

    size: int
    after: Ints
    before: Ints
    columns: tuple[Any, ...]
    first: Ints

    def copies(self) -> Ints:
        """Return, for each code, how often it is in `after` minus how often it is in `before`."""
        plus = np.bincount(self.after, minlength=self.size)
        return plus - np.bincount(self.before, minlength=self.size)


def encode(
    after: list[list[Any]], before: list[list[Any]], *, whole_rows: bool = False
) -> KeyCodes:
    """Number the distinct keys.

    Args:
        after: for each key column the arrays of its values.
        before: as after.
        whole_rows: the values are images of rows, not keys: minus zero differs from zero.
    """
    columns = tuple(_one_array(a + b) for a, b in zip(after, before, strict=True))
    split = sum(len(part) for part in after[0])
    codes, size = _column_codes(columns[0], whole_rows)
    for column in columns[1:]:
        more, count = _column_codes(column, whole_rows)
        if size * count >= 2**62:
            codes, size = _compact(codes)
        codes, size = codes * count + more, size * count
    if len(columns) > 1:
        codes, size = _compact(codes)
    first = np.zeros(size, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return KeyCodes(size, codes[:split], codes[split:], columns, first)


def _one_array(parts: list[Any]) -> Any:
    if not parts:
        return pa.nulls(0)
    kind = parts[0].type
    if sum(part.nbytes for part in parts) > TEXT_BYTES_MAX:
        wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)
        parts = [cast_exactly(part, wide) for part in parts]
    return pa.concat_arrays(parts)


def _column_codes(column: Any, whole_rows: bool) -> tuple[Ints, int]:
    if pa.types.is_floating(column.type):
        if whole_rows:
            column = column.view(pa.int64() if column.type == pa.float64() else pa.int32())
        else:
            column = pc.add(column, pa.scalar(0, column.type))  # -0.0 becomes 0.0
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64), min(1, len(column))
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def _compact(codes: Ints) -> tuple[Ints, int]:
    encoded = pa.array(codes).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


# --- rows -----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Net:
    """Net result per key, in terms of numbers of changes (rows) and codes of keys.

    Attributes:
        counts: number of changes, and of the resulting rows.
        copies: of a table without a key, the count of each row by code; then the rest is empty.
        rows: the last change of each surviving row, ascending.
        codes: for each of rows the code of its key.
        new: for each of rows whether its key was free before.
        gone: codes to delete.
        patches: column to (places in rows, changes to take the value from).
        open_places: places in rows with columns that the target fills.
        open_bits: for each of open_places the columns.
        open_origin: for each of open_places the code of its origin key.
        is_mixed: the target may have some of the changes, and a key of such a row changed among
            them: its origin key may belong to another row there.
    """

    relation: Relation
    keys: KeyCodes
    counts: Counts = field(default_factory=Counts)
    copies: Ints | None = None
    rows: Ints = field(default_factory=_empty)
    codes: Ints = field(default_factory=_empty)
    new: Bools = field(default_factory=_none)
    gone: Ints = field(default_factory=_empty)
    patches: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    open_places: Ints = field(default_factory=_empty)
    open_bits: Bools = field(default_factory=lambda: np.empty((0, 0), np.bool_))
    open_origin: Ints = field(default_factory=_empty)
    is_mixed: bool = False


def fold(relation: Relation, frames: Iterable[pa.RecordBatch], *, overlaps: bool = False) -> Net:
    """Return the net result of a relation version's frames, given in gsn order; see `Fold`."""
    folding = Fold(relation, overlaps=overlaps)
    for frame in frames:
        folding.add(frame)
    return folding.finish()


class Fold:
    """Folds the changes of one relation version."""

    def __init__(self, relation: Relation, *, overlaps: bool = False) -> None:
        """Start without changes.

        Args:
            relation: the shape.
            overlaps: the target may have some of these changes already. A row that they insert and
                delete again may exist there, copied in between: its key is deleted as well.
        """
        self._overlaps = overlaps
        self._relation = relation
        self._key = relation.key or tuple(range(len(relation.columns)))
        self._after: list[list[Any]] = [[] for _ in self._key]
        self._before: list[list[Any]] = [[] for _ in self._key]
        self._ops: list[npt.NDArray[np.uint8]] = []
        self._has_before: list[Bools] = []
        self._absent_rows: list[Ints] = []
        self._absent_bits: list[bytes] = []
        self._size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next frame. Raises LogInconsistent."""
        if not batch.num_rows:
            return
        op = batch.column("op").to_numpy()
        after, before = batch.column("after"), batch.column("before")
        has_before = np.asarray(before.is_valid())
        has_after = op != Op.DELETE
        self._check(op, has_before)
        for place, index in enumerate(self._key):
            self._after[place].append(_pick(after.field(index), has_after))
            if has_before.any():
                inside = self._relation.before.index(index)
                self._before[place].append(_pick(before.field(inside), has_before))
        self._ops.append(op)
        self._has_before.append(has_before)
        absent = batch.column("absent")
        if absent.null_count < len(absent):
            rows = np.flatnonzero(np.asarray(absent.is_valid()))
            self._absent_rows.append(rows + self._size)
            self._absent_bits += absent.take(pa.array(rows)).to_pylist()
        self._size += batch.num_rows

    def _check(self, op: npt.NDArray[np.uint8], has_before: Bools) -> None:
        """Raise unless each delete, and each update of a table without a key, names its row."""
        needs = op == Op.DELETE if self._relation.key else op != Op.INSERT
        if not has_before[needs].all():
            raise inconsistent(
                self._relation, "a change without the before image that identifies its row"
            )
        lacking = set(self._key) - set(self._relation.before) if has_before.any() else set()
        if lacking and not self._relation.key:
            raise make_unidentified(self._relation, sorted(lacking))
        if lacking:
            raise inconsistent(self._relation, "before images that lack columns of the key")

    def finish(self) -> Net:
        """Return the net result of all frames. Raises LogInconsistent."""
        net = self._net()
        net.counts = self._counts(net)
        return net

    def _counts(self, net: Net) -> Counts:
        if net.copies is not None:
            return Counts(
                changes=self._size,
                upserts=int(np.count_nonzero(net.copies > 0)),
                deletes=int(np.count_nonzero(net.copies < 0)),
            )
        return Counts(
            changes=self._size,
            upserts=len(net.rows),
            deletes=len(net.gone),
            absent=len(net.open_places),
            new=int(np.count_nonzero(net.new)),
        )

    def _net(self) -> Net:
        keys = encode(self._after, self._before, whole_rows=not self._relation.key)
        if not self._relation.key:
            if self._absent_rows:
                raise inconsistent(self._relation, "unsent columns in a change without a key")
            return Net(relation=self._relation, keys=keys, copies=keys.copies())
        op = _join(self._ops, np.uint8)
        destination, origin = self._codes(keys, op)
        net = Net(relation=self._relation, keys=keys)
        lineage, origin_of = _net_by_key(net, op, destination, origin)
        if self._overlaps:
            touched = np.union1d(destination, origin)
            net.gone = np.setdiff1d(touched[touched >= 0], net.codes)
        if self._absent_rows:
            absent = _join(self._absent_rows, np.int64)
            unsent = _Unsent(absent, self._absent_bits, len(self._relation.columns))
            _resolve_absent(net, op, lineage, origin_of, unsent)
            is_moved = lineage[net.rows[net.open_places]] >= keys.size
            net.is_mixed = self._overlaps and bool(is_moved.any())
        return net

    def _codes(self, keys: KeyCodes, op: npt.NDArray[np.uint8]) -> tuple[Ints, Ints]:
        """Return per change the code of its new key (-1 for deletes) and of its old key."""
        destination = np.full(self._size, -1, np.int64)
        destination[op != Op.DELETE] = keys.after
        origin = destination.copy()
        origin[_join(self._has_before, np.bool_)] = keys.before
        return destination, origin


def _net_by_key(
    net: Net, op: npt.NDArray[np.uint8], destination: Ints, origin: Ints
) -> tuple[Ints, Ints]:
    """Fill in the rows; return the lineage of each change, and the code of each lineage's original
    key.

    A lineage is one row through its key changes; without key changes it is simply the key. The
    origin of a new row is -1.
    """
    size = net.keys.size
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
        walk = _Walk(net.relation, size)
        for change in np.flatnonzero(chosen).tolist():
            lineage[change] = walk.step(
                int(op[change]), int(origin[change]), int(destination[change])
            )
        origin_of = np.concatenate([origin_of, np.array(walk.origins, np.int64)])
        extra_gone = np.array(sorted(walk.list_gone()), np.int64)
        last = np.full(size + len(walk.origins), -1, np.int64)
        last[lineage] = number
        extra_rows = last[np.array(walk.alive(), np.int64)]
        extra_new = np.array(walk.alive_new(), np.bool_)
    # numpy keeps the last of several values assigned to one index: the last one per key.
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
    net.rows, net.codes, net.new, net.gone = rows, destination[rows], new[order], gone
    return lineage, origin_of


class _Walk:
    """Follows rows through key changes, one change at a time, for the keys that took part."""

    def __init__(self, relation: Relation, size: int) -> None:
        self._relation = relation
        self._size = size
        self.origins: list[int] = []  # of lineages size, size + 1, ...
        self._at: dict[int, int | None] = {}  # key code to the lineage that has it
        self._existed: set[int] = set()

    def _new(self, origin: int) -> int:
        self.origins.append(origin)
        return self._size + len(self.origins) - 1

    def step(self, op: int, origin: int, destination: int) -> int:
        """Process one change; return its lineage."""
        if op == Op.INSERT:
            found = self._new(-1)
        elif origin in self._at:
            resume_state = self._at[origin]
            if resume_state is None:
                raise inconsistent(self._relation, "a change of a row that is not there")
            found = resume_state
            self._at[origin] = None
        else:
            found = self._new(origin)
            self._existed.add(origin)
            self._at[origin] = None
        if op != Op.DELETE:
            if self._at.get(destination) is not None:
                raise inconsistent(self._relation, "two rows with one key at the same moment")
            self._at[destination] = found
        return found

    def alive(self) -> list[int]:
        return [lineage for lineage in self._at.values() if lineage is not None]

    def alive_new(self) -> list[bool]:
        """Return for each of alive() whether no row had its final key before the batch."""
        return [
            code not in self._existed for code, lineage in self._at.items() if lineage is not None
        ]

    def list_gone(self) -> set[int]:
        return {code for code in self._existed if self._at[code] is None}


@dataclass(frozen=True, slots=True)
class _Unsent:
    """Columns that changes did not have.

    Attributes:
        rows: numbers of such changes, ascending.
        bitmaps: the unsent columns of each.
    """

    rows: Ints
    bitmaps: list[bytes]
    column_count: int

    def flags(self, changes: Ints) -> Bools:
        """Return one row of flags per change: true if a column was not sent."""
        flags = np.zeros((len(changes), self.column_count), np.bool_)
        at = np.searchsorted(self.rows, changes)
        inside = at < len(self.rows)
        hit = np.zeros(len(changes), np.bool_)
        hit[inside] = self.rows[at[inside]] == changes[inside]
        width = (self.column_count + 7) // 8
        joined = b"".join(self.bitmaps[i].ljust(width, b"\0")[:width] for i in at[hit].tolist())
        packed = np.frombuffer(joined, np.uint8).reshape(-1, width)
        bits = np.unpackbits(packed, axis=1, count=self.column_count, bitorder="little")
        flags[hit] = bits.astype(bool)
        return flags


def _resolve_absent(
    net: Net, op: npt.NDArray[np.uint8], lineage: Ints, origin_of: Ints, absent: _Unsent
) -> None:
    """Find for each unsent column of a surviving row the last change that had it."""
    final = np.isin(net.rows, absent.rows)
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
    unsent = absent.flags(changes)
    places = np.flatnonzero(final)
    left = np.zeros((len(places), absent.column_count), np.bool_)
    number = np.arange(len(changes))
    for index in np.flatnonzero(unsent[ends].any(axis=0)).tolist():
        seen = np.maximum.accumulate(np.where(unsent[:, index], -1, number))[ends]
        here = unsent[ends, index]
        known = here & (seen >= starts[ends])
        if known.any():
            sources = changes[seen[known]]
            if (op[sources] == Op.DELETE).any():
                raise inconsistent(net.relation, "an update of a row that was deleted before")
            net.patches[index] = (places[known], sources)
        left[:, index] = here & ~known
    still = left.any(axis=1)
    net.open_places = places[still]
    net.open_bits = left[still]
    net.open_origin = origin_of[lineage[net.rows[net.open_places]]]
    if (net.open_origin < 0).any():
        raise inconsistent(net.relation, "an inserted row with unsent columns")


def _pick(values: Any, mask: Bools) -> Any:
    return values if mask.all() else values.filter(pa.array(mask))


def _join(parts: list[Any], kind: Any) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, kind)


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
        """Yield, for each frame, its after images, the number of its first change, and their
        places.
        """
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
