"""Writer of a chunk into Oracle: its rows and its DL row, in one transaction.

Rows are inserted by array INSERTs that belong to the transaction, with each column's conversion in
the statement. The direct path is not used: it commits its rows and locks the table for other
workers. The rows come first, and the rows of our own tables are locked for the short rest alone, so
that several chunks of a table are inserted at the same time. An attempt that finds the chunk done,
or its plan gone, is rolled back. Not here: the origin of the rows (the source's `BulkReader`),
retries (`penstock.load.chunk`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.codec.lines import LineDialect
from penstock.codec.types import NO_CHOICES, Choices, prepare_values
from penstock.engines.oracle.connect import Connection, quote
from penstock.engines.oracle.target.catalog import TargetTable, read_target_tables, require
from penstock.engines.oracle.target.layout import convert_values, staged_form
from penstock.engines.oracle.target.progress import (
    name_work,
    open_session,
    progress_of,
    transaction,
)
from penstock.engines.oracle.target.refusals import apply_error
from penstock.engines.oracle.target.translation import Translation
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
from penstock.sql.row_translation import fill_template


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


class _NotNeeded(Exception):
    """The chunk was copied before, or its plan is gone: the transaction is rolled back."""

    def __init__(self, status: ChunkStatus, row_count: int) -> None:
        super().__init__(status)
        self.outcome = status, row_count


class OracleWriter(BulkWriter):
    """A worker's connection to the target; see `BulkWriter`."""

    def __init__(self, url: str, *, replica_role: bool = False) -> None:
        """Connect. replica_role: ignored, since sessions have no such switch."""
        del replica_role
        self._connection = open_session(url)
        self._progress = progress_of(self._connection)

    def close(self) -> None:
        self._connection.close()

    def read_action(self) -> str:
        return self._progress.read_action()

    def write(self, task: ChunkTask, reader: BulkReader) -> tuple[ChunkStatus, int]:
        try:
            with name_work(task.doing):
                with transaction(self._connection):
                    self._check(task)
                with transaction(self._connection):
                    count = insert_rows(self._connection, task, task.details, reader)
                    self._check(task)
                    number = task.chunk.number
                    self._progress.begin_chunk(table=task.table, number=number)
                    faults.point("bulk.chunk.copied")
                    self._progress.end_chunk(table=task.table, number=number, row_count=count)
                faults.point("bulk.chunk.committed")
        except _NotNeeded as found:
            return found.outcome
        return ChunkStatus.DONE, count

    def _check(self, task: ChunkTask) -> None:
        """Lock the plan's row; raise _NotNeeded if the plan is gone, or the chunk is done."""
        if not self._progress.holds_plan(task.table, task.plan):
            raise _NotNeeded(ChunkStatus.PLAN_GONE, 0)
        before = self._progress.rows_of_chunk(task.table, task.chunk.number)
        if before is not None:
            raise _NotNeeded(ChunkStatus.DONE_BEFORE, before)


def insert_rows(
    connection: Connection, task: ChunkTask, spec: ChunkSpec, reader: BulkReader
) -> int:
    """Read a chunk and insert its rows, inside the transaction; return their number.

    Raises the errors of the reader and of the target, and CopyCountsDiffer if the target took
    another number of rows.
    """
    table = require(read_target_tables(connection, [task.target]), task.target)
    translation = Translation(engine=spec.source_engine, choices=spec.choices)
    # PostgreSQL's own lines, or those that can have every character, also the zero.
    dialect = LineDialect.COPY if task.read_plan is None else LineDialect.LOAD_DATA
    sent = taken = 0
    for rows in read_rows(reader, task, spec.relation, dialect):
        if not rows.batch.num_rows:
            continue
        insert = _Insert(rows.relation, table, translation)
        batch = insert.convert(rows)
        try:
            taken += connection.run_many(insert.sql, pa.Table.from_batches([batch]))
        except PenstockError as error:
            raise apply_error(error, table.name) from error
        sent += rows.batch.num_rows
    if sent != taken:
        raise _counts_differ(sent, taken, table.name)
    return sent


class _Insert:
    """INSERT of the rows of one shape, with a bind and its conversion for each column."""

    def __init__(self, relation: Relation, table: TargetTable, translation: Translation) -> None:
        self._relation = relation
        self._forms = translation.forms(relation)
        self._prepares = translation.prepares(relation)
        self._places = [
            place
            for place, column in enumerate(relation.columns)
            if (found := table.column(column.name)) is None or not found.is_generated
        ]
        columns = {column.name: column for column in table.columns}
        self.sql = self._text(table, translation.templates(relation, columns))

    def _text(self, table: TargetTable, templates: dict[str, str]) -> str:
        names = [self._relation.columns[place].name for place in self._places]
        values = ", ".join(
            fill_template(f":{bind}", name, templates) for bind, name in enumerate(names, 1)
        )
        listed = ", ".join(map(quote, names))
        return f"INSERT INTO {table.sql_name} ({listed}) VALUES ({values})"

    def convert(self, rows: ShapedRows) -> pa.RecordBatch:
        """Return a batch of the log's types as it is sent. Raises the errors of unfit values."""
        return pa.RecordBatch.from_arrays(list(self._arrays(rows.batch)), schema=self._schema())

    def _arrays(self, batch: pa.RecordBatch) -> Iterator[pa.Array]:
        for place in self._places:
            column = self._relation.columns[place]
            given = prepare_values(batch.column(place), self._prepares.get(column.name, ""))
            yield convert_values(given, column, self._forms[place], self._relation)

    def _schema(self) -> pa.Schema:
        columns = self._relation.columns
        return pa.schema(
            [
                (columns[place].name, staged_form(columns[place], self._forms[place])[0])
                for place in self._places
            ]
        )


def _counts_differ(sent: int, taken: int, table: TableName) -> CopyCountsDiffer:
    return CopyCountsDiffer(
        f"the source sent {sent} rows and the target took {taken}",
        hint=f"Look for triggers of {quote(*table)} that drop or add rows, and disable them: "
        f"ALTER TABLE {quote(*table)} DISABLE ALL TRIGGERS;",
        sent=sent,
        taken=taken,
    )
