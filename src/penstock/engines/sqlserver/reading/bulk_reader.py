"""Read a chunk's rows from SQL Server in a Spark worker: record batches of the driver.

A session reads under SNAPSHOT isolation if the database allows it, so that a statement sees one
moment and waits for no writer; else under READ COMMITTED, where rows of one chunk may be of several
moments. Either way changes after the plan's position are applied over them (reference, section 10).
A table without a key is read while the planner keeps writers off it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, cast

import msgspec
import pyarrow as pa

from penstock.codec.arrow_lines import copy_lines, load_data_lines
from penstock.codec.lines import LineDialect
from penstock.codec.sqlserver.columns import SourceColumn, make_columns
from penstock.codec.sqlserver.goals import Goal, reach
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.reading import statements
from penstock.engines.sqlserver.reading.chosen_rows import take_chosen
from penstock.host.faults import declare, point
from penstock.model import PenstockError, Relation, TableName
from penstock.ports.bulk import BulkReader, ChunkTask, Lines, ShapedRows
from penstock.sql.chosen_rows import ChosenRows, is_chosen_text

BATCH_ROWS = 16_384
LOCKED = "locked/"
"""Beginning of the id of a point whose tables without a key are locked."""

declare("bulk.chunk.reading")
_GONE = (207, 208, 3961)  # no such column, no such table, altered since the snapshot


class TableAltered(PenstockError):
    """A table was altered while a chunk of it was read."""

    code = "MS41"
    retry = "backoff"


class SQLServerReader(BulkReader):
    """Reader of one chunk after another. connection: its isolation level is set."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def was_rewritten(self, task: ChunkTask) -> bool:
        """Return whether the table's columns differ from those of the plan."""
        return bool(task.chunk.shape) and self._shape(task.table) != task.chunk.shape

    def _shape(self, table: TableName) -> str:
        return shape_of(self._connection, table)

    def tells_rewritten(self, error: PenstockError) -> bool:
        return isinstance(error, TableAltered) or error.fields.get("errno") in _GONE

    def lines(self, task: ChunkTask, dialect: LineDialect) -> RowsOfChunk:
        assert task.read_plan is not None, "a table of SQL Server has a read plan"
        goals = [msgspec.json.decode(text, type=Goal) for text in task.read_plan.goals]
        return RowsOfChunk(self._batches(task), goals, dialect)

    def batches(self, task: ChunkTask, relation: Relation) -> Iterator[ShapedRows]:
        """Yield the chunk's rows in the shape of the log. Raises TableAltered, ValueBroken."""
        columns: Sequence[SourceColumn] = [
            SourceColumn.from_column(column) for column in relation.columns
        ]
        for batch in self._batches(task):
            made = make_columns(batch, columns)
            for place in made.as_text:
                relation = relation.with_text_column(place)
            columns = made.columns
            names = [column.name for column in columns]
            yield ShapedRows(relation, pa.RecordBatch.from_arrays(list(made.arrays), names=names))

    def _batches(self, task: ChunkTask) -> Iterator[pa.RecordBatch]:
        """Yield the driver's batches; check at the end that the table is still the same."""
        text = task.chunk.copy_out
        chosen = ChosenRows.parse(text) if is_chosen_text(text) else None
        found = self._connection.arrow(chosen.sql if chosen else text, rows=BATCH_ROWS)
        with closing(cast("Generator[pa.RecordBatch]", found)) as it:
            for batch in it:
                point("bulk.chunk.reading")
                yield take_chosen(chosen, batch) if chosen else batch
        if self.was_rewritten(task):
            raise TableAltered(
                f"{task.table} was altered while its rows were read",
                hint="Do nothing: the table is planned again automatically.",
                table=str(task.table),
            )

    def close(self) -> None:
        self._connection.close()


class RowsOfChunk(Lines):
    """Lines of one SELECT, in blocks; row_count is final at the end."""

    row_count = 0

    def __init__(
        self, batches: Iterator[pa.RecordBatch], goals: Sequence[Goal], dialect: LineDialect
    ) -> None:
        self._batches = batches
        self._goals = goals
        self._dialect = dialect

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks of whole lines. Raises CellUnfit, ValueBroken, TableAltered."""
        for batch in self._batches:
            if not batch.num_rows:
                continue
            columns: list[Any] = [
                reach(batch.column(place), goal, place=place, first_row=self.row_count)
                for place, goal in enumerate(self._goals)
            ]
            if self._dialect is LineDialect.LOAD_DATA:
                written = load_data_lines(columns)
            else:
                neutral = [goal.neutral for goal in self._goals]
                written = copy_lines(columns, neutral, first_row=self.row_count)
            self.row_count += batch.num_rows
            yield written


def shape_of(connection: Connection, table: TableName) -> str:
    """Return a text that must be equal when a chunk is planned and when it is read."""
    found = [tuple(map(str, row)) for row in connection.execute(statements.SHAPE, *table)]
    return short_digest(found)


def short_digest(facts: object) -> str:
    """Return 24 hex digits that distinguish these facts from others."""
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def has_snapshots(connection: Connection) -> bool:
    """Return whether the database allows SNAPSHOT isolation."""
    found = connection.execute(statements.SNAPSHOT_STATE)
    return bool(found) and int(found[0][0] or 0) == statements.SNAPSHOT_ON


def open_session(url: str, *, is_locked: bool = False) -> Connection:
    """Connect for reading rows. is_locked: rows are those of locked tables, not of a snapshot."""
    connection = connect(url)
    try:
        if not is_locked and has_snapshots(connection):
            connection.run(statements.SNAPSHOT_ISOLATION)
        else:
            connection.run(statements.COMMITTED_ISOLATION)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(url: str, snapshot_id: str, snapshot_text: str) -> SQLServerReader | None:
    """Return a session for reading rows; None if the tables of the point are not locked any more.

    Raises the errors of connecting.
    """
    del snapshot_text
    is_locked = snapshot_id.startswith(LOCKED)
    if is_locked and not is_held(url, snapshot_id):
        return None
    return SQLServerReader(open_session(url, is_locked=is_locked))


def snapshot_alive(url: str, snapshot_id: str, snapshot_text: str) -> bool:
    """Return whether rows can still be read as the point says; without locks they always can."""
    del snapshot_text
    return not snapshot_id.startswith(LOCKED) or is_held(url, snapshot_id)


def is_held(url: str, name: str) -> bool:
    """Return whether a session holds a name, with the locks of its transaction."""
    with connect(url) as connection:
        found = connection.execute(statements.TAKE_NAME, name)
        return bool(found) and int(found[0][0]) < 0
