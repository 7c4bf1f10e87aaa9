"""One task of the bulk load: a chunk's rows and its DL row, in one target transaction.

Runs in Spark's Python workers. Whatever happens to a task, its rows are in the target exactly
when its DL row is, and they are there once: the DL row's key makes a second copy wait and then
see the first. Not here: which chunks there are and what follows from their outcomes (`bulk.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import psycopg

from penstock.codec.mysql.mysqltext import CellUnfit, Dialect
from penstock.engines.mysql import loans
from penstock.engines.mysql.loans import SnapshotGone
from penstock.engines.mysql.source.borrowing import BorrowedSession, borrow
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    connect,
    literal,
    quoted,
    server_errors,
)
from penstock.engines.postgres.target import progress
from penstock.engines.postgres.target.pipe import copy_rows
from penstock.host import faults
from penstock.host.retry import Backoff, retrying
from penstock.load.bulk_mysql import RowsOfChunk, into_postgres, was_redefined
from penstock.load.ledger import Chunk, holds_plan
from penstock.model import PenstockError, TableName
from penstock.sql.read_plan import Way, is_mysql

faults.declare("bulk.chunk.copied", "bulk.chunk.committed")

APPLICATION_NAME = "penstock bulk"
BACKOFF = Backoff(first_s=0.2, longest_s=10.0, attempts=6)

SOURCE_SETTINGS: Mapping[str, str] = {
    **EXACT_TEXT_SETTINGS,
    "synchronize_seqscans": "off",
    "jit": "off",
}
# Losing a commit in a crash is no harm: its DL row is lost with it, and the chunk is done again.
TARGET_SETTINGS: Mapping[str, str] = {**EXACT_TEXT_SETTINGS, "synchronous_commit": "off"}

BEGIN_READ = "begin isolation level repeatable read read only"
# pg_class answers from the snapshot, the function from what is there now.
FILENODES = """
    select c.relfilenode::int8, pg_relation_filenode(c.oid)::int8
      from pg_class as c
     where c.oid = to_regclass(%(name)s)
"""
FINISHED = """
    select mark
      from wirekite.wirekite_progress
     where source = %(source)s
       and target = 'DL'
       and finish_time is not null
"""


Reader = psycopg.Connection | BorrowedSession


class Status(StrEnum):
    """How a chunk's task ended. HELD: not begun, because wirekite_action says PAUSE or STOP."""

    DONE = "done"
    DONE_BEFORE = "done before"
    SNAPSHOT_GONE = "snapshot gone"
    REWRITTEN = "rewritten"
    PLAN_GONE = "plan gone"
    HELD = "held"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    """What a worker needs to copy one chunk. plan: the name that the target's mark must have.

    way: how rows go between engines.
    """

    source_url: str
    target_url: str
    table: TableName
    target: TableName
    chunk: Chunk
    columns: tuple[str, ...]
    binary: bool
    snapshot_id: str
    snapshot_text: str
    plan: str
    replica_role: bool
    way: Way | None = None

    @property
    def copy_in(self) -> str:
        """The statement for the target; without a list COPY takes all that is not generated."""
        names = ", ".join(quoted(column) for column in self.columns)
        columns = f" ({names})" if names else ""
        form = " (format binary)" if self.binary else ""
        return f"copy {quoted(*self.target)}{columns} from stdin{form}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOutcome:
    """How one chunk ended. rows: committed; error: set when FAILED."""

    table: TableName
    number: int
    status: Status
    rows: int = 0
    error: PenstockError | None = None


class Writer(Protocol):
    """A worker's connection to the target."""

    def read_action(self) -> str:
        """The word in wirekite_action."""
        ...

    def write(self, task: ChunkTask, reader: Reader) -> tuple[Status, int]:
        """Copy the rows and write the DL row, in one target transaction: how it ended, and rows."""
        ...

    def close(self) -> None:
        """Close the connection; what is not committed is rolled back."""
        ...


def copy_chunks(tasks: Iterator[ChunkTask], *, streams: int = 1) -> Iterable[ChunkOutcome]:
    """Copy the chunks of one Spark partition, so many at a time; never raises for one of them.

    streams: a chunk waits for its servers most of the time, so that one per core leaves the cores
    idle; each has connections and a thread of its own.
    """
    waiting = deque(tasks)
    count = min(streams, len(waiting))
    if count <= 1:
        yield from _stream(waiting)
        return
    with ThreadPoolExecutor(count, thread_name_prefix="chunks") as executor:
        ends = [executor.submit(lambda: list(_stream(waiting))) for _ in range(count)]
        for end in as_completed(ends):
            yield from end.result()


def _stream(waiting: deque[ChunkTask]) -> Iterator[ChunkOutcome]:
    """Copy what waits, one after the other, until nothing does."""
    with Workplace() as workplace:
        while waiting:
            try:
                task = waiting.popleft()
            except IndexError:  # another thread has taken the last one in between
                return
            yield workplace.copy(task)


class Workplace:
    """The connections that the chunks of one stream share."""

    def __init__(self) -> None:
        self._source = ExitStack()
        self._target = ExitStack()
        self._snapshot = ""
        self._reader: Reader | None = None
        self._writer: Writer | None = None

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_ignored: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both connections; what is not committed is rolled back by the servers."""
        self._source.close()
        self._target.close()
        self._reader = self._writer = None
        self._snapshot = ""

    def copy(self, task: ChunkTask) -> ChunkOutcome:
        """Copy one chunk, trying again with new connections where that may help."""
        outcome = ChunkOutcome(table=task.table, number=task.chunk.number, status=Status.FAILED)
        try:
            status, rows = retrying(lambda: self._attempt(task), backoff=BACKOFF)
        except PenstockError as error:
            return replace(outcome, error=error)
        return replace(outcome, status=status, rows=rows)

    def _attempt(self, task: ChunkTask) -> tuple[Status, int]:
        try:
            writer = self._open_target(task)
            if writer.read_action() != "RUN":
                return Status.HELD, 0
            reader = self._open_source(task)
            if reader is None:
                return Status.SNAPSHOT_GONE, 0
            with server_errors(f"copying chunk {task.chunk.number} of {task.table}"):
                if not isinstance(reader, BorrowedSession) and was_rewritten(
                    reader, task.chunk.relation
                ):
                    return Status.REWRITTEN, 0
                return writer.write(task, reader)
        except BaseException as error:
            self.close()  # a broken copy leaves no connection that could be used again
            if isinstance(error, PenstockError) and was_redefined(error):
                return Status.REWRITTEN, 0
            if isinstance(error, CellUnfit):
                raise named(error, task) from error
            raise

    def _open_source(self, task: ChunkTask) -> Reader | None:
        """A connection whose transaction sees the task's snapshot; None when that is gone."""
        if self._reader is not None and self._snapshot == task.snapshot_id:
            return self._reader
        self._source.close()
        self._reader = None
        if is_mysql(task.source_url):
            return self._borrow(task)
        connection = connect(
            task.source_url, application_name=APPLICATION_NAME, options=SOURCE_SETTINGS
        )
        self._source.enter_context(closing(connection))
        if not import_snapshot(connection, task.snapshot_id, task.snapshot_text):
            return None
        self._reader, self._snapshot = connection, task.snapshot_id
        return connection

    def _borrow(self, task: ChunkTask) -> BorrowedSession | None:
        try:
            session = borrow(task.snapshot_id, task.snapshot_text)
        except SnapshotGone:
            return None
        self._source.enter_context(session)
        self._reader, self._snapshot = session, task.snapshot_id
        return session

    def _open_target(self, task: ChunkTask) -> Writer:
        if self._writer is None:
            self._writer = open_writer(task)
            self._target.enter_context(closing(self._writer))
        return self._writer


def named(error: CellUnfit, task: ChunkTask) -> CellUnfit:
    """The same error, with the names of table and column in place of a number."""
    column, row = task.columns[error.fields["column"]], error.fields["row"]
    return CellUnfit(
        f"column {column} of {task.table} (chunk {task.chunk.number}, row {row}): "
        f"{error.fields['reason']}",
        hint=error.hint,
        table=str(task.table),
        **error.fields,
    )


def open_writer(task: ChunkTask) -> Writer:
    """Connect to the target that a task names."""
    if is_mysql(task.target_url):
        from penstock.engines.mysql.target.chunk import MySQLWriter

        return MySQLWriter(task.target_url)
    return PostgresWriter(task.target_url, replica_role=task.replica_role)


def import_snapshot(connection: psycopg.Connection, snapshot_id: str, text: str) -> bool:
    """Begin a read-only transaction that sees an exported snapshot; False when it is gone.

    text: what the snapshot holds (`snapshot_text`): the names of snapshots come again when the
    server has restarted, and another one must not be taken for ours. A connection that got False
    is in a transaction that is of no use: close it.
    """
    with server_errors("importing the snapshot"):
        connection.execute(BEGIN_READ)
        try:
            connection.execute(f"set transaction snapshot {literal(snapshot_id)}")
        except (
            psycopg.errors.InvalidParameterValue,  # 22023, up to 17: no such file
            psycopg.errors.UndefinedObject,  # 42704, from 18
            psycopg.errors.ObjectNotInPrerequisiteState,  # 55000: its transaction has ended
        ):
            return False
        row = connection.execute("select pg_current_snapshot()::text").fetchone()
    return row is not None and row[0] == text


def snapshot_alive(source_url: str, snapshot_id: str, text: str) -> bool:
    """Whether an exported snapshot can still be imported and is the one it was."""
    if is_mysql(source_url):
        return loans.is_alive(snapshot_id, text)
    with connect(source_url, application_name=APPLICATION_NAME) as connection:
        alive = import_snapshot(connection, snapshot_id, text)
        connection.rollback()
    return alive


def snapshot_text(source_url: str, snapshot_id: str) -> str:
    """What a living exported snapshot holds, as pg_current_snapshot() prints it."""
    with (
        connect(source_url, application_name=APPLICATION_NAME) as connection,
        server_errors("looking at the snapshot"),
    ):
        connection.execute(BEGIN_READ)
        connection.execute(f"set transaction snapshot {literal(snapshot_id)}")
        row = connection.execute("select pg_current_snapshot()::text").fetchone()
        assert row is not None
        return str(row[0])


def was_rewritten(connection: psycopg.Connection, relation: TableName) -> bool:
    """Lock a relation for the transaction, and tell whether its snapshot's rows are still there.

    TRUNCATE and a rewriting ALTER that committed after the snapshot leave nothing for it to see;
    with the lock held none can come any more.
    """
    connection.execute(f"lock table only {quoted(*relation)} in access share mode")
    row = connection.execute(FILENODES, {"name": quoted(*relation)}).fetchone()
    return row is None or row[0] != row[1]


class PostgresWriter:
    """A worker's connection to a target of PostgreSQL; see `Writer`."""

    def __init__(
        self, url: str, *, replica_role: bool, settings: Mapping[str, str] = TARGET_SETTINGS
    ) -> None:
        """replica_role: keep triggers and foreign keys from acting on our rows."""
        self._connection = connect(url, application_name=APPLICATION_NAME, options=settings)
        if replica_role:
            with server_errors("preparing a session"):
                self._connection.execute("set session_replication_role = replica")

    def close(self) -> None:
        """See Writer."""
        self._connection.close()

    def read_action(self) -> str:
        """See Writer."""
        with server_errors("reading the action"):
            return progress.read_action(self._connection)

    def write(self, task: ChunkTask, reader: Reader) -> tuple[Status, int]:
        """See Writer."""
        writer, number = self._connection, task.chunk.number
        with writer.transaction():
            if not holds_plan(writer, task.table, task.plan):
                return Status.PLAN_GONE, 0
            # Waits for a copy of the same chunk that another process has not committed yet.
            progress.begin_chunk(writer, table=task.table, number=number)
            before = writer.execute(FINISHED, {"source": f"{task.table}.{number}"}).fetchone()
            if before is not None:
                return Status.DONE_BEFORE, int(before[0])
            rows = self._copy(task, reader)
            faults.point("bulk.chunk.copied")
            progress.end_chunk(writer, table=task.table, number=number, row_count=rows)
        faults.point("bulk.chunk.committed")
        return Status.DONE, rows

    def _copy(self, task: ChunkTask, reader: Reader) -> int:
        if not isinstance(reader, BorrowedSession):
            return copy_rows(reader, task.chunk.copy_out, self._connection, task.copy_in)
        assert task.way is not None, "the plan of a table of MySQL has one"
        lines = RowsOfChunk(reader, task.chunk.copy_out, task.way.cells, Dialect.COPY)
        return into_postgres(lines, self._connection, task.copy_in)
