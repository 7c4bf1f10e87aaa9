"""The rows that a question of one table asks for, from a held state, as messages of the wire.

Streams: one piece of the table is in memory, but where rows have to be sorted. Blocking, for worker
threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.held import HeldState
from penstock.base.state import Piece
from penstock.codec.columns import batch_schema
from penstock.codec.postgres import row_messages as messages
from penstock.codec.postgres.binary_cells import binary_cells
from penstock.codec.postgres.pgtypes import wire_type
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.types.losses import Choices
from penstock.codec.types.served import Unservable
from penstock.model import Op, Relation, TableName
from penstock.serve.catalog.publications import Published
from penstock.serve.table_query import Order, TableQuery
from penstock.serve.tables import TableView, served_relation

ROWS_PER_MESSAGE_BLOCK = 4096
SORTED_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A column of the answer. type_oid, typmod: as it is announced; number: in the table."""

    name: str
    type_oid: int
    typmod: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Columns, and blocks of messages with how many rows are in each."""

    columns: tuple[Shown, ...]
    blocks: Iterator[tuple[bytes, int]]


class TableRows:
    """One question, answered from one state."""

    def __init__(
        self, held: HeldState, table: TableName, query: TableQuery, engine: str, choices: Choices
    ) -> None:
        """engine: of the log's source. Raises TableNotInBase, Refused."""
        self._query, self._engine, self._choices = query, engine, choices
        held.table(table)
        self._pieces = held.pieces(table)
        first = next(self._pieces)
        self._view = self._view_of(first.relation)
        self._places = _places(self._view.relation, query)
        self.columns = self._shown()

    def answered(self) -> Answered:
        """The answer; its blocks are made as they are asked for."""
        return Answered(columns=self.columns, blocks=self._blocks())

    def close(self) -> None:
        """Nobody asks for more."""
        self._pieces.close()

    def _view_of(self, relation: Relation) -> TableView:
        shape = served_relation(relation, self._engine, self._choices)
        condition = (self._query.condition,) if self._query.condition else None
        published = Published(
            columns=None, filters={"insert": condition}, actions=frozenset(("insert",))
        )
        return TableView(relation, shape, published)

    def _shown(self) -> tuple[Shown, ...]:
        if self._query.counts:
            return (Shown(name=self._query.counts, type_oid=20, typmod=-1, number=0),)
        relation = self._view.relation
        asked = self._query.columns
        found = []
        for at, place in enumerate(self._places):
            column = relation.columns[place]
            oid, typmod = wire_type(column)
            name = column.name if asked is None else asked[at][1]
            found.append(Shown(name=name, type_oid=oid, typmod=typmod, number=place + 1))
        return tuple(found)

    def _blocks(self) -> Iterator[tuple[bytes, int]]:
        query = self._query
        if query.binary and query.is_copy:
            yield (
                b"d" + (4 + len(messages.COPY_HEADER)).to_bytes(4, "big") + messages.COPY_HEADER,
                0,
            )
        batches = self._limited(self._sorted(self._batches()))
        if query.counts:
            count = sum(batch.num_rows for batch in batches)
            text = pa.array([str(count).encode()], pa.large_binary())
            yield self._messages([text], 1), 1
        else:
            for batch in batches:
                for at in range(0, batch.num_rows, ROWS_PER_MESSAGE_BLOCK):
                    some = batch.slice(at, ROWS_PER_MESSAGE_BLOCK)
                    yield self._encoded(some), some.num_rows
        if query.binary and query.is_copy:
            yield (
                b"d" + (4 + len(messages.COPY_TRAILER)).to_bytes(4, "big") + messages.COPY_TRAILER,
                0,
            )

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Rows that fulfil the condition, as the view has them."""
        for piece in self._pieces:
            try:
                found = self._view.rows(_inserts(piece))
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
        relation, query = self._view.relation, self._query
        columns = [(batch.column(place), relation.columns[place]) for place in self._places]
        if query.binary:
            return self._messages([binary_cells(v, c) for v, c in columns], batch.num_rows)
        return self._messages([messages.text_cells(v, c) for v, c in columns], batch.num_rows)

    def _messages(self, cells: Sequence[Any], count: int) -> bytes:
        if self._query.is_copy and not self._query.binary:
            return messages.copy_lines(cells, count)
        return messages.row_messages(b"d" if self._query.is_copy else b"D", cells, count)


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


def _inserts(piece: Piece) -> pa.RecordBatch:
    """Rows as a batch of the log."""
    count = piece.rows.num_rows
    schema = batch_schema(piece.relation)
    after = pa.StructArray.from_arrays(piece.rows.columns, fields=list(schema.field("after").type))
    numbers = pa.array(np.zeros(count, np.int64))
    ops = pa.array(np.full(count, int(Op.INSERT), np.uint8))
    absent, before = (pa.nulls(count, schema.field(name).type) for name in ("absent", "before"))
    return pa.RecordBatch.from_arrays([numbers, numbers, ops, absent, after, before], schema=schema)


def _in_order(
    batches: Sequence[pa.RecordBatch], keys: Sequence[tuple[str, str]], count: int | None
) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).combine_chunks()
    order = pc.sort_indices(table, sort_keys=list(keys), null_placement="at_end")
    found = table.take(order if count is None else order.slice(0, count)).combine_chunks()
    return found.to_batches()[0] if found.num_rows else batches[0].slice(0, 0)


def in_text(query: TableQuery) -> TableQuery:
    """The same question, answered in texts."""
    return replace(query, binary=False)
