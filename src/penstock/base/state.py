"""One table at a position: the rows of the base with later changes. Rows are streamed.

Changes lie over the rows in layers, one for each shape of the table. A layer folds its changes to
one row per key; a row below whose key took part is dropped, and the layer's rows follow after the
remaining ones. In memory are the keys of the changes and one piece of rows, of about a file's
size; the changed rows are read from the log again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.changes import Layer, TableChanges
from penstock.base.fold import Bools, FoldedRows, Ints, Net, encode, fold, inconsistent, key_values
from penstock.base.manifest import FILE_BYTES, columns_schema, empty, rows_batch
from penstock.base.shapes import ShapeUnfit, as_kind, convert_rows, widest
from penstock.codec.columns import batch_schema, cast_exactly
from penstock.model import Op, Relation
from penstock.ports.target import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some rows in a shape.

    Attributes:
        is_old: the rows were in the base, and no change has touched them.
    """

    relation: Relation
    rows: pa.RecordBatch
    is_old: bool = True

    def slice(self, at: int, count: int) -> Piece:
        """Return a part of its rows."""
        return replace(self, rows=self.rows.slice(at, count))


def state(
    pieces: Iterable[Piece],
    changes: TableChanges,
    *,
    shapes: Sequence[Relation],
    adds_rows: bool = True,
) -> Iterator[Piece]:
    """Yield the rows of a table in its newest shape, after an empty piece that has the shape.

    Args:
        pieces: those of the base.
        changes: later changes.
        shapes: shapes of the table in the base.
        adds_rows: include rows of changes; otherwise only the remaining rows of the pieces.

    Raises:
        SegmentCorrupt: the log is damaged.
        LogInconsistent: changes contradict each other.
        ShapeUnfit: rows do not fit the newest shape.
    """
    found: Iterable[Piece] = () if changes.is_emptied else pieces
    below = [] if changes.is_emptied else list(shapes)
    for layer in changes.layers:
        below.append(layer.relation)
        shape = widest(layer.relation, below)
        found = _Layered(layer, shape, adds_rows=adds_rows).over(found)
    last = last_shape(changes, shapes)
    yield Piece(relation=last, rows=empty(last))  # names the shape if there is no row
    for piece in found:
        rows = convert_rows(piece.rows, piece.relation, last)
        yield Piece(relation=last, rows=rows, is_old=piece.is_old)


def last_shape(changes: TableChanges, shapes: Sequence[Relation]) -> Relation:
    """Return the newest shape of a table, which can hold all of its rows.

    Args:
        changes: changes of the table.
        shapes: shapes in the base.
    """
    before = () if changes.is_emptied else shapes
    newest = changes.relation or shapes[-1]
    return widest(newest, (*before, *(layer.relation for layer in changes.layers)))


def as_inserts(piece: Piece, *, gsn: int = 0, trx: int = 0) -> pa.RecordBatch:
    """Return the rows as inserts of one transaction, as the log has them.

    Args:
        piece: the rows.
        gsn: number of the first row.
        trx: the transaction.
    """
    count = piece.rows.num_rows
    schema = batch_schema(piece.relation)
    after = pa.StructArray.from_arrays(piece.rows.columns, fields=list(schema.field("after").type))
    numbers = pa.array(np.arange(gsn, gsn + count, dtype=np.int64))
    trxs = pa.array(np.full(count, trx, np.int64))
    ops = pa.array(np.full(count, int(Op.INSERT), np.uint8))
    absent, before = (pa.nulls(count, schema.field(name).type) for name in ("absent", "before"))
    return pa.RecordBatch.from_arrays([numbers, trxs, ops, absent, after, before], schema=schema)


def needs_old_rows(changes: TableChanges) -> bool:
    """Return whether changes need the previous version of a row: columns were not sent, or there is
    no key.
    """
    return any(
        not layer.relation.key
        or any(batch.column("absent").null_count < len(batch) for batch in layer.batches())
        for layer in changes.layers
        if layer.frames
    )


class _Layered:
    """One layer over rows.

    Attributes:
        shape: of the layer; it can hold all rows below, too.
    """

    def __init__(self, layer: Layer, shape: Relation, *, adds_rows: bool) -> None:
        self._layer, self._adds_rows = layer, adds_rows
        self._relation, self._shape = layer.relation, shape
        self._net: Net = fold(layer.relation, layer.batches(), overlaps=layer.overlaps)
        if self._net.is_mixed:
            raise _make_mixed(self._net)
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
            left = self._drop_touched(convert_rows(piece.rows, piece.relation, self._shape))
            if left.num_rows:
                yield Piece(relation=self._shape, rows=left, is_old=piece.is_old)
        if self._left is not None and (self._left < 0).any() and self._adds_rows:
            raise inconsistent(self._relation, "the delete of a row that is not there")
        if self._adds_rows:
            for rows in _regroup(self._list_added(), self._shape):
                yield Piece(relation=self._shape, rows=rows, is_old=False)

    def _in_shape(self, values: Any, index: int) -> Any:
        """Return the values of a layer's column, converted to the shape."""
        old, new = self._relation.columns[index].neutral, self._shape.columns[index].neutral
        return as_kind(values, old, new)

    def _drop_touched(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        codes = _codes(rows, self._key, self._touched, whole_rows=not self._relation.key)
        if self._left is not None:
            return rows.filter(pa.array(~self._take_first(codes, self._left)))
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
    def _take_first(codes: Ints, left: Ints) -> Bools:
        """Return a mask that selects, of equal rows, the first ones: as many as are deleted.

        Args:
            codes: of the rows.
            left: deletes that remain, counted up.
        """
        taken = np.zeros(len(codes), np.bool_)
        if not left.size:
            return taken  # the layer has no rows, only a shape
        places = np.flatnonzero((codes >= 0) & (left[np.maximum(codes, 0)] < 0))
        for place in places.tolist():
            code = codes[place]
            if left[code] < 0:
                left[code] += 1
                taken[place] = True
        return taken

    def _list_added(self) -> Iterator[pa.RecordBatch]:
        net = self._net
        if net.copies is not None:
            codes = np.flatnonzero(net.copies > 0)
            if not codes.size:
                return  # without rows no value has to be converted to a later shape
            codes = np.repeat(codes, net.copies[codes])
            columns = key_values(net.keys, codes)
            places = range(len(columns))
            typed = [self._in_shape(columns[place], place) for place in places]
            yield rows_batch(self._shape, typed)
            return
        layout = _Plain(self._relation)
        rows = FoldedRows(net=net, layout=layout, frames=_Again(self._layer))
        for batch in rows.upserts():
            yield self._fill(batch)

    def _fill(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return upserts with unsent columns taken from the rows below."""
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
        """Return the places of the rows with these keys among the kept ones."""
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


def _make_mixed(net: Net) -> ShapeUnfit:
    """Return the error for unsent values of a row that the base may have under several keys."""
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
    """Return for each row the number of its key among the changed ones; -1 if it did not change."""
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
    """Frames of a layer, which can be read repeatedly."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (batch for batch in self._layer.batches() if batch.num_rows)


class _Plain(Layout):
    """Layout with the columns themselves, then the open columns, then the origin's key."""

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


def _regroup(batches: Iterable[pa.RecordBatch], relation: Relation) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in pieces of about a file's size."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= FILE_BYTES:
            yield _join(waiting, relation)
            waiting, size = [], 0
    if waiting:
        yield _join(waiting, relation)


def _join(batches: list[pa.RecordBatch], relation: Relation) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return rows_batch(
        relation,
        [
            pa.concat_arrays([batch.column(place) for batch in batches])
            for place in range(len(relation.columns))
        ],
    )
