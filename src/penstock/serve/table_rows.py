"""The rows that a question of one table asks for, from a held state, as messages of the wire.

Streams: one piece of the table is in memory, but where rows have to be sorted. Blocking, for worker
threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.held import HeldState
from penstock.base.state import as_inserts
from penstock.codec.postgres import row_messages as messages
from penstock.codec.postgres.pgtypes import wire_type
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.types.losses import Choices
from penstock.codec.types.served import Unservable
from penstock.model import Column, Relation, TableName
from penstock.serve.catalog.publications import Published
from penstock.serve.forms import PgOutput
from penstock.serve.table_query import Order, TableQuery
from penstock.serve.tables import TableView, served_relation

SORTED_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A column of the answer. type_oid, typmod: as it is announced; number: in the table."""

    name: str
    type_oid: int
    typmod: int
    number: int


class TableRows:
    """One question, answered from one state."""

    def __init__(
        self,
        held: HeldState,
        table: TableName,
        query: TableQuery,
        engine: str,
        choices: Choices,
        formats: Sequence[int] = (),
    ) -> None:
        """engine: of the log's source. formats: 1 for each column that is wanted in binary.

        Raises TableNotInBase, Refused.
        """
        self._query = query
        held.table(table)
        self._pieces = held.pieces(table)
        first = next(self._pieces)
        self._view = _view_of(first.relation, query, engine, choices)
        self._places = _places(self._view.relation, query)
        self.columns = _shown(self._view.relation, query)
        self._formats = list(formats) or [int(query.binary)] * len(self.columns)
        self._batches = self._limited(self._sorted(self._read()))
        self._current: pa.RecordBatch | None = None
        self._is_counted = False

    def block(self, count: int) -> tuple[bytes, int]:
        """Messages of the next rows, at most so many; and how many rows: 0 at the end."""
        if self._query.counts:
            return self._counted()
        if self._current is None or not self._current.num_rows:
            self._current = next(self._batches, None)
        if self._current is None:
            return b"", 0
        some = self._current.slice(0, count)
        self._current = self._current.slice(some.num_rows)
        return self._encoded(some), some.num_rows

    def close(self) -> None:
        """Nobody asks for more."""
        self._pieces.close()

    def _counted(self) -> tuple[bytes, int]:
        if self._is_counted:
            return b"", 0
        self._is_counted = True
        column = Column(name="count", source_type="bigint", neutral="int64")
        values = pa.array([sum(batch.num_rows for batch in self._batches)], pa.int64())
        return self._messages([self._cells(values, column, 0)], 1), 1

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Rows that fulfil the condition, as the view has them."""
        for piece in self._pieces:
            try:
                found = self._view.rows(as_inserts(piece))
            except Unservable as error:
                raise Refused("22P05", str(error)) from error
            if found.num_rows:
                columns = found.column("after").flatten()
                names = [f"{place}" for place in range(len(columns))]
                yield pa.RecordBatch.from_arrays(columns, names=names)

    def _sorted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        query = self._query
        if not query.order or query.counts:
            yield from batches
            return
        keys = [self._sort_key(one) for one in query.order]
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

    def _sort_key(self, order: Order) -> tuple[str, str]:
        place = _place(self._view.relation, order.column)
        column = self._view.relation.columns[place]
        if column.neutral == "string" and column.source_type.partition("(")[0] not in _TEXTS:
            raise Refused("0A000", f"ORDER BY {order.column}: its order is not known here")
        return f"{place}", "descending" if order.descending else "ascending"

    def _limited(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        skip, left = self._query.offset, self._query.limit
        if self._query.counts:
            skip, left = 0, None
        for batch in batches:
            rows = batch.slice(min(skip, batch.num_rows))
            skip -= batch.num_rows - rows.num_rows
            if left is not None:
                rows = rows.slice(0, left)
                left -= rows.num_rows
            if rows.num_rows:
                yield rows
            if left == 0:
                return

    def _encoded(self, batch: pa.RecordBatch) -> bytes:
        relation = self._view.relation
        cells = [
            self._cells(batch.column(place), relation.columns[place], at)
            for at, place in enumerate(self._places)
        ]
        return self._messages(cells, batch.num_rows)

    def _cells(self, values: Any, column: Column, at: int) -> Any:
        if self._formats[at]:
            return messages.binary_cells(values, column)
        return messages.text_cells(values, column)

    def _messages(self, cells: Sequence[Any], count: int) -> bytes:
        if self._query.is_copy and not self._query.binary:
            return messages.copy_lines(cells, count)
        return messages.row_messages(b"d" if self._query.is_copy else b"D", cells, count)


def shown_columns(
    relation: Relation, query: TableQuery, engine: str, choices: Choices
) -> tuple[Shown, ...]:
    """The columns of an answer over a table of this shape. Raises Refused."""
    return _shown(_view_of(relation, query, engine, choices).relation, query)


def _view_of(relation: Relation, query: TableQuery, engine: str, choices: Choices) -> TableView:
    shape = served_relation(relation, engine, choices)
    condition = (query.condition,) if query.condition else None
    published = Published(
        columns=None, filters={"insert": condition}, actions=frozenset(("insert",))
    )
    return TableView(relation, shape, published, PgOutput())


def _shown(relation: Relation, query: TableQuery) -> tuple[Shown, ...]:
    if query.counts:
        return (Shown(name=query.counts, type_oid=20, typmod=-1, number=0),)
    asked = query.columns
    found = []
    for at, place in enumerate(_places(relation, query)):
        column = relation.columns[place]
        oid, typmod = wire_type(column)
        name = column.name if asked is None else asked[at][1]
        found.append(Shown(name=name, type_oid=oid, typmod=typmod, number=place + 1))
    return tuple(found)


_TEXTS = ("text", "character varying", "varchar", "character", "name")


def _place(relation: Relation, name: str) -> int:
    for place, column in enumerate(relation.columns):
        if column.name == name:
            return place
    raise Refused("42703", f'column "{name}" of relation "{relation.name}" does not exist')


def _places(relation: Relation, query: TableQuery) -> tuple[int, ...]:
    if query.columns is None:
        return tuple(range(len(relation.columns)))
    return tuple(_place(relation, name) for name, _ in query.columns)


def _in_order(
    batches: Sequence[pa.RecordBatch], keys: Sequence[tuple[str, str]], count: int | None
) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).combine_chunks()
    sorted_by, wanted = table, []
    for name, direction in keys:
        # NULL counts as greater than all values, in both directions.
        sorted_by = sorted_by.append_column(f"null {name}", pc.is_null(table.column(name)))
        wanted += [(f"null {name}", direction), (name, direction)]
    order = pc.sort_indices(sorted_by, sort_keys=wanted)
    found = table.take(order if count is None else order.slice(0, count)).combine_chunks()
    return found.to_batches()[0] if found.num_rows else batches[0].slice(0, 0)
