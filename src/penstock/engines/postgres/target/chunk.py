"""A chunk's rows into PostgreSQL: they and their DL row, in one transaction.

Rows of another PostgreSQL go from socket to socket as they are; those of other engines come as
lines of COPY. Not here: what is passed on how (`relay.py`), trying again (`penstock.load.chunk`).
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg import sql

from penstock.codec.lines import LineDialect
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    TAKING_KEEPALIVE,
    connect,
    quote,
    server_errors,
)
from penstock.engines.postgres.source.bulk_reader import PostgresBulkReader
from penstock.engines.postgres.target.claims import claim_chunk
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.relay import copy_rows
from penstock.host import faults
from penstock.ports.bulk import (
    APPLICATION_NAME,
    BulkReader,
    BulkWriter,
    ChunkStatus,
    ChunkTask,
    CopyCountsDiffer,
    Lines,
)

# Losing a commit in a crash does no harm: its DL row is lost with it, and the chunk is done again.
TARGET_SETTINGS: Mapping[str, str] = {
    **EXACT_TEXT_SETTINGS,
    **TAKING_KEEPALIVE,
    "synchronous_commit": "off",
}


class PostgresWriter(BulkWriter):
    """A worker's connection to the target; see `BulkWriter`."""

    def __init__(
        self, url: str, *, replica_role: bool, settings: Mapping[str, str] = TARGET_SETTINGS
    ) -> None:
        """Keep the arguments. `replica_role` keeps triggers and foreign keys from acting on our
        rows.
        """
        self._connection = connect(url, application_name=APPLICATION_NAME, options=settings)
        self._progress = PostgresProgress(self._connection)
        if replica_role:
            with server_errors("preparing a session"):
                self._connection.execute("set session_replication_role = replica")

    def close(self) -> None:
        self._connection.close()

    def read_action(self) -> str:
        return self._progress.read_action()

    def write(self, task: ChunkTask, reader: BulkReader) -> tuple[ChunkStatus, int]:
        writer, progress, number = self._connection, self._progress, task.chunk.number
        with server_errors(task.doing), writer.transaction():
            claim_chunk(writer, task)
            if not progress.holds_plan(task.table, task.plan):
                return ChunkStatus.PLAN_GONE, 0
            # Waits for a copy of the same chunk that another process has not committed yet.
            progress.begin_chunk(table=task.table, number=number)
            before = progress.rows_of_chunk(task.table, number)
            if before is not None:
                return ChunkStatus.DONE_BEFORE, before
            rows = self._copy(task, reader)
            faults.point("bulk.chunk.copied")
            progress.end_chunk(table=task.table, number=number, row_count=rows)
        faults.point("bulk.chunk.committed")
        return ChunkStatus.DONE, rows

    def _copy(self, task: ChunkTask, reader: BulkReader) -> int:
        if isinstance(reader, PostgresBulkReader):
            copy_out = task.chunk.copy_out
            return copy_rows(reader.connection, copy_out, self._connection, copy_in(task))
        return into_postgres(reader.lines(task, LineDialect.COPY), self._connection, copy_in(task))


def copy_in(task: ChunkTask) -> str:
    """Return the statement; without a list COPY takes all columns that are not generated."""
    names = ", ".join(quote(column) for column in task.columns)
    columns = f" ({names})" if names else ""
    form = " (format binary)" if task.binary else ""
    return f"copy {quote(*task.target)}{columns} from stdin{form}"


def into_postgres(rows: Lines, target: psycopg.Connection, statement: str) -> int:
    """Write lines through `copy ... from stdin`; the number of rows. Raises CopyCountsDiffer."""
    with target.cursor() as cursor:
        with cursor.copy(sql.SQL(statement)) as copy:
            for block in rows:
                copy.write(block)
        taken = cursor.rowcount
    if taken != rows.row_count:
        raise CopyCountsDiffer(
            f"the source sent {rows.row_count} rows and the target took {taken}",
            hint="Look for triggers and rules on the target table that drop or add rows, and "
            "disable them: alter table ... disable trigger ...;",
            sent=rows.row_count,
            taken=taken,
        )
    return rows.row_count
