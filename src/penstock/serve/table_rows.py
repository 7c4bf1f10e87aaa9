"""Rows for a query of one table, from a held state, as messages of the wire.

Rows are streamed: one piece of the table is in memory, unless rows have to be sorted. Blocking,
for worker threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.held import HeldState
from penstock.base.state import as_inserts
from penstock.codec.columns import arrow_type
from penstock.codec.postgres import row_messages as messages
from penstock.codec.postgres.pgtypes import wire_type
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.types.mapping import Choices
from penstock.codec.types.served import Unservable
from penstock.model import Column, Relation, TableName
from penstock.serve.catalog.grammar import make_unsupported
from penstock.serve.catalog.publications import Published
from penstock.serve.catalog.types import (
    BOOL,
    BPCHAR,
    FLOAT4,
    FLOAT8,
    INT4,
    INT8,
    INTEGERS,
    NUMERIC,
    TEXT,
    TIMES,
    VARCHAR,
)
from penstock.serve.compare import sort_keys
from penstock.serve.forms import PgOutput
from penstock.serve.table_query import Order, TableQuery, Target
from penstock.serve.tables import TableView, served_relation

SORTED_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Column of the answer.

    Attributes:
        type_oid: as announced.
        typmod: as announced.
        number: in the table.
    """

    name: str
    type_oid: int
    typmod: int
    number: int


class TableRows:
    """One query, answered from one state."""

    def __init__(
        self,
        held: HeldState,
        table: TableName,
        query: TableQuery,
        engine: str,
        choices: Choices,
    ) -> None:
        """Begin to read; `engine` is that of the log's source. Raises TableNotInBase, Refused."""
        self._query = query
        held.table(table)
        self._pieces = held.pieces(table)
        first = next(self._pieces)
        self._view = _view_of(first.relation, query, engine, choices)
        self._answered = _list_answered(self._view.relation, query)
        self.columns = tuple(one.shown for one in self._answered)
        is_binary = query.copy is not None and query.copy.is_binary
        self._formats = [int(is_binary)] * len(self.columns)
        batches = self._sort(self._read())
        if query.is_aggregate:
            batches = self._aggregate(batches)
        self._batches = batches if _is_exists(query) else self._limit(batches)
        self._current: pa.RecordBatch | None = None

    def block(self, count: int) -> tuple[bytes, int]:
        """Return messages of at most `count` next rows, and their number: 0 at the end."""
        if self._current is None or not self._current.num_rows:
            self._current = next(self._batches, None)
        if self._current is None:
            return b"", 0
        some = self._current.slice(0, count)
        self._current = self._current.slice(some.num_rows)
        return self._encode(some), some.num_rows

    def set_formats(self, formats: Sequence[int]) -> None:
        """Set the format of each column for the next rows: 1 is binary, 0 is text. An empty list
        means text.
        """
        self._formats = list(formats) or [0] * len(self.columns)

    def header(self) -> bytes:
        """Return the message with the columns' names that a COPY begins with, or b""."""
        copy = self._query.copy
        if copy is None or not copy.header:
            return b""
        names = [pa.array([one.name.encode()], pa.large_binary()) for one in self.columns]
        return self._lines(names, 1, [False] * len(names))

    def close(self) -> None:
        """Stop reading."""
        self._pieces.close()

    def _aggregate(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the one row of aggregates over all rows."""
        if _is_exists(self._query):
            found: list[Any] = [pa.array([any(True for _ in self._limit(batches))])]
        else:
            every = [_Aggregate(one) for one in self._answered]
            for batch in batches:
                for one in every:
                    one.add(batch)
            found = [one.result() for one in every]
        names = [f"{place}" for place in range(len(found))]
        yield pa.RecordBatch.from_arrays(found, names=names)

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Yield rows that fulfil the condition, in the shape of the view."""
        for piece in self._pieces:
            try:
                found = self._view.rows(as_inserts(piece))
            except Unservable as error:
                raise Refused("22P05", str(error)) from error
            if found.num_rows:
                columns = found.column("after").flatten()
                names = [f"{place}" for place in range(len(columns))]
                yield pa.RecordBatch.from_arrays(columns, names=names)

    def _sort(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        query = self._query
        if not query.order:
            yield from batches
            return
        relation = self._view.relation
        keys = [_SortKey.of(relation, one) for one in query.order]
        wanted = None if query.limit is None else query.limit + query.offset
        kept: list[pa.RecordBatch] = []
        for batch in batches:
            kept.append(batch)
            if sum(one.nbytes for one in kept) > SORTED_BYTES_MAX // 2:
                kept = [_in_order(kept, keys, wanted)]
            if sum(one.nbytes for one in kept) > SORTED_BYTES_MAX:
                raise Refused(
                    "54000",
                    "too many rows to be sorted here",
                    hint="Ask without ORDER BY, or with a LIMIT, and sort at the client.",
                )
        if kept:
            yield _in_order(kept, keys, wanted)

    def _limit(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        skip, left = self._query.offset, self._query.limit
        for batch in batches if left != 0 else ():
            rows = batch.slice(min(skip, batch.num_rows))
            skip -= batch.num_rows - rows.num_rows
            if left is not None:
                rows = rows.slice(0, left)
                left -= rows.num_rows
            if rows.num_rows:
                yield rows
            if left == 0:
                return

    def _encode(self, batch: pa.RecordBatch) -> bytes:
        cells = []
        for at, one in enumerate(self._answered):
            if self._query.is_aggregate:
                values = batch.column(at)
            elif one.place is None:
                values = one.repeat(batch.num_rows)
            else:
                values = batch.column(one.place)
            binary = self._formats[at]
            make = messages.binary_cells if binary else messages.text_cells
            cells.append(make(values, one.column))
        copy, count = self._query.copy, batch.num_rows
        if copy is None or copy.is_binary:
            return messages.row_messages(b"D" if copy is None else b"d", cells, count)
        forced = copy.force_quote
        is_quoted = [forced is None or one.name in forced for one in self.columns]
        return self._lines(cells, count, is_quoted)

    def _lines(self, cells: list[Any], count: int, is_quoted: Sequence[bool]) -> bytes:
        copy = self._query.copy
        assert copy is not None, "lines are a COPY's"
        delimiter, null = copy.delimiter.encode(), copy.null.encode()
        if copy.format == "text":
            return messages.copy_lines(cells, count, delimiter=delimiter, null=null)
        return messages.csv_lines(
            cells,
            count,
            delimiter=delimiter,
            null=null,
            quote=copy.quote.encode(),
            escape=copy.escape.encode(),
            is_quoted=is_quoted,
        )


class _Aggregate:
    """One `count`, `max` or `min`, over all batches; or a constant beside them."""

    def __init__(self, answered: _Answered) -> None:
        self._answered, self._count = answered, 0
        self._best: Any = None  # an array of one value

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        answered = self._answered
        if answered.place is None:
            self._count += batch.num_rows
            return
        values = batch.column(answered.place)
        values = values.filter(pc.is_valid(values))
        self._count += len(values)
        if answered.sort_key is not None and len(values):
            if self._best is not None:
                values = pa.concat_arrays([self._best, values])
            table = pa.RecordBatch.from_arrays([values], names=[f"{answered.place}"])
            self._best = _in_order([table], [answered.sort_key], 1).column(0)

    def result(self) -> Any:
        """Return an array of one value."""
        answered = self._answered
        if answered.function == "count":
            return pa.array([self._count], pa.int64())
        if not answered.function:
            return answered.repeat(1)
        return pa.nulls(1, answered.kind) if self._best is None else self._best


@dataclass(frozen=True, slots=True, kw_only=True)
class _SortKey:
    """One key to sort by: a column of a batch, by its name."""

    name: str
    descending: bool
    nulls_first: bool
    is_padded: bool

    @classmethod
    def of(cls, relation: Relation, order: Order) -> _SortKey:
        """Return the key of a column. Raises Refused for one whose order is not known here."""
        place = _place(relation, order.column)
        column = relation.columns[place]
        kind = column.source_type.partition("(")[0]
        if column.neutral == "string" and kind not in _TEXTS:
            raise Refused("0A000", f"ORDER BY {order.column}: its order is not known here")
        return cls(
            name=f"{place}",
            descending=order.descending,
            nulls_first=order.nulls_first,
            is_padded=kind == "character",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answered:
    """Column of the answer.

    Attributes:
        column: type of its values for printing.
        place: in the rows that are read; None for a constant and a count of rows.
        sort_key: sorts the greatest or least value first.
    """

    shown: Shown
    column: Column
    place: int | None = None
    function: str = ""
    text: str | None = None
    sort_key: _SortKey | None = None

    @property
    def kind(self) -> pa.DataType:
        """Arrow's type of its values."""
        return arrow_type(self.column.neutral)

    def repeat(self, count: int) -> Any:
        """Return a constant as `count` values."""
        value: Any = self.text
        if value is not None and self.column.neutral != "string":
            value = value == "t" if self.column.neutral == "bool" else int(value)
        return pa.array([value] * count, self.kind)


_CONSTANTS = {
    INT4: Column(name="", source_type="integer", neutral="int32"),
    INT8: Column(name="", source_type="bigint", neutral="int64"),
    BOOL: Column(name="", source_type="boolean", neutral="bool"),
    TEXT: Column(name="", source_type="text", neutral="string"),
}
# These types have max() and min(); the others do not in versions up to 17.
_EXTREMES = (*INTEGERS, 26, NUMERIC, FLOAT4, FLOAT8, TEXT, BPCHAR, VARCHAR, *TIMES, 1083)
_NO_EXTREMES = (BOOL, 17, 114, 2950, 3802)


def _is_exists(query: TableQuery) -> bool:
    return query.targets is not None and query.targets[0].function == "exists"


def _list_answered(relation: Relation, query: TableQuery) -> tuple[_Answered, ...]:
    """Return the columns of an answer. Raises Refused."""
    if query.targets is None:
        return tuple(
            _value(relation, Target(name=one.name, column=one.name)) for one in relation.columns
        )
    found = tuple(
        _value(relation, one)
        if one.column and not one.function
        else _extreme(relation, one)
        if one.function in ("max", "min")
        else _number(relation, one)
        for one in query.targets
    )
    forced = query.copy.force_quote if query.copy is not None else ()
    for name in forced or ():
        if name not in (one.shown.name for one in found):
            raise Refused("42P10", f'FORCE_QUOTE column "{name}" not referenced by COPY')
    return found


def _value(relation: Relation, target: Target) -> _Answered:
    place = _place(relation, target.column)
    column = relation.columns[place]
    oid, typmod = wire_type(column)
    shown = Shown(name=target.name, type_oid=oid, typmod=typmod, number=place + 1)
    return _Answered(shown=shown, column=column, place=place)


def _extreme(relation: Relation, target: Target) -> _Answered:
    place = _place(relation, target.column)
    column = relation.columns[place]
    oid, _ = wire_type(column)
    if oid in _NO_EXTREMES:
        kind = column.base_type or column.source_type
        raise Refused("42883", f"function {target.function}({kind}) does not exist")
    if oid not in _EXTREMES:
        raise make_unsupported(f"{target.function} of {column.source_type}")
    order = Order(column=target.column, descending=target.function == "max")
    shown = Shown(name=target.name, type_oid=TEXT if oid == VARCHAR else oid, typmod=-1, number=0)
    return _Answered(
        shown=shown,
        column=column,
        place=place,
        function=target.function,
        sort_key=_SortKey.of(relation, order),
    )


def _number(relation: Relation, target: Target) -> _Answered:
    """Return a count, an EXISTS or a constant."""
    place = _place(relation, target.column) if target.column else None
    oid = INT8 if target.function == "count" else target.type_oid
    return _Answered(
        shown=Shown(name=target.name, type_oid=oid, typmod=-1, number=0),
        column=_CONSTANTS[oid],
        place=place,
        function=target.function,
        text=target.text,
    )


def shown_columns(
    relation: Relation, query: TableQuery, engine: str, choices: Choices
) -> tuple[Shown, ...]:
    """Return the columns of an answer over a table of this shape. Raises Refused."""
    view = _view_of(relation, query, engine, choices).relation
    return tuple(one.shown for one in _list_answered(view, query))


def _view_of(relation: Relation, query: TableQuery, engine: str, choices: Choices) -> TableView:
    shape = served_relation(relation, engine, choices)
    condition = (query.condition,) if query.condition else None
    published = Published(
        columns=None, filters={"insert": condition}, actions=frozenset(("insert",))
    )
    return TableView(relation, shape, published, PgOutput())


_TEXTS = ("text", "character varying", "varchar", "character", "name")


def _place(relation: Relation, name: str) -> int:
    for place, column in enumerate(relation.columns):
        if column.name == name:
            return place
    raise Refused("42703", f'column "{name}" of relation "{relation.name}" does not exist')


def _in_order(
    batches: Sequence[pa.RecordBatch], keys: Sequence[_SortKey], count: int | None
) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).combine_chunks()
    wanted: list[tuple[str, str]] = []
    sorted_by = pa.table({"row": pa.nulls(table.num_rows)})
    for key in keys:
        found = sort_keys(
            table.column(key.name).combine_chunks(),
            descending=key.descending,
            nulls_first=key.nulls_first,
            is_padded=key.is_padded,
        )
        for values, direction in found:
            wanted.append((f"{len(wanted)}", direction))
            sorted_by = sorted_by.append_column(wanted[-1][0], values)
    order = pc.sort_indices(sorted_by, sort_keys=wanted)
    found = table.take(order if count is None else order.slice(0, count)).combine_chunks()
    return found.to_batches()[0] if found.num_rows else batches[0].slice(0, 0)
