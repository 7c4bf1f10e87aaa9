"""One table at a position: the rows of the base with what has changed since. Streams.

Changes lie over the rows in layers, one for each shape that the table has had. A layer folds its
changes to one row per key; a row below whose key took part is dropped, and the layer's rows follow
behind those that are left. In memory are the keys of the changes and one piece of rows, of about a
file's size; the changed rows are read from the log again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.changes import Layer, TableChanges
from penstock.base.fold import Bools, Ints, Net, encode, fold, inconsistent
from penstock.base.manifest import FILE_BYTES, columns_schema, empty, rows_batch
from penstock.base.net_rows import FoldedRows, key_values
from penstock.base.shapes import ShapeUnfit, as_kind, converted, widest
from penstock.codec.columns import batch_schema
from penstock.codec.exact_cast import cast_exactly
from penstock.model import Op, Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some rows in a shape. is_old: they were in the base, and no change has touched them."""

    relation: Relation
    rows: pa.RecordBatch
    is_old: bool = True

    def slice(self, at: int, count: int) -> Piece:
        """Some of its rows."""
        return replace(self, rows=self.rows.slice(at, count))


def state(
    pieces: Iterable[Piece],
    changes: TableChanges,
    *,
    shapes: Sequence[Relation],
    adds_rows: bool = True,
) -> Iterator[Piece]:
    """The rows of a table in its newest shape; first none, to say it. pieces: those of the base.

    shapes: those of the table in the base. adds_rows: whether rows of changes come, too; without
    them, what is left of the pieces. Raises SegmentCorrupt, LogInconsistent, ShapeUnfit.
    """
    found: Iterable[Piece] = () if changes.is_emptied else pieces
    below = [] if changes.is_emptied else list(shapes)
    for layer in changes.layers:
        below.append(layer.relation)
        shape = widest(layer.relation, below)
        found = _Layered(layer, shape, adds_rows=adds_rows).over(found)
    last = last_shape(changes, shapes)
    yield Piece(relation=last, rows=empty(last))  # says the shape where there is no row
    for piece in found:
        rows = converted(piece.rows, piece.relation, last)
        yield Piece(relation=last, rows=rows, is_old=piece.is_old)


def last_shape(changes: TableChanges, shapes: Sequence[Relation]) -> Relation:
    """The newest shape of a table, in which all of its rows can be. shapes: those in the base."""
    before = () if changes.is_emptied else shapes
    newest = changes.relation or shapes[-1]
    return widest(newest, (*before, *(layer.relation for layer in changes.layers)))


def as_inserts(piece: Piece, *, gsn: int = 0, trx: int = 0) -> pa.RecordBatch:
    """The rows as inserts of one transaction, as the log has them. gsn: of the first."""
    count = piece.rows.num_rows
    schema = batch_schema(piece.relation)
    after = pa.StructArray.from_arrays(piece.rows.columns, fields=list(schema.field("after").type))
    numbers = pa.array(np.arange(gsn, gsn + count, dtype=np.int64))
    trxs = pa.array(np.full(count, trx, np.int64))
    ops = pa.array(np.full(count, int(Op.INSERT), np.uint8))
    absent, before = (pa.nulls(count, schema.field(name).type) for name in ("absent", "before"))
    return pa.RecordBatch.from_arrays([numbers, trxs, ops, absent, after, before], schema=schema)


def needs_old_rows(changes: TableChanges) -> bool:
    """Whether a changed row takes values from a row below: some were not sent, or it has no key."""
    return any(
        not layer.relation.key
        or any(batch.column("absent").null_count < len(batch) for batch in layer.batches())
        for layer in changes.layers
        if layer.frames
    )


class _Layered:
    """One layer over rows. shape: of the layer, in which all rows below can be, too."""

    def __init__(self, layer: Layer, shape: Relation, *, adds_rows: bool) -> None:
        self._layer, self._adds_rows = layer, adds_rows
        self._relation, self._shape = layer.relation, shape
        self._net: Net = fold(layer.relation, layer.batches(), overlaps=layer.overlaps)
        if self._net.is_mixed:
            raise _mixed(self._net)
        self._key = self._relation.key or tuple(range(len(self._relation.columns)))
        keys = self._net.keys
        self._touched = [
            self._in_shape(values, index)
            for values, index in zip(
                key_values(keys, np.arange(keys.size, dtype=np.int64)), self._key, strict=False
            )
        ]
        self._left = None if self._net.copies is None else np.minimum(self._net.copies, 0)
        self._origins = np.zeros(keys.size, np.bool_)
        self._origins[self._net.open_origin] = True
        self._kept: list[pa.RecordBatch] = []
        self._kept_codes: list[Ints] = []

    def over(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            left = self._untouched(converted(piece.rows, piece.relation, self._shape))
            if left.num_rows:
                yield Piece(relation=self._shape, rows=left, is_old=piece.is_old)
        if self._left is not None and (self._left < 0).any() and self._adds_rows:
            raise inconsistent(self._relation, "the delete of a row that is not there")
        if self._adds_rows:
            for rows in _regrouped(self._added(), self._shape):
                yield Piece(relation=self._shape, rows=rows, is_old=False)

    def _in_shape(self, values: Any, index: int) -> Any:
        """Values of a column of the layer as the shape has them."""
        old, new = self._relation.columns[index].neutral, self._shape.columns[index].neutral
        return as_kind(values, old, new)

    def _untouched(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        codes = _codes(rows, self._key, self._touched, whole_rows=not self._relation.key)
        if self._left is not None:
            return rows.filter(pa.array(~self._taken(codes, self._left)))
        hit = codes >= 0
        if not hit.any():
            return rows
        wanted = np.zeros(len(codes), np.bool_)
        wanted[hit] = self._origins[codes[hit]]
        if wanted.any():
            self._kept.append(rows.filter(pa.array(wanted)))
            self._kept_codes.append(codes[wanted])
        return rows.filter(pa.array(~hit))

    @staticmethod
    def _taken(codes: Ints, left: Ints) -> Bools:
        """Of equal rows the first ones, as many as are deleted. left: is counted up."""
        taken = np.zeros(len(codes), np.bool_)
        places = np.flatnonzero((codes >= 0) & (left[np.maximum(codes, 0)] < 0))
        for place in places.tolist():
            code = codes[place]
            if left[code] < 0:
                left[code] += 1
                taken[place] = True
        return taken

    def _added(self) -> Iterator[pa.RecordBatch]:
        net = self._net
        if net.copies is not None:
            codes = np.flatnonzero(net.copies > 0)
            codes = np.repeat(codes, net.copies[codes])
            columns = key_values(net.keys, codes)
            places = range(len(columns))
            typed = [self._in_shape(columns[place], place) for place in places]
            yield rows_batch(self._shape, typed)
            return
        layout = _Plain(self._relation)
        rows = FoldedRows(net=net, layout=layout, frames=_Again(self._layer))
        for batch in rows.upserts():
            yield self._filled(batch)

    def _filled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Upserts with what was not sent taken from the rows below."""
        count = len(self._relation.columns)
        columns = [self._in_shape(batch.column(place), place) for place in range(count)]
        bitmaps = batch.column(count)
        if bitmaps.null_count == len(bitmaps):
            return rows_batch(self._shape, columns)
        is_open = np.asarray(bitmaps.is_valid())
        origin = [
            self._in_shape(batch.column(count + 1 + at).filter(pa.array(is_open)), index)
            for at, index in enumerate(self._key)
        ]
        places = self._places(origin)
        packed = b"".join(bitmaps.filter(pa.array(is_open)).to_pylist())
        bits = np.unpackbits(
            np.frombuffer(packed, np.uint8).reshape(len(places), -1), axis=1, bitorder="little"
        )
        for place in range(count):
            wanted = np.zeros(len(bitmaps), np.bool_)
            wanted[is_open] = bits[:, place] == 1
            if wanted.any():
                source = np.zeros(len(bitmaps), np.int64)
                source[is_open] = places
                kept = pa.concat_arrays([one.column(place) for one in self._kept])
                taken = kept.take(pa.array(source))
                columns[place] = pc.if_else(pa.array(wanted), taken, columns[place])
        return rows_batch(self._shape, columns)

    def _places(self, origin: Sequence[Any]) -> Ints:
        """Where the rows of these keys are among those that were kept."""
        if not self._kept:
            raise inconsistent(self._relation, "an update of a row that is not there")
        kept = [
            pa.concat_arrays([rows.column(index) for rows in self._kept]) for index in self._key
        ]
        codes = encode([[one] for one in origin], [[one] for one in kept])
        place_of = np.full(codes.size, -1, np.int64)
        place_of[codes.before] = np.arange(len(codes.before))
        places: Ints = place_of[codes.after]
        if (places < 0).any():
            raise inconsistent(self._relation, "an update of a row that is not there")
        return places


def _mixed(net: Net) -> ShapeUnfit:
    """The error for unsent values of a row that is under one of several keys in the base."""
    table = net.relation.full_name
    column = net.relation.columns[int(net.open_bits.any(axis=0).argmax())].name
    return ShapeUnfit(
        f"a key of {table} changed while the base read the table, and column {column} was not sent "
        "with the change",
        hint="Nothing to do: the base reads the table again.",
        table=table,
        column=column,
    )


def _codes(
    rows: pa.RecordBatch, key: Sequence[int], touched: Sequence[Any], *, whole_rows: bool
) -> Ints:
    """For each row the number of its key among those that changed; -1: it has not."""
    if not touched or not len(touched[0]):
        return np.full(rows.num_rows, -1, np.int64)
    own = [[rows.column(index)] for index in key]
    theirs = [[one] for one in touched]
    codes = encode(own, theirs, whole_rows=whole_rows)
    number = np.full(codes.size, -1, np.int64)
    number[codes.before] = np.arange(len(codes.before))
    found: Ints = number[codes.after]
    return found


class _Again:
    """The frames of a layer, read as often as asked."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (batch for batch in self._layer.batches() if batch.num_rows)


class _Plain:
    """A layout with the columns themselves, then which of them are open, then the origin's key."""

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        columns = list(columns_schema(relation))
        own = [pa.field(f"{place}", field.type) for place, field in enumerate(columns)]
        origin = [pa.field(f"k{index}", columns[index].type) for index in relation.key]
        self.schema = pa.schema([*own, pa.field("absent", pa.binary()), *origin])

    def batch(
        self,
        counts: Ints,
        columns: list[Any],
        *,
        bitmaps: Any = None,
        origin: list[Any] | None = None,
    ) -> pa.RecordBatch:
        """See Layout."""
        count = len(counts)
        if bitmaps is None:
            bitmaps = pa.nulls(count, pa.binary())
        if origin is None:
            origin = [pa.nulls(count) for _ in self._relation.key]
        arrays = [*columns, bitmaps, *origin]
        typed = [
            cast_exactly(one, field.type) for one, field in zip(arrays, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(typed, schema=self.schema)


def _regrouped(batches: Iterable[pa.RecordBatch], relation: Relation) -> Iterator[pa.RecordBatch]:
    """The same rows in pieces of about a file's size."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= FILE_BYTES:
            yield _joined(waiting, relation)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting, relation)


def _joined(batches: list[pa.RecordBatch], relation: Relation) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return rows_batch(
        relation,
        [
            pa.concat_arrays([batch.column(place) for batch in batches])
            for place in range(len(relation.columns))
        ],
    )
