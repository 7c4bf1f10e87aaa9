"""Heaps that the direct path fills with the rows of a chunk.

A direct path load commits its rows and keeps other writers off its table. So each attempt at a
chunk loads into heaps of its own in our schema, and one INSERT moves the rows into the table, in
the transaction that has the chunk's record: an attempt that was lost has only left a heap, which is
dropped when the table is finished. Names of heaps and columns are in upper case without quotes,
because the driver sends them outside of a statement.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from penstock.engines.oracle.connect import Connection, quote
from penstock.engines.oracle.target.catalog import read_target_tables, require
from penstock.engines.oracle.target.chunk_rows import ChunkSpec, ShapeInsert, counts_differ
from penstock.engines.oracle.target.progress import OWNER, drop_text
from penstock.engines.oracle.target.refusals import apply_error
from penstock.host import faults
from penstock.model import PenstockError, Relation
from penstock.ports.bulk import ChunkTask, ShapedRows

_PLAN_DIGITS = 8  # a name has 30 bytes before 12.2
faults.declare("bulk.chunk.sent")


def heap_prefix(plan: str) -> str:
    """Return the beginning of the names of all heaps of a plan."""
    return f"DIRECT_{hashlib.sha256(plan.encode()).hexdigest()[:_PLAN_DIGITS].upper()}_"


@dataclass(slots=True, kw_only=True)
class Heap:
    """Heap with the rows of one shape of a chunk.

    Attributes:
        relation: Shape of its rows; a column of it may be text that was not before.
        sent: Number of rows.
    """

    name: str
    relation: Relation
    insert: ShapeInsert
    sent: int = 0

    @property
    def columns(self) -> list[str]:
        """Return the names of its columns."""
        return [f"C{place}" for place, _ in enumerate(self.insert.staged_types, 1)]

    def create(self) -> str:
        """Return the statement that creates it."""
        columns = ",\n    ".join(
            f"{quote(name)} {kind} NULL"
            for name, kind in zip(self.columns, self.insert.staged_types, strict=True)
        )
        return f"CREATE TABLE {quote(OWNER, self.name)} (\n    {columns}\n)"


class Heaps:
    """Heaps of one attempt at a chunk."""

    def __init__(self, connection: Connection, task: ChunkTask, spec: ChunkSpec) -> None:
        """Read the target table. connection: in autocommit, until `pour`."""
        self._connection = connection
        self._spec = spec
        self._table = require(read_target_tables(connection, [task.target]), task.target)
        attempt = secrets.token_hex(3).upper()
        self._prefix = f"{heap_prefix(task.plan)}{task.chunk.number}_{attempt}"
        self._heaps: list[Heap] = []

    def fill(self, rows: Iterator[ShapedRows]) -> None:
        """Send the rows, batch by batch. Raises the errors of the reader and of the driver."""
        for one in rows:
            heap = self._heap_of(one.relation)
            batch = heap.insert.convert(one)
            self._connection.load_direct(OWNER, heap.name, heap.columns, batch)
            heap.sent += batch.num_rows
        faults.point("bulk.chunk.sent")

    def _heap_of(self, relation: Relation) -> Heap:
        if self._heaps and self._heaps[-1].relation == relation:
            return self._heaps[-1]
        heap = Heap(
            name=f"{self._prefix}_{len(self._heaps)}",
            relation=relation,
            insert=ShapeInsert(relation, self._table, self._spec),
        )
        self._connection.run(heap.create())
        self._heaps.append(heap)
        return heap

    def pour(self) -> int:
        """Insert the rows into the table, inside the transaction; return their number.

        Raises CopyCountsDiffer if the table took another number of rows than were sent.
        """
        return sum(map(self._pour_one, self._heaps))

    def _pour_one(self, heap: Heap) -> int:
        insert = heap.insert.from_table(quote(OWNER, heap.name), heap.columns)
        try:
            taken = self._connection.run(insert)
        except PenstockError as error:
            raise apply_error(error, self._table.name) from error
        if taken != heap.sent:
            raise counts_differ(heap.sent, taken, self._table.name)
        return taken

    def close(self) -> None:
        """Drop the heaps. A lost connection leaves them to the end of the table's load."""
        for heap in self._heaps:
            with suppress(PenstockError):
                self._connection.run(drop_text(OWNER, heap.name))
