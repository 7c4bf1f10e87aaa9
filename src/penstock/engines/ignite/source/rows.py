"""Entries of one cache as rows of the change log, column by column.

Every put is an update and every removal a delete, whatever the node calls it: an atomic cache
logs UPDATE for the first value of a key, and CREATE is logged for a key that the target has when
its entry has expired or a resend puts it into the log once more. If the first change of a key is
an update, the loader does the right thing in both cases; an insert of an existing key would be
an error.

The columns of entries with known types are read from their bytes together. Other entries (an
unknown type, a value that a column does not hold, raw data) are decoded value by value, and let the
cache's shape grow. Not here: numbers of rows and the order of entries (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import after_type, arrow_type, batch_schema, before_type, cast_exactly
from penstock.codec.ignite.cells import Cell, cell_of, cell_reader
from penstock.codec.ignite.changes import Changes, Ints
from penstock.codec.ignite.columns import MS_MAX, NotHeld, column_of, column_of_ms
from penstock.codec.ignite.kinds import OF_CODES, OF_VALUES, of_scalar, parts_of
from penstock.codec.ignite.types import Types
from penstock.codec.ignite.values import BinaryObject, Timestamp
from penstock.engines.ignite.source.shapes import (
    EXPIRES,
    OF_ENTRY,
    OF_KEY,
    OF_VALUE,
    PRIMARY,
    RAW,
    TYPE,
    DeclaredColumn,
    KeptColumn,
    Shape,
    Shapes,
)
from penstock.model import Op, PenstockError, Relation, Rows

REGULAR, OBJECT = 1, 100  # kinds of keys and values
NULL = 101
Met = Mapping[Any, Any]


@dataclass(frozen=True)
class _Side:
    """Columns of keys, or of values. kind: of their bytes."""

    columns: tuple[KeptColumn, ...]
    cells: tuple[Cell, ...]
    kind: int


class PlainColumns:
    """Reader of columns; it uses the kernel if that is built."""

    def __init__(self, types: Types, zone: str) -> None:
        """Keep the types. zone: time zone of the nodes, for dates and times of day."""
        self._read = cell_reader(types)
        self._zone = zone
        self._sides: dict[str, tuple[Shape, tuple[_Side, ...]]] = {}

    def of(
        self, cache: str, shape: Shape, met: Sequence[Met], entries: Changes, puts: Changes
    ) -> list[pa.Array] | None:
        """Return a column with a value per entry for a key's column, and per put for others; None
        if values are not plain.

        met: types of keys and of values that the shape has.
        """
        known = self._sides.get(cache)
        if known is None or known[0] is not shape:
            known = self._sides[cache] = shape, (_side(shape, OF_KEY), _side(shape, OF_VALUE))
        keys, values = known[1]
        if (entries.rows["key_kind"] != keys.kind).any():
            return None
        if (puts.rows["value_kind"] != values.kind).any():
            return None
        made = self._columns(keys, entries, "key", met[0])
        if made is None:
            return None
        more = self._columns(values, puts, "value", met[1])
        if more is None:
            return None
        found = made | more
        for column in shape.columns:
            if column.name not in found:
                of_entries = _of_entries(column, puts)
                if of_entries is None:
                    return None
                found[column.name] = of_entries
        if puts.rows["expire_time_ms"].any() and EXPIRES not in found:
            return None
        return [found[column.name] for column in shape.columns]

    def _columns(
        self, side: _Side, changes: Changes, of: str, met: Met
    ) -> dict[str, pa.Array] | None:
        begins, lengths = changes.places(of)
        if side.kind == REGULAR:
            first = np.frombuffer(changes.data, np.uint8)[begins[lengths > 0]]
            codes = set(np.unique(first).tolist()) - {NULL}
            if not codes <= {code for code, kind in OF_CODES.items() if kind in met}:
                return None
        read = self._read(changes.data, begins, lengths, side.cells)
        if read is None or any(met.get(one.type_id) is not one for one in read[1]):
            return None
        made = {}
        for column, cells in zip(side.columns, read[0], strict=True):
            try:
                made[column.name] = self._column(column, cells)
            except NotHeld:
                return None
        return made

    def _column(self, column: KeptColumn, cells: Any) -> pa.Array:
        if isinstance(cells, list):
            return column_of(column.kind, column.neutral, cells, self._zone)
        base, length, _ = parts_of(column.kind)
        if base in ("date", "time"):
            return column_of_ms(column.kind, column.neutral, cells, self._zone)
        if base == "varchar" and length and (pc.max(pc.utf8_length(cells)).as_py() or 0) > length:
            raise NotHeld("varchar")
        return cells


def _side(shape: Shape, side: str) -> _Side:
    columns = tuple(one for one in shape.columns if one.side == side)
    cells = tuple(cell_of(one.field, one.kind, one.neutral) for one in columns)
    is_scalar = [one.field for one in columns] == [""]
    # If a cache has both, values of one kind would leave the others' columns to be filled.
    is_mixed = not is_scalar and any(not one.field for one in columns)
    return _Side(columns, cells, 0 if is_mixed else REGULAR if is_scalar else OBJECT)


def _of_entries(column: KeptColumn, puts: Changes) -> pa.Array | None:
    """Return a column of facts beside key and value; None: their types have to be named."""
    kind = arrow_type(column.neutral)
    if column.field == EXPIRES and column.neutral == "timestamptz":
        times_ms = puts.rows["expire_time_ms"]
        if not ((times_ms > -MS_MAX) & (times_ms < MS_MAX)).all():
            return None
        return cast_exactly(pa.array(times_ms * 1000, pa.int64(), mask=times_ms == 0), kind)
    if column.field == PRIMARY:
        return pa.array(puts.is_primary, kind)
    return pa.nulls(len(puts), kind) if column.field == RAW else None


class KeyNotUsable(PenstockError):
    """A key has a field that is null, or a type unlike the others' keys. fields: cache, column."""

    code = "IG80"
    retry = "operator"


class RowMaker:
    """Converter of entries to rows; shapes grow with their values.

    Attributes:
        zone: time zone of the nodes, for dates and times of day.
        backups: whether rows have the column that marks backup copies.
    """

    def __init__(self, shapes: Shapes, types: Types, *, zone: str, backups: bool) -> None:
        self._shapes = shapes
        self._types = types
        self._zone = zone
        self._backups = backups
        self._plain = PlainColumns(types, zone)
        self._declared: dict[str, Sequence[DeclaredColumn]] = {}
        self._met: dict[tuple[str, str], dict[Any, Any]] = {}

    def begin_again(self, cache: str) -> None:
        """Forget a cache that was recreated."""
        self._shapes.begin_again(cache)
        self._declared.pop(cache, None)
        for side in (OF_KEY, OF_VALUE):
            self._met.pop((cache, side), None)

    def rows(self, cache: str, entries: Changes, gsn: Ints, trx: Ints) -> Rows:
        """Return rows of one cache's entries with these numbers.

        Raises the errors of decoding, KeyNotUsable.
        """
        is_put = entries.is_put
        puts = entries if is_put.all() else entries.pick(is_put)
        made = self._plain_rows(cache, entries, puts, is_put, gsn, trx)
        if made is not None:
            return made
        keys, values = entries.list_values("key"), puts.list_values("value")
        self._learn_declared(cache)
        self._learn(cache, OF_KEY, keys, entries)
        self._learn(cache, OF_VALUE, values, puts)
        self._learn_entries(cache, values, puts)
        while True:
            shape = self._shapes.of(cache, int(entries.rows["cache_id"][0]))
            try:
                return self._make(cache, shape, puts, is_put, keys, values, gsn, trx)
            except _Unfit as unfit:
                unfit.grow(self._shapes, cache)

    def _plain_rows(
        self,
        cache: str,
        entries: Changes,
        puts: Changes,
        is_put: npt.NDArray[np.bool_],
        gsn: Ints,
        trx: Ints,
    ) -> Rows | None:
        """Return rows of entries that show nothing new; None for others."""
        met = [self._met.get((cache, side), {}) for side in (OF_KEY, OF_VALUE)]
        if not all(met) or self._shapes.declared(cache) is not self._declared.get(cache):
            return None
        shape = self._shapes.of(cache, int(entries.rows["cache_id"][0]))
        columns = self._plain.of(cache, shape, met, entries, puts)
        if columns is None:
            return None
        befores: dict[int, pa.Array] = {}
        afters = []
        for at, (column, made) in enumerate(zip(shape.columns, columns, strict=True)):
            if column.side == OF_KEY:
                _check_key(cache, column, made)
                befores[at] = _where(made, ~is_put)
                afters.append(_where(made, is_put))
            else:
                afters.append(_spread(made, is_put))
        return _rows_of(shape.relation, afters, befores, is_put, gsn, trx)

    # -- what entries show -------------------------------------------------------------------

    def _learn_declared(self, cache: str) -> None:
        """Add the columns of a SQL table, and those that were added to it since."""
        declared = self._shapes.declared(cache)
        if declared is not self._declared.get(cache):
            self._declared[cache] = declared
            self._shapes.declare(cache)

    def _learn(self, cache: str, side: str, found: list[Any], entries: Changes) -> None:
        """Add types that were not met before, and versions of them."""
        met = self._met.get((cache, side))
        if met is None:
            met = self._met[cache, side] = {}
        kinds = set(map(type, found))
        if BinaryObject in kinds:
            kinds.discard(BinaryObject)
            some = found if not kinds else [one for one in found if type(one) is BinaryObject]
            for type_id in sorted({one.type_id for one in some}):
                known = self._types.find(type_id)
                if met.get(type_id) is not known or known is None:
                    met[type_id] = known
                    self._learn_type(cache, side, type_id, known, some)
        for kind in sorted(kinds, key=lambda one: one.__name__):
            self._learn_scalars(cache, side, kind, met, found, entries)

    def _learn_type(self, cache: str, side: str, type_id: int, known: Any, some: list[Any]) -> None:
        if known is not None:
            self._shapes.object(cache, side, known)
        if side == OF_VALUE:
            shown = next(one.type_name for one in some if one.type_id == type_id)
            self._shapes.take_type(cache, shown)

    def _learn_scalars(
        self,
        cache: str,
        side: str,
        kind: type,
        met: dict[Any, Any],
        found: list[Any],
        entries: Changes,
    ) -> None:
        if kind not in (int, float):
            shown = {OF_VALUES[kind]}
        else:  # Python has one type for numbers of several widths
            shown = {
                of_scalar(value, one)
                for value, one in zip(found, _bytes_of(entries, side), strict=True)
                if type(value) is kind
            }
        for one in sorted(shown - met.keys()):
            met[one] = one
            self._shapes.hold(cache, side, "", one)
            if side == OF_VALUE:
                self._shapes.take_type(cache, one)

    def _learn_entries(self, cache: str, values: list[Any], puts: Changes) -> None:
        """Add columns for facts beside key and value."""
        if puts.rows["expire_time_ms"].any():
            self._shapes.hold(cache, OF_ENTRY, EXPIRES, "timestamp")
        if self._backups:
            self._shapes.hold(cache, OF_ENTRY, PRIMARY, "boolean")
        if any(type(one) is BinaryObject and one.raw is not None for one in values):
            self._shapes.hold(cache, OF_ENTRY, RAW, "binary")

    # -- columns -----------------------------------------------------------------------------

    def _make(
        self,
        cache: str,
        shape: Shape,
        puts: Changes,
        is_put: npt.NDArray[np.bool_],
        keys: list[Any],
        values: list[Any],
        gsn: Ints,
        trx: Ints,
    ) -> Rows:
        afters = []
        befores: dict[int, pa.Array] = {}
        unfit = _Unfit()
        for at, column in enumerate(shape.columns):
            try:
                if column.side == OF_KEY:
                    made = self._column(column, _pick(column, keys))
                    _check_key(cache, column, made)
                    befores[at] = _where(made, ~is_put)
                    afters.append(_where(made, is_put))
                else:
                    found = self._pick_values(column, values, puts)
                    afters.append(_spread(self._column(column, found), is_put))
            except NotHeld as error:
                unfit.columns.append((column, error.kind))
        unfit.columns += self._find_missing(cache, shape, keys, values)
        if unfit.columns:
            raise unfit
        return _rows_of(shape.relation, afters, befores, is_put, gsn, trx)

    def _find_missing(
        self, cache: str, shape: Shape, keys: list[Any], values: list[Any]
    ) -> list[tuple[KeptColumn, str]]:
        """Return fields without a column that have values, whose type binary_meta does not name."""
        missed = []
        for side, found in ((OF_KEY, keys), (OF_VALUE, values)):
            met = self._met[cache, side]
            names = {name for one in met.values() for name in getattr(one, "fields", ())}
            for name in sorted(names - {one.field for one in shape.columns if one.side == side}):
                kinds = set(map(type, _pick(_column_of(side, name), found))) - {type(None)}
                missed += [(_column_of(side, name), OF_VALUES[kind]) for kind in kinds]
        return missed

    def _column(self, column: KeptColumn, found: list[Any]) -> pa.Array:
        return column_of(column.kind, column.neutral, found, self._zone)

    def _pick_values(self, column: KeptColumn, values: list[Any], puts: Changes) -> list[Any]:
        if column.side == OF_VALUE:
            return _pick(column, values)
        if column.field == EXPIRES:
            times_ms = puts.rows["expire_time_ms"].tolist()
            return [Timestamp(one, 0) if one else None for one in times_ms]
        if column.field == PRIMARY:
            return list(puts.is_primary.tolist())
        if column.field == RAW:
            return [one.raw if type(one) is BinaryObject else None for one in values]
        assert column.field == TYPE
        return [
            one.type_name if type(one) is BinaryObject else of_scalar(one, put)
            for one, put in zip(values, _bytes_of(puts, OF_VALUE), strict=True)
        ]


def _rows_of(
    relation: Relation,
    afters: list[pa.Array],
    befores: Mapping[int, pa.Array],
    is_put: npt.NDArray[np.bool_],
    gsn: Ints,
    trx: Ints,
) -> Rows:
    """Return a batch. befores: columns of keys, by their place."""
    after = pa.StructArray.from_arrays(
        afters, fields=list(after_type(relation)), mask=pa.array(~is_put)
    )
    before = pa.StructArray.from_arrays(
        [befores[at] for at in relation.before],
        fields=list(before_type(relation)),
        mask=pa.array(is_put),
    )
    columns = [
        pa.array(gsn),
        pa.array(trx),
        pa.array(np.where(is_put, int(Op.UPDATE), int(Op.DELETE)).astype(np.uint8)),
        pa.nulls(len(is_put), pa.binary()),
        after,
        before,
    ]
    schema = batch_schema(relation)
    return Rows(relation=relation, batch=pa.RecordBatch.from_arrays(columns, schema=schema))


class _Unfit(Exception):
    """Columns need types that hold more."""

    def __init__(self) -> None:
        super().__init__()
        self.columns: list[tuple[KeptColumn, str]] = []

    def grow(self, shapes: Shapes, cache: str) -> None:
        for column, kind in self.columns:
            if kind == column.kind:
                shapes.hold_text(cache, column.name)
            else:
                shapes.hold(cache, column.side, column.field, kind)


def _bytes_of(changes: Changes, side: str) -> list[bytes]:
    return changes.list_marshalled("key" if side == OF_KEY else "value")


def _pick(column: KeptColumn, found: list[Any]) -> list[Any]:
    """Return a column's values, taken from keys or from values; None if neither has them."""
    name = column.field
    if set(map(type, found)) <= {BinaryObject}:
        return [one.fields.get(name) for one in found] if name else [None] * len(found)
    if not name:
        return [None if type(one) is BinaryObject else one for one in found]
    return [one.fields.get(name) if type(one) is BinaryObject else None for one in found]


def _column_of(side: str, name: str) -> KeptColumn:
    return KeptColumn(name="", side=side, field=name, kind="", neutral="")


def _check_key(cache: str, column: KeptColumn, made: pa.Array) -> None:
    if made.null_count:
        raise KeyNotUsable(
            f"cache {cache} has a key without {column.name}: rows are found by all columns of "
            "their key",
            hint=f'Leave the cache out: "!{cache}" in [source] tables. Keys that lack a field, or '
            "of different types in one cache, cannot be a table's key.",
            cache=cache,
            column=column.name,
        )


def _where(made: pa.Array, wanted: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the values of these rows, NULL at the others."""
    if wanted.all():
        return made
    return made.take(pa.array(np.arange(len(made)), mask=~wanted))


def _spread(made: pa.Array, is_put: npt.NDArray[np.bool_]) -> pa.Array:
    """Return one value per row, given one value per put."""
    if is_put.all():
        return made
    if not len(made):
        return pa.nulls(len(is_put), made.type)
    return made.take(pa.array(np.cumsum(is_put) - 1, mask=~is_put))
