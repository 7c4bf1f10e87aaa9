"""State tables in schema `wirekite` of a SQL Server target, and what a pipeline leaves there.

Times are UTC (`datetime2(6)`; the type TIMESTAMP is a row version there). Names are compared
exactly, with a binary collation. A position may have 39 digits, which is one more than DECIMAL has,
so it is kept as text. `wirekite_merge` holds a stamp for each merge table.

`LATEST` and `LAG` are the monitoring queries of Wirekite's guide in T-SQL. This module does not
import Spark, so every process may import it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import Any

from penstock.engines.sqlserver.connect import Connection, connect, quote
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import PenstockError, TableName
from penstock.model.removal import Removal
from penstock.model.words import count_words
from penstock.ports.reset import Leftovers, names_of
from penstock.ports.target import SCHEMA, Applied, ProgressUnwritable, is_shared
from penstock.sql.state_dialect import RowLock, StateDialect, Upsert
from penstock.sql.state_store import (
    LOG,
    STAGED,
    StateStore,
    applied_by_another,
    find_leftovers,
    utc,
)

NAME_LENGTH_MAX = 128
EXACT = "COLLATE Latin1_General_100_BIN2"
UTC_NOW = "SYSUTCDATETIME()"
XACT_ABORT = "SET XACT_ABORT ON"
"""An error ends the transaction, so that no statement after it is committed alone."""
LOCK_TIMEOUT = "SET LOCK_TIMEOUT {ms}"
LOCK_TIMEOUT_S = 60
"""Seconds that a session waits for a lock. Readers wait, too, for the rows that a batch writes."""

LATEST = """
    SELECT TOP ({limit}) source, mark, start_time, finish_time
    FROM wirekite.wirekite_progress
    WHERE operation = '{operation}'
    ORDER BY start_time DESC
"""
LAG = """
    SELECT DATEDIFF(SECOND, MAX(finish_time), SYSUTCDATETIME()) AS lag_seconds
    FROM wirekite.wirekite_progress
    WHERE operation = 'CL' AND finish_time IS NOT NULL
"""

ADVANCE = """
    UPDATE {table} WITH (UPDLOCK, HOLDLOCK)
       SET applied_segment = ?, applied_gsn = ?, applied_trx = ?, applied_position = ?,
           applied_commit = ?
     WHERE log_id = ? AND applied_segment = ? AND applied_gsn = ? AND applied_position = ?
"""
CREATE_LOCK = (
    "EXEC sp_getapplock @Resource = N'penstock wirekite', @LockMode = 'Exclusive',"
    " @LockOwner = 'Transaction', @LockTimeout = 30000"
)
DROP_SCHEMA = (
    "DECLARE @drop nvarchar(max) = N''; SELECT @drop += N'DROP TABLE wirekite.' + QUOTENAME(name)"
    " + N'; ' FROM sys.tables WHERE schema_id = SCHEMA_ID(N'wirekite'); EXEC (@drop);"
    " DROP SCHEMA wirekite;"
)
OUR_TABLES = "SELECT name FROM sys.tables WHERE schema_id = SCHEMA_ID(N'wirekite') ORDER BY name"
TABLE_ID = "SELECT OBJECT_ID(?, N'U')"
_BIGINT_MAX = 2**63 - 1
_NOT_THERE = (208, 2760)  # the table, the schema


def upsert_by_merge(row: Upsert) -> str:
    """Return a MERGE statement; the existing row is `t`, the inserted one `s`.

    UPDLOCK beside HOLDLOCK: with HOLDLOCK alone two sessions that insert one key deadlock.
    """
    names = list(row.values)
    selected = ", ".join(f"{value} AS {name}" for name, value in row.values.items())
    keys = row.keys if not row.changes else row.keys[:1]
    same = " OR ".join(
        "(" + " AND ".join(f"t.{column} = s.{column}" for column in key) + ")" for key in keys
    )
    update = f"\n WHEN MATCHED THEN UPDATE SET {row.changes_text}" if row.changes else ""
    inserted = ", ".join(f"s.{name}" for name in names)
    return (
        f"MERGE INTO {row.table} WITH (UPDLOCK, HOLDLOCK) AS t\n"
        f"USING (SELECT {selected}) AS s\n   ON {same}{update}\n"
        f" WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({inserted});"
    )


DIALECT = StateDialect(
    container="schema",
    types={
        "start_time": "datetime2(6) not null",
        "finish_time": "datetime2(6) null",
        "action": f"nvarchar(8) {EXACT} not null primary key",
        "only_row": "bit not null default 1 primary key check (only_row = 1)",
        "log_id": f"nvarchar(255) {EXACT}",
        "holder": f"nvarchar(64) {EXACT} default '' not null",
        "position": f"nvarchar(39) {EXACT}",
        "moment": "datetime2(6)",
        "name": f"nvarchar(128) {EXACT}",
        "flag": "bit",
        "long_text": f"nvarchar(max) {EXACT}",
        "plan": "[plan]",
    },
    varchar=f"nvarchar({{}}) {EXACT}",
    create_table="create table",
    has_schema=f"SELECT 1 FROM sys.schemas WHERE name = N'{SCHEMA}'",
    create_schema=f"CREATE SCHEMA {SCHEMA}",
    drop_schema=DROP_SCHEMA,
    present=f"SELECT name FROM sys.tables WHERE schema_id = SCHEMA_ID(N'{SCHEMA}')"
    " AND name IN ({names})",
    placeholder="?",
    upsert=upsert_by_merge,
    new="s.{}",
    true="1",
    either="{} | {}",
    now=UTC_NOW,
    utc_now=UTC_NOW,
    for_update=RowLock(hint=" WITH (UPDLOCK, HOLDLOCK)"),
    for_share=RowLock(hint=" WITH (HOLDLOCK)"),
    newest=LATEST,
    merge_name_max=NAME_LENGTH_MAX - 4,
    folds_case=True,
)


def open_session(url: str, *, lock_timeout_s: int = LOCK_TIMEOUT_S) -> Connection:
    """Connect for statements of penstock. Raises the typed errors of a connection."""
    connection = connect(url)
    try:
        connection.run(XACT_ABORT)
        connection.run(LOCK_TIMEOUT.format(ms=lock_timeout_s * 1_000))
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run a transaction, and roll it back whole on any error.

    An error has ended the transaction at the server already (XACT_ABORT), so no statement may
    follow it: it would be committed alone.
    """
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        try:
            connection.rollback()
        except PenstockError:
            connection.close()  # the server rolls back the transaction of a lost session
        raise


class SQLServerProgress(StateStore):
    """Connection to the progress tables in a SQL Server target."""

    dialect = DIALECT
    tables = (*StateStore.tables, "wirekite_merge")

    def __init__(self, connection: Connection) -> None:
        """Store the connection: autocommit, or in the transaction that the rows belong to."""
        self._connection = connection

    @property
    def is_closed(self) -> bool:
        return self._connection.is_closed

    def rows(self, sql: str, values: Sequence[object] = (), *, doing: str) -> Sequence[Any]:
        with name_work(doing):
            return self._connection.execute(sql, *map(_parameter, values))

    def run(self, sql: str, values: Sequence[object] = (), *, doing: str) -> int:
        with name_work(doing):
            return self._connection.run(sql, *map(_parameter, values))

    def transaction(self) -> AbstractContextManager[object]:
        return transaction(self._connection)

    @contextmanager
    def create_alone(self) -> Iterator[None]:
        """Create tables in a transaction. What is created before an error is rolled back."""
        with transaction(self._connection):
            self._connection.run(CREATE_LOCK)
            yield

    def advance(self, *, log_id: str, before: Applied, after: Applied) -> None:
        """Move the applied position; see `TargetProgress`. Locks the row until the commit."""
        found = self.run(
            ADVANCE.format(table=STAGED if is_shared(log_id) else LOG),
            (
                *(after.segment, after.gsn, after.trx, str(after.position)),
                utc(after.commit_time_us),
                *(log_id, before.segment, before.gsn, str(before.position)),
            ),
            doing="moving the applied position",
        )
        if found != 1:
            raise applied_by_another(before)

    def is_missing(self, error: StatementFailed) -> bool:
        return error.fields.get("errno") in _NOT_THERE

    def unwritable(self, error: PrivilegeMissing) -> ProgressUnwritable:
        return ProgressUnwritable(
            f"schema {SCHEMA} cannot be created in the target's database: {error.message}",
            hint="As its owner, run: CREATE SCHEMA wirekite AUTHORIZATION [USER]; GRANT CREATE "
            "TABLE TO [USER];",
        )

    def close(self) -> None:
        self._connection.close()


def connect_progress(url: str, application_name: str) -> SQLServerProgress:
    """Connect to a target for its state tables. Raises the typed errors of a connection."""
    del application_name  # the driver has its own
    return SQLServerProgress(open_session(url))


@contextmanager
def name_work(doing: str) -> Iterator[None]:
    """Name the work in errors of the server, in place of the statement."""
    try:
        yield
    except PenstockError as error:
        said = error.message.partition(": ")[2]
        if said:
            error.message = f"{doing}: {said}"
            error.args = (error.message,)
        raise


def _parameter(value: object) -> object:
    """Return a value that the driver binds; larger integers than BIGINT holds are sent as text."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and abs(value) > _BIGINT_MAX:
        return str(value)
    return value


# --- what a reset removes -------------------------------------------------------------------------


def leftovers(url: str, *, tables: Collection[TableName] | None) -> Leftovers:
    """Return what the target holds of a pipeline."""
    with closing(open_session(url)) as connection:
        store = SQLServerProgress(connection)
        found = find_leftovers(store, tables, lambda *names: _empty(connection, *names))
        ours = [str(row[0]) for row in connection.execute(OUR_TABLES)]
        return replace(found, removals=tuple(_drops(one, ours) for one in found.removals))


def _drops(removal: Removal, ours: Sequence[str]) -> Removal:
    """Return the removal of our schema as one statement for each table."""
    if removal.statements != (DROP_SCHEMA,):
        return removal
    dropped = (f"DROP TABLE {quote(SCHEMA, name)};" for name in ours)
    return replace(removal, statements=(*dropped, f"DROP SCHEMA {SCHEMA};"))


def plan_emptying(url: str, tables: Collection[TableName]) -> tuple[Removal, ...]:
    """Return how the existing ones of these tables are emptied."""
    with closing(open_session(url)) as connection:
        return tuple(_empty(connection, tables, ()))


def _empty(
    connection: Connection, tables: Collection[TableName], made: Collection[TableName]
) -> Iterator[Removal]:
    """Yield the removal of all rows, and of the tables that penstock created.

    TRUNCATE is refused for a table that a foreign key refers to, so rows are deleted.
    """
    present = [
        table
        for table in sorted(tables)
        if connection.execute(TABLE_ID, quote(*table)) not in ([], [(None,)])
    ]
    if not present:
        return
    yield Removal(
        what=f"all rows of {count_words(len(present), 'table')} at the target: {names_of(present)}",
        statements=tuple(_empty_statements(connection, present)),
    )
    dropped = [table for table in present if table in made]
    if dropped:
        yield Removal(
            what=f"{len(dropped)} of these tables themselves, which penstock made",
            statements=tuple(_drop_statements(connection, dropped)),
        )


REFERRING = """
    SELECT s.name, t.name, f.name, f.is_disabled
      FROM sys.foreign_keys AS f
      JOIN sys.tables AS t ON t.object_id = f.parent_object_id
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
     WHERE f.referenced_object_id = OBJECT_ID(?)
     ORDER BY 1, 2, 3
"""


def _empty_statements(connection: Connection, tables: Sequence[TableName]) -> Iterator[str]:
    """Yield the statements that delete all rows, with the foreign keys to them checked again."""
    keys = [
        (quote(schema, name), quote(key))
        for table in tables
        for schema, name, key, is_disabled in connection.execute(REFERRING, quote(*table))
        if not is_disabled
    ]
    yield from (f"ALTER TABLE {name} NOCHECK CONSTRAINT {key};" for name, key in keys)
    yield from (f"DELETE FROM {quote(*table)};" for table in tables)
    yield from (f"ALTER TABLE {name} WITH CHECK CHECK CONSTRAINT {key};" for name, key in keys)


def _drop_statements(connection: Connection, tables: Sequence[TableName]) -> Iterator[str]:
    """Yield the statements that drop tables, after the foreign keys that refer to them."""
    for table in tables:
        for schema, name, key, _ in connection.execute(REFERRING, quote(*table)):
            yield f"ALTER TABLE {quote(schema, name)} DROP CONSTRAINT {quote(key)};"
    yield from (f"DROP TABLE {quote(*table)};" for table in tables)


def remove(url: str, removal: Removal) -> None:
    """Carry a removal out, all of it or nothing."""
    with (
        closing(open_session(url)) as connection,
        name_work(f"removing {removal.what}"),
        transaction(connection),
    ):
        for text in removal.statements:
            connection.run(text)
