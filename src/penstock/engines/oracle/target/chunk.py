"""Writer of a chunk into Oracle: its rows and its DL row, in one transaction.

Rows are inserted by array INSERTs that belong to the transaction, with each column's conversion in
the statement, or through a heap that the direct path has filled (`direct_path.py`). The rows come
first, and the rows of our own tables are locked for the short rest alone, so that several chunks of
a table are inserted at the same time. An attempt that finds the chunk done, or its plan gone, is
rolled back. Not here: the origin of the rows (the source's `BulkReader`), retries
(`penstock.load.chunk`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pyarrow as pa

from penstock.engines.oracle.connect import Connection
from penstock.engines.oracle.target.catalog import read_target_tables, require
from penstock.engines.oracle.target.chunk_rows import (
    ChunkSpec,
    ShapeInsert,
    counts_differ,
    read_chunk,
)
from penstock.engines.oracle.target.direct_path import Heaps
from penstock.engines.oracle.target.progress import (
    name_work,
    open_session,
    progress_of,
    transaction,
)
from penstock.engines.oracle.target.refusals import apply_error
from penstock.host import faults
from penstock.model import PenstockError
from penstock.ports.bulk import BulkReader, BulkWriter, ChunkStatus, ChunkTask


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
                return ChunkStatus.DONE, self._copy(task, reader)
        except _NotNeeded as found:
            return found.outcome

    def _copy(self, task: ChunkTask, reader: BulkReader) -> int:
        """Read the chunk, and write its rows and its record; return the number of rows."""
        spec: ChunkSpec = task.details
        if not spec.is_direct:
            return self._insert(task, lambda: insert_rows(self._connection, task, spec, reader))
        with closing(Heaps(self._connection, task, spec)) as heaps:
            heaps.fill(read_chunk(reader, task, spec))
            return self._insert(task, heaps.pour)

    def _insert(self, task: ChunkTask, insert: Callable[[], int]) -> int:
        number = task.chunk.number
        with transaction(self._connection):
            count = insert()
            self._check(task)
            self._progress.begin_chunk(table=task.table, number=number)
            faults.point("bulk.chunk.copied")
            self._progress.end_chunk(table=task.table, number=number, row_count=count)
        faults.point("bulk.chunk.committed")
        return count

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
    sent = taken = 0
    for one in read_chunk(reader, task, spec):
        insert = ShapeInsert(one.relation, table, spec)
        batch = insert.convert(one)
        try:
            taken += connection.run_many(insert.from_binds(), pa.Table.from_batches([batch]))
        except PenstockError as error:
            raise apply_error(error, table.name) from error
        sent += batch.num_rows
    if sent != taken:
        raise counts_differ(sent, taken, table.name)
    return sent
