"""Read a chunk's rows from Oracle in a Spark worker, as of the plan's SCN.

Each statement names the SCN, so all readers see one moment without sharing a session. The server
refuses an SCN whose undo is gone (ORA-01555, ORA-08181) or before which the table's definition
changed (ORA-01466): then the table is planned again at a later point. A table that was truncated,
moved or altered is found by its segments and columns, which are compared before and after reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import cast

import msgspec
import pyarrow as pa

from penstock.codec.arrow_lines import copy_lines, load_data_lines
from penstock.codec.lines import LineDialect
from penstock.codec.oracle.goals import Goal, reach
from penstock.codec.oracle.read_columns import ReadColumn, make_columns
from penstock.engines.oracle.connect import Connection, connect, connect_root
from penstock.engines.oracle.errors import SnapshotLost
from penstock.engines.oracle.reading import statements
from penstock.host.faults import declare, point
from penstock.model import PenstockError, Relation, TableName
from penstock.ports.bulk import BulkReader, ChunkTask, Lines, ShapedRows

BATCH_ROWS = 16_384
LOB_BATCH_ROWS = 256

declare("bulk.chunk.reading")
_GONE = (904, 942, 4043)  # no such column, no such table


class TableAltered(PenstockError):
    """A table was altered, truncated or moved while a chunk of it was read."""

    code = "OR05"
    retry = "backoff"


class OracleReader(BulkReader):
    """Reader of one chunk after another."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def was_rewritten(self, task: ChunkTask) -> bool:
        """Return whether the table's columns or segments differ from those of the plan."""
        planned = task.chunk.shape
        return bool(planned) and not is_same_shape(self._connection, task.table, planned)

    def tells_rewritten(self, error: PenstockError) -> bool:
        lost = isinstance(error, TableAltered | SnapshotLost)
        return lost or error.fields.get("errno") in _GONE

    def lines(self, task: ChunkTask, dialect: LineDialect) -> RowsOfChunk:
        assert task.read_plan is not None, "a table of Oracle has a read plan"
        goals = [msgspec.json.decode(text, type=Goal) for text in task.read_plan.goals]
        rows = _batch_rows([goal.column for goal in goals])
        return RowsOfChunk(self._batches(task, rows), goals, dialect)

    def batches(self, task: ChunkTask, relation: Relation) -> Iterator[ShapedRows]:
        """Yield the chunk's rows in the shape of the log. Raises TableAltered, CellBroken."""
        columns: Sequence[ReadColumn] = [
            ReadColumn.from_column(column) for column in relation.columns
        ]
        for batch in self._batches(task, _batch_rows(columns)):
            made = make_columns(batch, columns)
            for place in made.as_text:
                relation = relation.with_text_column(place)
            columns = made.columns
            names = [column.name for column in columns]
            yield ShapedRows(relation, pa.RecordBatch.from_arrays(list(made.arrays), names=names))

    def _batches(self, task: ChunkTask, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the driver's batches; check at the end that the table is still the same."""
        found = self._connection.arrow(task.chunk.copy_out, rows=rows)
        with closing(cast("Generator[pa.RecordBatch]", found)) as it:
            for batch in it:
                point("bulk.chunk.reading")
                yield batch
        if self.was_rewritten(task):
            raise TableAltered(
                f"{task.table} was altered while its rows were read",
                hint="Do nothing: the table is planned again automatically.",
                table=str(task.table),
            )

    def close(self) -> None:
        self._connection.close()


def _batch_rows(columns: Sequence[ReadColumn]) -> int:
    """Return the rows of a batch: fewer with LOBs, so that they fit into memory."""
    return LOB_BATCH_ROWS if any(column.is_lob for column in columns) else BATCH_ROWS


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
        """Yield blocks of whole lines. Raises CellUnfit, CellBroken, TableAltered."""
        for batch in self._batches:
            columns = reach(batch, self._goals, first_row=self.row_count)
            if self._dialect is LineDialect.LOAD_DATA:
                written = load_data_lines(columns)
            else:
                neutral = [goal.neutral for goal in self._goals]
                written = copy_lines(columns, neutral, first_row=self.row_count)
            self.row_count += batch.num_rows
            yield written


def shape_of(connection: Connection, table: TableName) -> str:
    """Return a text by which `is_same_shape` finds whether a table is as it was planned.

    It has the columns, and the segments up to the newest one: partitions that are added later have
    no rows of the plan's moment.
    """
    return _shape_up_to(connection, table, None)


def is_same_shape(connection: Connection, table: TableName, planned: str) -> bool:
    """Return whether a table's columns and planned segments are those of `shape_of`."""
    newest = int(planned.rpartition("/")[2])
    return _shape_up_to(connection, table, newest) == planned


def _shape_up_to(connection: Connection, table: TableName, newest: int | None) -> str:
    owner, name = table
    columns = connection.execute(statements.SHAPE, owner=owner, name=name)
    objects = [
        (int(number), data)
        for number, data in connection.execute(statements.OBJECTS, owner=owner, name=name)
        if newest is None or int(number) <= newest
    ]
    newest = max((number for number, _ in objects), default=0) if newest is None else newest
    return f"{short_digest([columns, objects])}/{newest}"


def short_digest(facts: object) -> str:
    """Return 24 hex digits that distinguish these facts from others."""
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def read_incarnation(session: Connection) -> str:
    """Return a text for the incarnation of the database, in which SCNs count."""
    ((number, since),) = session.execute(statements.INCARNATION)
    return f"{number}/{since}"


def open_reader(url: str, snapshot_id: str, snapshot_text: str) -> OracleReader | None:
    """Return a session for reading rows; None if SCNs of the point have lost their meaning.

    Raises the errors of connecting.
    """
    if not snapshot_alive(url, snapshot_id, snapshot_text):
        return None
    return OracleReader(connect(url))


def snapshot_alive(url: str, snapshot_id: str, snapshot_text: str) -> bool:
    """Return whether the database is still the one of the point: not restored, not another one.

    Whether undo still reaches back to the point is found by reading alone.
    """
    del snapshot_id
    with connect_root(url) as session:
        return snapshot_text.startswith(f"{read_incarnation(session)}/")
