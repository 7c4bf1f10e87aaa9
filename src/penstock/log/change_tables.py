"""Changes of one table as Arrow columns: columns of the change and columns of the row.

Rows of several versions of a table's shape are joined into one table: a column has the narrowest
type that holds every version's values exactly, or text if there is none. Pure. Not here: which
segments are read (`changes.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.ckt import FrameEntry
from penstock.codec.columns import (
    DECIMAL_PRECISION_MAX,
    POSITION,
    arrow_type,
    bits,
    cast_exactly,
)
from penstock.codec.exact_text import exact_texts, uuid_texts
from penstock.log.transactions import halves
from penstock.model import Column, FlushPoint, Marker, MarkerKind, Op, Relation, Rows, TableName
from penstock.model.position import to_bytes

if TYPE_CHECKING:
    from penstock.log.segment import Segment

TRUNCATE = "truncate"
OPERATIONS: dict[int, str] = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}
# A reload begins with an empty table; its rows follow as inserts.
EMPTYING = (MarkerKind.TRUNCATE, MarkerKind.RELOAD)
_HEAD = ("gsn", "trx", "position", "commit_time", "op", "absent")
_TIME = pa.timestamp("us", "UTC")
_NAMES = pa.list_(pa.string())
_HEAD_TYPES = (pa.int64(), pa.int64(), pa.uint64(), _TIME, pa.string(), _NAMES)
_POSITION_AT = _HEAD.index("position")
_SENT = "sent"
_BEFORE = "before"
ABSENT_COLUMN = _HEAD.index("absent")
_INTEGERS = (pa.int16(), pa.int32(), pa.int64())

Piece = Relation | Rows | Marker


def take_all(_table: TableName) -> bool:
    """Return True. A function of the module, so that a filter can be pickled."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFilter:
    """Limits of a reading. Times are microseconds since 1970 UTC; None means no limit.

    Attributes:
        takes: returns whether changes of a table are read.
        patterns: the patterns that `takes` stands for, for messages; empty for all tables.
        gsn_after: changes after this one; if set, the log must still have them all.
        gsn_through: the last one.
        since_us: committed then or later.
        until_us: committed before.
        trx_after: changes of transactions after this one.
        trx_through: the last transaction. Unlike a gsn it has the truncates after its last row.
    """

    takes: Callable[[TableName], bool] = take_all
    patterns: tuple[str, ...] = ()
    gsn_after: int | None = None
    gsn_through: int | None = None
    since_us: int | None = None
    until_us: int | None = None
    trx_after: int | None = None
    trx_through: int | None = None

    def takes_rows(self, entry: FrameEntry) -> bool:
        """Return whether a rows frame can hold requested changes."""
        past = self.gsn_through is not None and entry.gsn_first > self.gsn_through
        later = self.trx_through is not None and entry.trx_first > self.trx_through
        before = self.trx_after is not None and entry.trx_last <= self.trx_after
        return entry.gsn_last > (self.gsn_after or 0) and not (past or later or before)

    def is_empty_of(self, segment: Segment) -> bool:
        """Return whether a segment has no requested change. A truncate follows the row
        of its gsn.
        """
        past = self.gsn_through is not None and segment.start.gsn > self.gsn_through
        later = self.trx_through is not None and segment.start.trx >= self.trx_through
        before = self.trx_after is not None and segment.end.trx <= self.trx_after
        return past or later or before or segment.end.gsn < (self.gsn_after or 0)

    def ends_before(self, start: FlushPoint) -> bool:
        """Return whether all requested changes lie before this point, by number or by time."""
        gsn, time_us = self.gsn_through, self.until_us
        return (gsn is not None and gsn <= start.gsn) or (
            time_us is not None and time_us <= start.commit_time_us
        )

    def takes_marker(self, marker: Marker) -> bool:
        """Return whether a marker is a requested change."""
        after = marker.gsn >= (self.gsn_after or 0)
        through = self.gsn_through is None or marker.gsn <= self.gsn_through
        since = self.since_us is None or marker.commit_time_us >= self.since_us
        until = self.until_us is None or marker.commit_time_us < self.until_us
        later = self.trx_after is None or marker.trx > self.trx_after
        earlier = self.trx_through is None or marker.trx <= self.trx_through
        return after and through and since and until and later and earlier

    def rows_of(self, rows: Rows) -> Rows:
        """Return those of these rows that were requested. The rows come from `add_commit`."""
        batch = within(rows.batch, self.gsn_after, self.gsn_through, self.since_us, self.until_us)
        if self.trx_after is not None:
            later = pc.greater(batch.column("trx"), pa.scalar(self.trx_after, pa.int64()))
            batch = batch.filter(later)
        if self.trx_through is not None:
            last = pa.scalar(self.trx_through, pa.int64())
            batch = batch.filter(pc.less_equal(batch.column("trx"), last))
        return Rows(relation=rows.relation, batch=batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeShape:
    """Columns of the joined table and of its before images, with their types.

    Attributes:
        columns: of the table.
        before: of its before images.
        is_wide: positions are their 16 bytes, not numbers of 64 bits.
        has_sent: the names of the columns that were sent are a column, too.
    """

    columns: dict[str, pa.DataType]
    before: dict[str, pa.DataType]
    is_wide: bool = False
    has_sent: bool = False

    @classmethod
    def of(
        cls,
        relations: Iterable[Relation],
        *,
        is_wide: bool = False,
        has_sent: bool = False,
        only: Collection[str] | None = None,
    ) -> ChangeShape:
        """Return the shape that holds the rows of all these versions of a table.

        only: names of the columns that are wanted; None for all.
        """
        columns: dict[str, pa.DataType] = {}
        before: dict[str, pa.DataType] = {}
        for relation in dict.fromkeys(relations):
            for column in relation.columns:
                _widen(columns, column)
            for index in relation.before:
                _widen(before, relation.columns[index])
        shape = cls(columns=columns, before=before, is_wide=is_wide, has_sent=has_sent)
        return shape.only(only)

    def join(self, other: ChangeShape) -> ChangeShape:
        """Return the shape that holds the rows of both."""
        columns, before = dict(self.columns), dict(self.before)
        for types, more in ((columns, other.columns), (before, other.before)):
            for name, kind in more.items():
                types[name] = _common(types.get(name, kind), kind)
        return replace(self, columns=columns, before=before)

    def only(self, names: Collection[str] | None) -> ChangeShape:
        """Return the shape with these columns of the table; None for all."""
        if names is None:
            return self
        columns = {name: kind for name, kind in self.columns.items() if name in names}
        before = {name: kind for name, kind in self.before.items() if name in names}
        return replace(self, columns=columns, before=before)

    @property
    def schema(self) -> pa.Schema:
        """Return the schema: columns of the change, of the row, and the before image."""
        # One underscore, or as many as no column of the table begins with.
        sign = "_"
        while any(sign + name in self.columns for name in (*_HEAD, _SENT, _BEFORE)):
            sign += "_"
        heads = [pa.field(sign + name, kind) for name, kind in zip(_HEAD, _HEAD_TYPES, strict=True)]
        if self.is_wide:
            heads[_POSITION_AT] = heads[_POSITION_AT].with_type(POSITION)
        if self.has_sent:
            heads.append(pa.field(sign + _SENT, _NAMES))
        columns = [pa.field(name, kind) for name, kind in self.columns.items()]
        before = pa.struct([pa.field(name, kind) for name, kind in self.before.items()])
        return pa.schema([*heads, *columns, pa.field(sign + _BEFORE, before)])

    def table(self, piece: Rows | Marker) -> pa.Table:
        """Return rows of one version, from `add_commit`, or a marker, in this shape."""
        if isinstance(piece, Marker):
            return _of_marker(piece, self, self.schema)
        return _of_rows(piece, self, self.schema)


def pieces(segment: Segment, table: TableName, wanted: ChangeFilter) -> Iterator[Piece]:
    """Yield one table's part of a segment: its shapes, its wanted rows, and in order its
    truncates.
    """
    markers = sorted(
        (m for m in segment.markers() if m.kind in EMPTYING and tuple(table) in m.tables),
        key=lambda marker: marker.gsn,
    )
    markers = [marker for marker in markers if wanted.takes_marker(marker)]
    for totals in segment.tables:
        if (totals.schema, totals.name) == tuple(table):
            yield segment.relation(totals.id)
    for entry in segment.row_frames(table=table):
        if not wanted.takes_rows(entry):
            continue
        rows = wanted.rows_of(add_commit(segment, segment.read_rows(entry)))
        while markers and markers[0].gsn < entry.gsn_last:
            front = within(rows.batch, None, markers[0].gsn, None, None)
            yield Rows(relation=rows.relation, batch=front)
            rows = Rows(relation=rows.relation, batch=rows.batch.slice(front.num_rows))
            yield markers.pop(0)
        yield rows
    yield from markers


def add_commit(segment: Segment, rows: Rows) -> Rows:
    """Return rows of a segment with two more columns: position and time of the commit."""
    return Rows(relation=rows.relation, batch=segment.add_commit(rows.batch))


def within(
    batch: Any, after: int | None, through: int | None, since_us: int | None, until_us: int | None
) -> Any:
    """Return the rows of an `add_commit` batch within these limits; see `ChangeFilter`."""
    gsn, time = batch.column("gsn"), batch.column("commit_time")
    limits = (
        (pc.greater, gsn, after, pa.int64()),
        (pc.less_equal, gsn, through, pa.int64()),
        (pc.greater_equal, time, since_us, _TIME),
        (pc.less, time, until_us, _TIME),
    )
    masks = [
        test(column, pa.scalar(to, kind)) for test, column, to, kind in limits if to is not None
    ]
    return batch.filter(functools.reduce(pc.and_, masks)) if masks else batch


def join_pieces(found: Sequence[Piece], *, wide: bool = False) -> pa.Table:
    """Return pieces of one table as one Arrow table; see `ChangeLog.table`.

    Args:
        found: the pieces, in order.
        wide: positions are returned as their 16 bytes, not as numbers of 64 bits.
    """
    shape = ChangeShape.of((piece for piece in found if isinstance(piece, Relation)), is_wide=wide)
    tables = [shape.table(piece) for piece in found if not isinstance(piece, Relation)]
    return pa.concat_tables([shape.schema.empty_table(), *tables])


def _widen(types: dict[str, pa.DataType], column: Column) -> None:
    kind = pa.string() if column.neutral == "uuid" else arrow_type(column.neutral)
    types[column.name] = _common(types.get(column.name, kind), kind)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the narrowest type that holds the values of both exactly; text if there is none."""
    if one == other:
        return one
    if one in _INTEGERS and other in _INTEGERS:
        return max(one, other, key=_INTEGERS.index)
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        precision = max(one.precision - one.scale, other.precision - other.scale) + scale
        if precision <= DECIMAL_PRECISION_MAX:
            return pa.decimal128(precision, scale)
    return pa.string()


def _of_rows(rows: Rows, shape: ChangeShape, schema: pa.Schema) -> pa.Table:
    batch, relation = rows.batch, rows.relation
    is_delete = pc.equal(batch.column("op"), pa.scalar(int(Op.DELETE), pa.uint8()))
    names = [column.name for column in relation.columns]
    after = dict(zip(names, batch.column("after").flatten(), strict=True))
    before_names = [relation.columns[index].name for index in relation.before]
    before = dict(zip(before_names, batch.column("before").flatten(), strict=True))
    neutral = {column.name: column.neutral for column in relation.columns}
    values = []
    for name, kind in shape.columns.items():
        if name not in after:
            values.append(pa.nulls(batch.num_rows, kind))
            continue
        column = after[name]
        if name in before:
            column = pc.if_else(is_delete, before[name], column)
        values.append(_as(column, neutral[name], kind))
    positions = batch.column("position")
    if not shape.is_wide:
        positions = pa.array(halves(positions)[1])
    heads = [batch.column("gsn"), batch.column("trx"), positions, batch.column("commit_time")]
    absent, sent = _absent(rows, shape)
    told = [absent, sent] if shape.has_sent else [absent]
    arrays = [*heads, operations(batch), *told, *values]
    arrays.append(_before(batch, before, neutral, shape))
    return pa.Table.from_arrays(arrays, schema=schema)


def _as(values: Any, neutral: str, kind: pa.DataType) -> Any:
    if kind == pa.string() and values.type != kind:
        if neutral == "uuid":
            return uuid_texts(values)
        return pa.array(exact_texts(values, neutral), kind)
    return cast_exactly(values, kind)


def operations(batch: Any) -> Any:
    """Return the names of the operations of a batch's rows."""
    names = pa.array([OPERATIONS.get(number) for number in range(256)])
    return names.take(batch.column("op"))


def _absent(rows: Rows, shape: ChangeShape) -> tuple[Any, Any]:
    """Return for each row the names of the columns that were not sent, and of those that were.

    Rows have few kinds: the lists are made once for each.
    """
    relation = rows.relation
    names = [column.name for column in relation.columns]
    unknown = [name for name in shape.columns if name not in set(names)]
    in_before = {names[index] for index in relation.before}
    lacking = [f"before.{name}" for name in shape.before if name not in in_before]
    masks = rows.batch.column("absent").dictionary_encode()
    texts: list[bytes | None] = [*masks.dictionary.to_pylist(), None]
    mask_at = np.asarray(masks.indices.fill_null(len(texts) - 1)).astype(np.int64)
    ops = np.asarray(rows.batch.column("op")).astype(np.int64)
    has_before = np.asarray(
        rows.batch.column("before").is_valid().to_numpy(zero_copy_only=False)
    ).astype(np.int64)
    kinds, kind_at = np.unique((mask_at * 2 + has_before) * 256 + ops, return_inverse=True)
    absent: list[list[str]] = []
    sent: list[list[str]] = []
    for kind in kinds.tolist():
        rest, op = divmod(kind, 256)
        at, has = divmod(rest, 2)
        if op == Op.DELETE:
            found = [name for name in names if not has or name not in in_before]
        else:
            found = [names[bit] for bit in bits(texts[at])]
        found = [name for name in found if name in shape.columns]
        absent.append([*found, *unknown, *(lacking if has else ())])
        sent.append([name for name in names if name in shape.columns and name not in found])
    places = pa.array(kind_at)
    return pa.array(absent, _NAMES).take(places), pa.array(sent, _NAMES).take(places)


def _before(batch: Any, before: dict[str, Any], neutral: dict[str, str], shape: ChangeShape) -> Any:
    mask = pc.invert(batch.column("before").is_valid())
    fields = [pa.field(name, kind) for name, kind in shape.before.items()]
    if not fields:
        return pa.array([None] * batch.num_rows, pa.struct([]))
    children = [
        _as(before[name], neutral[name], kind) if name in before else pa.nulls(batch.num_rows, kind)
        for name, kind in shape.before.items()
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _of_marker(marker: Marker, shape: ChangeShape, schema: pa.Schema) -> pa.Table:
    position = to_bytes(marker.position) if shape.is_wide else marker.position
    heads = [marker.gsn, marker.trx, position, marker.commit_time_us, TRUNCATE]
    told: list[list[str]] = [list(shape.columns), []] if shape.has_sent else [list(shape.columns)]
    row = [*heads, *told, *(None for _ in shape.columns), None]
    arrays = [pa.array([value], field.type) for value, field in zip(row, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def for_python(table: pa.Table) -> pa.Table:
    """Return the table with text for dates whose years Python does not have."""
    for at, field in enumerate(table.schema):
        if field.type == pa.date32() and not _has_python_years(table.column(at)):
            texts = exact_texts(table.column(at).combine_chunks(), "date")
            table = table.set_column(at, field.name, pa.array(texts, pa.string()))
    return table


def _has_python_years(dates: Any) -> bool:
    days = pc.min_max(dates.cast(pa.int32())).as_py()
    return days["min"] is None or (days["min"] >= -719_162 and days["max"] <= 2_932_896)


def for_spark(table: pa.Table) -> pa.Table:
    """Return the table with types that Spark has: no unsigned numbers, times of day as text."""
    for at, field in enumerate(table.schema):
        kind, column = field.type, table.column(at)
        if kind == pa.uint64():
            table = table.set_column(at, field.name, cast_exactly(column, pa.decimal128(20, 0)))
        elif kind == pa.uint32():
            table = table.set_column(at, field.name, column.cast(pa.int64()))
        elif kind == POSITION:
            table = table.set_column(at, field.name, column.cast(pa.binary()))
        elif kind == pa.time64("us"):
            texts = exact_texts(column.combine_chunks(), "time")
            table = table.set_column(at, field.name, pa.array(texts, pa.string()))
    return table
