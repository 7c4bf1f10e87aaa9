"""Writer of a chunk into SQL Server: its rows and its DL row, in one transaction.

The driver's bulk copy is not part of our transaction, so rows first go into a heap of their own in
schema wirekite, and from there, with the DL row, into the table. A repeated attempt uses another
heap: rows that a lost one has left are never read, and are dropped when the table is finished. Not
here: the origin of the rows (the source's `BulkReader`), retries (`penstock.load.chunk`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.codec.arrow_texts import TEXT
from penstock.codec.columns import arrow_type, cast_exactly
from penstock.codec.lines import LineDialect
from penstock.codec.sqlserver.arrow_rows import sent_type, sent_values
from penstock.codec.types import NO_CHOICES, Choices, prepare_values
from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.target.catalog import TargetTable, read_target_tables, require
from penstock.engines.sqlserver.target.layout import staged_sql
from penstock.engines.sqlserver.target.merge_writer import load_rows
from penstock.engines.sqlserver.target.progress import (
    SQLServerProgress,
    name_work,
    open_session,
    transaction,
)
from penstock.engines.sqlserver.target.refusals import apply_error
from penstock.engines.sqlserver.target.translation import Translation
from penstock.host import faults
from penstock.model import PenstockError, Relation, TableName
from penstock.ports.bulk import (
    BulkReader,
    BulkWriter,
    ChunkStatus,
    ChunkTask,
    CopyCountsDiffer,
    ShapedRows,
)
from penstock.ports.chunk_rows import read_rows
from penstock.ports.target import SCHEMA
from penstock.sql.row_translation import fill_template

_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpec:
    """Facts that a writer needs besides its task, to be pickled.

    Attributes:
        relation: The table in the log, with the columns of the chunk in order.
        source_engine: The source's in the log.
    """

    relation: Relation
    source_engine: str
    choices: Choices = NO_CHOICES


def heap_prefix(plan: str) -> str:
    """Return the beginning of the names of all heaps of a plan."""
    return f"bulk_{hashlib.sha256(plan.encode()).hexdigest()[:_DIGITS]}_"


@dataclass(slots=True, kw_only=True)
class Heap:
    """Heap with the rows of one shape of a chunk.

    Attributes:
        relation: Shape of its rows; a column of it may be text that was not before.
        sent: Number of rows.
    """

    name: str
    relation: Relation
    as_text: frozenset[int]
    sent: int = 0

    @property
    def sql_name(self) -> str:
        """Return the quoted, qualified name."""
        return quote(SCHEMA, self.name)

    def create(self) -> str:
        """Return the statement that creates it."""
        columns = ",\n    ".join(
            f"{quote(column.name)} {staged_sql(column, is_text=place in self.as_text)} NULL"
            for place, column in enumerate(self.relation.columns)
        )
        return f"CREATE TABLE {self.sql_name} (\n    {columns}\n)"


@dataclass(slots=True)
class _Rows:
    """Batches of one heap, as they are sent."""

    heap: Heap
    prepares: dict[str, str] = field(default_factory=dict)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of the log's types as it is sent. Raises the errors of unfit values."""
        arrays, names = [], []
        for place, (column, values) in enumerate(
            zip(self.heap.relation.columns, batch.columns, strict=True)
        ):
            given = prepare_values(values, self.prepares.get(column.name, ""))
            kind = arrow_type(column.neutral)
            if place in self.heap.as_text:
                arrays.append(cast_exactly(given, TEXT))
            else:
                given = sent_values(cast_exactly(given, kind), column.name)
                arrays.append(cast_exactly(given, sent_type(kind)))
            names.append(column.name)
        return pa.RecordBatch.from_arrays(arrays, names=names)


class SQLServerWriter(BulkWriter):
    """A worker's connections to the target; see `BulkWriter`.

    Heaps are created on a connection of their own, because bulk copy must see them before the
    chunk's transaction ends.
    """

    def __init__(self, url: str, *, replica_role: bool = False) -> None:
        """Connect. replica_role: ignored, since sessions have no such switch."""
        del replica_role
        self._url = url
        self._connection = open_session(url)
        self._side = open_session(url)
        self._progress = SQLServerProgress(self._connection)

    def close(self) -> None:
        self._connection.close()
        self._side.close()

    def read_action(self) -> str:
        return self._progress.read_action()

    def write(self, task: ChunkTask, reader: BulkReader) -> tuple[ChunkStatus, int]:
        progress, number = self._progress, task.chunk.number
        status = self._look(task)
        if status is not None:
            return status
        heaps = Heaps(self, task, task.details)
        with closing(heaps):
            heaps.fill(reader)
            with name_work(task.doing), transaction(self._connection):
                if not progress.holds_plan(task.table, task.plan):
                    return ChunkStatus.PLAN_GONE, 0
                # Waits for a copy of the same chunk that another process has not committed yet.
                progress.begin_chunk(table=task.table, number=number)
                before = progress.rows_of_chunk(task.table, number)
                if before is not None:
                    return ChunkStatus.DONE_BEFORE, before
                count = heaps.pour()
                faults.point("bulk.chunk.copied")
                progress.end_chunk(table=task.table, number=number, row_count=count)
            faults.point("bulk.chunk.committed")
        return ChunkStatus.DONE, count

    def _look(self, task: ChunkTask) -> tuple[ChunkStatus, int] | None:
        """Return the outcome if the chunk need not be read: it is done, or its plan is gone."""
        with name_work(task.doing), transaction(self._connection):
            if not self._progress.holds_plan(task.table, task.plan):
                return ChunkStatus.PLAN_GONE, 0
            before = self._progress.rows_of_chunk(task.table, task.chunk.number)
        return None if before is None else (ChunkStatus.DONE_BEFORE, before)


class Heaps:
    """Heaps of one attempt at a chunk."""

    def __init__(self, writer: SQLServerWriter, task: ChunkTask, spec: ChunkSpec) -> None:
        self._writer = writer
        self._task = task
        self._spec = spec
        self._translation = Translation(engine=spec.source_engine, choices=spec.choices)
        self._prefix = f"{heap_prefix(task.plan)}{task.chunk.number}_{secrets.token_hex(4)}"
        self._heaps: list[Heap] = []

    def fill(self, reader: BulkReader) -> None:
        """Read the chunk and send its rows. Raises the errors of the reader and of `load_rows`."""
        # PostgreSQL's own lines, or those that can have every character, also the zero.
        dialect = LineDialect.COPY if self._task.read_plan is None else LineDialect.LOAD_DATA
        shaped = read_rows(reader, self._task, self._spec.relation, dialect)
        waiting = next(shaped, None)
        while waiting is not None:
            waiting = self._fill_one(waiting, shaped)

    def _fill_one(self, first: ShapedRows, more: Iterator[ShapedRows]) -> ShapedRows | None:
        """Send the rows that have the first ones' shape; return the first ones that do not."""
        heap = self._open(first.relation)
        rows = _Rows(heap, self._translation.prepares(first.relation))
        rest: list[ShapedRows] = []

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows.convert(first.batch)
            for one in more:
                if one.relation != first.relation:
                    rest.append(one)
                    return
                yield rows.convert(one.batch)

        heap.sent = load_rows(
            self._writer._url,
            heap.sql_name,
            batches(),
            doing=self._task.doing,
            table=self._task.table,
        )
        return rest[0] if rest else None

    def _open(self, relation: Relation) -> Heap:
        heap = Heap(
            name=f"{self._prefix}_{len(self._heaps)}",
            relation=relation,
            as_text=self._translation.as_text(relation),
        )
        with name_work(self._task.doing):
            self._writer._side.run(heap.create())
        self._heaps.append(heap)
        return heap

    def pour(self) -> int:
        """Insert the rows into the table, inside the transaction; return their number.

        Raises CopyCountsDiffer if a heap does not hold what was sent, or the table took less.
        """
        connection, target = self._writer._connection, self._task.target
        table = require(read_target_tables(connection, [target]), target)
        return sum(self._pour_one(heap, table) for heap in self._heaps)

    def _pour_one(self, heap: Heap, table: TargetTable) -> int:
        connection = self._writer._connection
        ((held,),) = connection.execute(
            f"SELECT COUNT_BIG(*) FROM {heap.sql_name} WITH (TABLOCK, HOLDLOCK)"
        )
        if int(held) != heap.sent:
            raise _counts_differ(heap.sent, int(held), table.name)
        has_identity = any(table.identity == table.column(c.name) for c in heap.relation.columns)
        identity = f"SET IDENTITY_INSERT {table.sql_name}"
        if table.identity is not None and has_identity:
            connection.run(f"{identity} ON")
        try:
            taken = connection.run(self._insert(heap, table))
        except PenstockError as error:
            raise apply_error(error, table.name) from error
        finally:
            if table.identity is not None and has_identity:
                with suppress(PenstockError):  # the connection may be lost, and the setting with it
                    connection.run(f"{identity} OFF")
        if taken != heap.sent:
            raise _counts_differ(heap.sent, taken, table.name)
        return taken

    def _insert(self, heap: Heap, table: TargetTable) -> str:
        columns = {column.name: column for column in table.columns}
        templates = self._translation.templates(heap.relation, columns)
        names = [
            column.name
            for column in heap.relation.columns
            if (found := table.column(column.name)) is None or not found.is_generated
        ]
        values = ", ".join(fill_template(f"m.{quote(name)}", name, templates) for name in names)
        return (
            f"INSERT INTO {table.sql_name} ({', '.join(map(quote, names))})\n"
            f"SELECT {values}\n  FROM {heap.sql_name} AS m"
        )

    def close(self) -> None:
        """Drop the heaps. A lost connection leaves them to the end of the table's load."""
        for heap in self._heaps:
            with suppress(PenstockError):
                self._writer._side.run(f"DROP TABLE IF EXISTS {heap.sql_name}")


def _counts_differ(sent: int, taken: int, table: TableName) -> CopyCountsDiffer:
    return CopyCountsDiffer(
        f"the source sent {sent} rows and the target took {taken}",
        hint=f"Look for triggers of {quote(*table)} that drop or add rows, and disable them: "
        f"ALTER TABLE {quote(*table)} DISABLE TRIGGER ALL;",
        sent=sent,
        taken=taken,
    )
