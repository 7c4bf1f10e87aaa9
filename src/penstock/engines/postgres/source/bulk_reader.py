"""PostgreSQL as a source of the bulk load: a worker's session in an exported snapshot.

Not here: exporting one (`slot.py`), cutting tables into chunks (`snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import psycopg

from penstock.codec.lines import LineDialect
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    connect,
    literal,
    quote,
    server_errors,
)
from penstock.engines.postgres.source.copy_lines import LinesOfCopy, PlainLines
from penstock.model import PenstockError, TableName
from penstock.ports.bulk import APPLICATION_NAME, ChunkTask, Lines

SOURCE_SETTINGS: Mapping[str, str] = {
    **EXACT_TEXT_SETTINGS,
    "synchronize_seqscans": "off",
    "jit": "off",
}
_NO_SUCH_TABLE = "42P01"
BEGIN_READ = "begin isolation level repeatable read read only"
# pg_class answers from the snapshot, the function from what is there now.
FILENODES = """
    select c.relfilenode::int8, pg_relation_filenode(c.oid)::int8
      from pg_class as c
     where c.oid = to_regclass(%(name)s)
"""


COLUMNS_THEN = """
    select attname::text, attnum::int4
      from pg_attribute
     where attrelid = to_regclass(%(name)s) and attnum > 0 and not attisdropped
"""


class PostgresBulkReader:
    """See `BulkReader`. connection: its transaction sees the snapshot."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection

    def was_rewritten(self, task: ChunkTask) -> bool:
        """See BulkReader."""
        with server_errors(task.doing):
            return was_rewritten(self.connection, task.chunk.relation) or was_renamed(
                self.connection, task.table, task.columns
            )

    def lines(self, task: ChunkTask, dialect: LineDialect) -> Lines:
        """See BulkReader. A PostgreSQL target reads lines of COPY directly, by `connection`."""
        copy_out = task.chunk.copy_out
        if dialect is LineDialect.COPY:
            return PlainLines(self.connection, copy_out, doing=task.doing)
        assert task.read_plan is not None, "a table that goes to another engine has a read plan"
        return LinesOfCopy(self.connection, copy_out, task.read_plan.lines, doing=task.doing)

    def tells_rewritten(self, error: PenstockError) -> bool:
        """Return whether the table is gone; of others `was_rewritten` tells it before."""
        return error.fields.get("sqlstate") == _NO_SUCH_TABLE

    def close(self) -> None:
        """See BulkReader."""
        self.connection.close()


def open_reader(url: str, snapshot_id: str, snapshot_text: str) -> PostgresBulkReader | None:
    """See BulkSource."""
    connection = connect(url, application_name=APPLICATION_NAME, options=SOURCE_SETTINGS)
    try:
        if import_snapshot(connection, snapshot_id, snapshot_text):
            return PostgresBulkReader(connection)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


def import_snapshot(connection: psycopg.Connection, snapshot_id: str, text: str) -> bool:
    """Begin a read-only transaction that sees an exported snapshot; False when it is gone.

    text: what the snapshot holds (`snapshot_text`): after a restart the server uses the names of
    snapshots again, and another one must not be taken for ours. A connection that got False is in a
    failed transaction: close it.
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


def snapshot_alive(url: str, snapshot_id: str, snapshot_text: str) -> bool:
    """See BulkSource."""
    with connect(url, application_name=APPLICATION_NAME) as connection:
        alive = import_snapshot(connection, snapshot_id, snapshot_text)
        connection.rollback()
    return alive


def snapshot_text(source_url: str, snapshot_id: str) -> str:
    """Return the content of a living exported snapshot, as pg_current_snapshot() prints it."""
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
    """Lock a relation for the transaction; returns whether its snapshot's rows are gone.

    A TRUNCATE or rewriting ALTER that committed after the snapshot leaves no rows in it; with the
    lock held none can follow.
    """
    connection.execute(f"lock table only {quote(*relation)} in access share mode")
    row = connection.execute(FILENODES, {"name": quote(*relation)}).fetchone()
    return row is None or row[0] != row[1]


def was_renamed(connection: psycopg.Connection, table: TableName, columns: Iterable[str]) -> bool:
    """Lock a table for the transaction; returns whether a name means another column now.

    The catalogue answers from the snapshot, the description of a result from what is there now.
    """
    connection.execute(f"lock table only {quote(*table)} in access share mode")
    seen = connection.execute(COLUMNS_THEN, {"name": quote(*table)}).fetchall()
    then: dict[str, int] = dict(seen)
    result = connection.execute(f"select * from only {quote(*table)} where false").pgresult
    assert result is not None, "a SELECT has a result"
    now = {(result.fname(at) or b"").decode(): result.ftablecol(at) for at in range(result.nfields)}
    return any(then.get(name) != now.get(name) for name in columns)
