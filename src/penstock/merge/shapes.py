"""One shape of a table for the rows of all inputs that have it.

Each input's shape changes when its own server's does. The merged log has the columns that any
input has: rows of an input that does not have a column yet, or has dropped it already, leave the
column as it is. So a change that is rolled out server by server is one change, at the first server
that adds a column and at the last that drops one. The merged shape's columns have identities of
their own. The inputs' columns are mapped to them by name when a column is first seen, and by
identity from then on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.shapes import copied_at
from penstock.codec.columns import after_type, arrow_type, batch_schema, before_type, cast_exactly
from penstock.codec.exact_text import exact_texts
from penstock.model import Column, Op, PenstockError, Relation, TableName

_WIDER = ("int16", "int32", "int64"), ("float32", "float64")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")


class ShapesDiffer(PenstockError):
    """Two logs have a table of one name whose rows cannot be in one table.

    Fields: table, input.
    """

    code = "MG03"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of the merged column for an input's column.

    Attributes:
        column: `#` and its identity in the input, or its name if the input has no identities.
        merged: its identity in the merged log.
    """

    input: str
    table: TableName
    source_id: int
    column: str
    merged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Place of the copy that an input's base had a table from, in the input's log."""

    input: str
    table: TableName
    source_id: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeState:
    """Saved part of the shapes.

    Attributes:
        since: the last transaction of the merged log before these shapes.
        merged: in the merged log.
        current: by input, as in its own log except that the identities are the merged ones.
        identities: of all columns that any input has had.
        copied: of tables whose copies have no identities.
    """

    since: int = 0
    merged: tuple[Relation, ...] = ()
    current: tuple[tuple[str, Relation], ...] = ()
    identities: tuple[Identity, ...] = ()
    copied: tuple[Copied, ...] = ()


@dataclass
class Shapes:
    """Current shapes. Used by one thread. Tables are counted from 1: servers' ids differ.

    Attributes:
        merged: in the merged log.
        has_news: anything differs from the last call of `state`. An input that joins a table
            counts, even if the merged shape stays the same.
    """

    merged: dict[TableName, Relation] = field(default_factory=dict)
    has_news: bool = False
    _current: dict[TableName, dict[str, Relation]] = field(default_factory=dict)
    _identities: dict[TableName, dict[tuple[str, int, str], int]] = field(default_factory=dict)
    _copied: dict[tuple[TableName, str, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, state: ShapeState) -> Shapes:
        """Return saved shapes."""
        made = cls({_name(one): one for one in state.merged})
        for name, relation in state.current:
            made._current.setdefault(_name(relation), {})[name] = relation
        for one in state.identities:
            key = (one.input, one.source_id, one.column)
            made._identities.setdefault(one.table, {})[key] = one.merged
        made._copied = {(one.table, one.input, one.source_id): one.position for one in state.copied}
        return made

    def state(self, since: int) -> ShapeState:
        """Return the state to save."""
        self.has_news = False
        current = [(name, r) for of in self._current.values() for name, r in of.items()]
        identities = [
            Identity(input=key[0], table=table, source_id=key[1], column=key[2], merged=merged)
            for table, of in self._identities.items()
            for key, merged in of.items()
        ]
        return ShapeState(
            since=since,
            merged=tuple(self.merged.values()),
            current=tuple(current),
            identities=tuple(identities),
            copied=tuple(
                Copied(input=name, table=table, source_id=number, position=position)
                for (table, name, number), position in self._copied.items()
            ),
        )

    def inputs_of(self, table: TableName) -> frozenset[str]:
        """Return the inputs that have had rows or shapes of a table."""
        return frozenset(self._current.get(table, ()))

    def apply(self, name: str, relation: Relation) -> bool:
        """Apply an input's shape of a table; return whether the merged shape changed.

        Raises ShapesDiffer.
        """
        table = _name(relation)
        if self._is_known(table, name, relation):
            return False
        found = self._identify(table, name, relation)
        self._identities[table] = {**self._identities.get(table, {}), **found}
        position = copied_at(relation)
        if position is not None:
            self._copied[table, name, relation.source_id] = position
        self.has_news = True
        relation = self.number_columns(name, relation)
        made = self._merge_shape(table, name, relation)
        self._current.setdefault(table, {})[name] = relation
        before = self.merged.get(table)
        if before is made:
            return False
        self.merged[table] = made
        return True

    def would_change(self, name: str, relation: Relation) -> bool:
        """Return the result of `apply` without a change. Raises ShapesDiffer."""
        table = _name(relation)
        if self._is_known(table, name, relation):
            return False
        found = self._identify(table, name, relation)
        relation = _with_ids(name, relation, found)
        return self._merge_shape(table, name, relation) is not self.merged.get(table)

    def number_columns(self, name: str, relation: Relation) -> Relation:
        """Return an input's shape with the merged identities; it has been applied before."""
        return _with_ids(name, relation, self._identities[_name(relation)])

    def _identify(
        self, table: TableName, name: str, relation: Relation
    ) -> dict[tuple[str, int, str], int]:
        """Return the merged identities of an input's columns."""
        known = self._identities.get(table, {})
        merged = self.merged.get(table)
        by_name = {column.name: column.id for column in (merged.columns if merged else ())}
        current = self._current.get(table, {}).get(name)
        # Columns of a table that was created again match by name.
        is_same = current is not None and current.source_id == relation.source_id
        own = {column.id for column in current.columns} if current and is_same else set()
        last = max(known.values(), default=0)
        position = self._copied.get((table, name, relation.source_id))
        # A name that is only spelled in another case since the copy is the same one.
        folded = {
            (one, source_id, text.lower()): number
            for (one, source_id, text), number in known.items()
            if position is not None
        }
        found = {}
        for column in relation.columns:
            key = _key(name, relation, column)
            then = column.name if position is None else column.name_at(position) or ""
            copied = (name, relation.source_id, then)
            number = known.get(key) or known.get(copied) or folded.get((*copied[:2], then.lower()))
            if number is None and by_name.get(column.name, 0) not in own:
                number = by_name.get(column.name)
            if not number:
                last += 1
                number = last
            found[key] = number
        return found

    def _is_known(self, table: TableName, name: str, relation: Relation) -> bool:
        """Return whether an input has had this shape, now or before."""
        known = self._current.get(table, {}).get(name)
        return known is not None and 0 < relation.version <= known.version

    def precedes_copy(self, name: str, relation: Relation) -> bool:
        """Return whether a shape is of a statement before the copy that an input began with."""
        position = self._copied.get((_name(relation), name, relation.source_id))
        return position is not None and 0 < relation.since <= position

    def _merge_shape(self, table: TableName, name: str, relation: Relation) -> Relation:
        """Return the merged shape with this shape of an input; the previous one if it is equal."""
        before = self.merged.get(table)
        shapes = {**self._current.get(table, {}), name: relation}
        made = _join(list(shapes.values()), relation, before)
        if made is None:
            raise ShapesDiffer(
                f"{table} of {name} has columns whose values cannot be in one table with those of "
                f"{', '.join(sorted(self.inputs_of(table) - {name}))}",
                hint="Make the types of the table's columns and its key the same at all servers; "
                "or let one pipeline leave the table out ([source] tables), with its directory "
                "created again.",
                table=str(table),
                input=name,
            )
        if before is not None and before.same_shape(made):
            return before
        return replace(
            made,
            source_id=before.source_id if before is not None else len(self.merged) + 1,
            version=before.version + 1 if before is not None else 1,
        )


def _name(relation: Relation) -> TableName:
    return TableName(relation.schema, relation.name)


def _key(name: str, relation: Relation, column: Column) -> tuple[str, int, str]:
    """Return the identity of a column of an input."""
    return name, relation.source_id, f"#{column.id}" if column.id else column.name


def _with_ids(
    name: str, relation: Relation, identities: Mapping[tuple[str, int, str], int]
) -> Relation:
    columns = tuple(
        replace(column, id=identities[_key(name, relation, column)]) for column in relation.columns
    )
    return replace(relation, columns=columns)


def _join(shapes: Sequence[Relation], newest: Relation, before: Relation | None) -> Relation | None:
    """Return a shape for the rows of all of these; None if there is none.

    Args:
        shapes: the inputs' shapes.
        newest: the shape that decides the order of columns.
        before: the previous merged shape.
    """
    first = newest
    columns = list(first.columns)
    for shape in shapes:
        for column in shape.columns:
            place = _place(columns, column)
            if place is None:
                columns.append(replace(column, nullable=True))
                continue
            joined = _both(columns[place], column)
            if joined is None:
                return None
            columns[place] = joined
    named = [_names(columns, shape, shape.before) for shape in shapes]
    keys = {_names(columns, shape, shape.key) for shape in shapes}
    if len(keys) > 1:
        return None
    for place, column in enumerate(columns):
        if any(_column_of(shape, column) is None for shape in shapes):
            columns[place] = replace(columns[place], nullable=True)
    kept = [place for place in named[0] if all(place in one for one in named)]
    made = Relation(
        schema=first.schema,
        name=first.name,
        columns=tuple(columns),
        key=next(iter(keys)),
        before=tuple(kept),
        identity=first.identity,
        source_id=before.source_id if before is not None else 0,
        version=before.version if before is not None else 1,
        awaits_reload=next((shape.awaits_reload for shape in shapes if shape.awaits_reload), ""),
        types=tuple(dict.fromkeys(one for shape in shapes for one in shape.types)),
        notes=first.notes,
    )
    return made if len({column.name for column in columns}) == len(columns) else None


def _place(columns: Sequence[Column], column: Column) -> int | None:
    """Return a column's place among others, by its identity; None if it is not among them."""
    return next((place for place, one in enumerate(columns) if one.id == column.id), None)


def _names(columns: Sequence[Column], shape: Relation, indexes: Sequence[int]) -> tuple[int, ...]:
    """Return the places of some of a shape's columns among the joined ones."""
    found = (_place(columns, shape.columns[index]) for index in indexes)
    return tuple(place for place in found if place is not None)


def _column_of(shape: Relation, column: Column) -> int | None:
    return _place(shape.columns, column)


def _both(one: Column, other: Column) -> Column | None:
    """Return a column that can hold the values of both columns, with the first one's name; None if
    there is none.
    """
    neutral = _wider(one.neutral, other.neutral)
    if neutral is None:
        return None
    return replace(
        one,
        neutral=neutral,
        source_type=one.source_type if neutral == one.neutral else other.source_type,
        nullable=one.nullable or other.nullable,
        missing=one.missing if one.missing is not None else other.missing,
    )


def _wider(one: str, other: str) -> str | None:
    if one == other:
        return one
    if "string" in (one, other):
        return "string"
    for row in _WIDER:
        if one in row and other in row:
            return max(one, other, key=row.index)
    first, second = _DECIMAL.match(one), _DECIMAL.match(other)
    if first is not None and second is not None and first[2] == second[2]:
        return max(one, other, key=len) if len(one) != len(other) else max(one, other)
    return None


def convert_rows(batch: pa.RecordBatch, relation: Relation, into: Relation) -> pa.RecordBatch:
    """Return rows of one shape as another has them. Missing columns are ABSENT, or filled.

    In an insert a missing column has the value that older rows have in it; NULL if there is none.

    Args:
        batch: the rows.
        relation: their shape, with the merged identities (`Shapes.number_columns`).
        into: the other shape.
    """
    schema = batch_schema(into)
    if batch.schema.equals(schema):
        return batch
    if batch_schema(relation).equals(schema):
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    ops = batch.column("op").to_numpy()
    places = [_column_of(relation, column) for column in into.columns]
    after, before = batch.column("after"), batch.column("before")
    images = [
        _cast(after.field(place), relation.columns[place], column)
        if place is not None
        else _fill_column(column, ops)
        for place, column in zip(places, into.columns, strict=True)
    ]
    olds = []
    for index in into.before:
        column = into.columns[index]
        place = _column_of(relation, column)
        assert place is not None, "the joined shape has only columns that all of them have"
        old = before.field(relation.before.index(place))
        olds.append(_cast(old, relation.columns[place], column))
    columns = [
        *batch.columns[:3],
        _absent(batch.column("absent"), places, ops),
        pa.StructArray.from_arrays(images, fields=list(after_type(into)), mask=after.is_null()),
        pa.StructArray.from_arrays(olds, fields=list(before_type(into)), mask=before.is_null())
        if olds
        else pa.nulls(len(batch), before_type(into)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(values: pa.Array, old: Column, new: Column) -> pa.Array:
    kind = arrow_type(new.neutral)
    if values.type.equals(kind):
        return values
    if new.neutral == "string":
        return pa.array(exact_texts(values, old.neutral), pa.string())
    return cast_exactly(values, kind)


def _fill_column(column: Column, ops: npt.NDArray[np.uint8]) -> pa.Array:
    kind = arrow_type(column.neutral)
    if column.missing is None:
        return pa.nulls(len(ops), kind)
    texts = pa.array([column.missing if op == Op.INSERT else None for op in ops.tolist()])
    return cast_exactly(texts.cast(pa.string()), kind)


def _absent(old: pa.Array, places: Sequence[int | None], ops: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the column `absent`: an update lacks the columns that its table lacks."""
    lacking = [index for index, place in enumerate(places) if place is None]
    if old.null_count == len(old) and not lacking:
        return old
    size = (len(places) + 7) // 8
    found: list[bytes | None] = []
    for bits, op in zip(old.to_pylist(), ops.tolist(), strict=True):
        had = int.from_bytes(bits or b"", "little")
        new = sum(1 << i for i, at in enumerate(places) if at is not None and had >> at & 1)
        if op == Op.UPDATE:
            new |= sum(1 << i for i in lacking)
        found.append(new.to_bytes(size, "little") if new else None)
    return pa.array(found, pa.binary())
