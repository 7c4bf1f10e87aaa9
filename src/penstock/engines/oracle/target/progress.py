"""State tables in schema `WIREKITE` of an Oracle target, and what a pipeline leaves there.

A schema is a user of that name, which cannot log on. Times are UTC (`TIMESTAMP(6)`). A position may
have 39 digits, one more than a NUMBER has for certain, so it is kept as text. An empty text is NULL
in Oracle, so a column that may be empty is nullable. A row is locked by `SELECT ... FOR UPDATE`
before it changes, because only this waits for a limited time.

The queries for monitoring in Wirekite's guide are here in Oracle's SQL: `LATEST` and `LAG`.
This module does not import Spark, so every process may import it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from penstock.engines.oracle.connect import Connection, connect, quote
from penstock.host.errors import StatementFailed
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

OWNER = SCHEMA.upper()
"""Schema of our tables as the catalogue has it: their names are written without quotes."""
NAME_BYTES_MAX = 128
OLD_NAME_BYTES_MAX = 30
LONG_NAMES_SINCE = (12, 2)
LOCK_WAIT_S = 10
"""Seconds that a session waits for a row or a table that another one uses."""
DDL_WAIT = f"ALTER SESSION SET DDL_LOCK_TIMEOUT = {LOCK_WAIT_S}"
UTC_NOW = "SYS_EXTRACT_UTC(SYSTIMESTAMP)"
MOMENT_SQL = "TO_TIMESTAMP({}, 'SYYYY-MM-DD HH24:MI:SS.FF')"
VARCHAR_SAFE = 1_000
"""Characters that a VARCHAR2 has whatever the character set is; longer binds are CLOBs."""

LATEST = """
    SELECT source, mark, start_time, finish_time
    FROM wirekite.wirekite_progress
    WHERE operation = '{operation}'
    ORDER BY start_time DESC
    FETCH FIRST {limit} ROWS ONLY
"""
LAG = """
    SELECT (CAST(SYS_EXTRACT_UTC(SYSTIMESTAMP) AS DATE) - CAST(MAX(finish_time) AS DATE)) * 86400
           AS lag_seconds
    FROM wirekite.wirekite_progress
    WHERE operation = 'CL' AND finish_time IS NOT NULL
"""

LOCK_APPLIED = f"""
    SELECT applied_segment, applied_gsn, applied_position FROM {{table}}
     WHERE log_id = ? FOR UPDATE WAIT {LOCK_WAIT_S}
"""
ADVANCE = f"""
    UPDATE {{table}}
       SET applied_segment = ?, applied_gsn = ?, applied_trx = ?, applied_position = ?,
           applied_commit = {MOMENT_SQL.format("?")}
     WHERE log_id = ?
"""
CREATE_SCHEMA = f"CREATE USER {SCHEMA} NO AUTHENTICATION QUOTA UNLIMITED ON USERS"
DROP_SCHEMA = f"DROP USER {SCHEMA} CASCADE"
OUR_TABLES = f"SELECT table_name FROM all_tables WHERE owner = '{OWNER}' ORDER BY table_name"
HAS_TABLE = "SELECT 1 FROM all_tables WHERE owner = :owner AND table_name = :name"
_DUPLICATE = 1
USER_REFUSED = frozenset({922, 959})
"""Refusals of CREATE USER: NO AUTHENTICATION is not known before 18c, or no such tablespace."""
_NOT_THERE = (942,)
_MADE_MEANWHILE = (1, 955, 1920)  # a row, a table, a user of this name


def upsert_by_merge(row: Upsert) -> str:
    """Return a MERGE statement; the existing row is `t`, the inserted one `s`.

    Columns of the condition cannot be updated in Oracle, and are not: they are the key's.
    """
    names = list(row.values)
    selected = ", ".join(f"{value} AS {name}" for name, value in row.values.items())
    keys = row.keys if not row.changes else row.keys[:1]
    same = " OR ".join(
        "(" + " AND ".join(f"t.{column} = s.{column}" for column in key) + ")" for key in keys
    )
    sets = ", ".join(f"t.{column} = {value}" for column, value in row.changes.items())
    update = f"\n WHEN MATCHED THEN UPDATE SET {sets}" if sets else ""
    inserted = ", ".join(f"s.{name}" for name in names)
    return (
        f"MERGE INTO {row.table} t\nUSING (SELECT {selected} FROM dual) s\n   ON ({same}){update}\n"
        f" WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({inserted})"
    )


DIALECT = StateDialect(
    container="schema",
    types={
        "start_time": "timestamp(6) not null",
        "finish_time": "timestamp(6) null",
        "action": "varchar2(8 char) not null primary key",
        "only_row": "number(1) default 1 primary key check (only_row = 1)",
        "log_id": "varchar2(255 char)",
        "holder": "varchar2(64 char)",
        "position": "varchar2(39 char)",
        "moment": "timestamp(6)",
        "name": "varchar2(128 byte)",
        "flag": "number(1)",
        "long_text": "clob",
        "plan": "plan",
    },
    varchar="varchar2({} char)",
    bigint="number(19)",
    create_table="create table",
    has_schema=f"SELECT 1 FROM all_users WHERE username = '{OWNER}'",
    create_schema=CREATE_SCHEMA,
    drop_schema=DROP_SCHEMA,
    present=f"SELECT LOWER(table_name) FROM all_tables WHERE owner = '{OWNER}'"
    " AND LOWER(table_name) IN ({names})",
    placeholder=":b{}",
    upsert=upsert_by_merge,
    new="s.{}",
    true="1",
    either="GREATEST({}, {})",
    now=UTC_NOW,
    utc_now=UTC_NOW,
    for_update=RowLock(suffix=f" for update wait {LOCK_WAIT_S}"),
    for_share=RowLock(suffix=f" for update wait {LOCK_WAIT_S}"),
    newest=LATEST,
    merge_name_max=NAME_BYTES_MAX - 4,
    name_encoding="utf-8",
)


def name_bytes_max(version: Sequence[int]) -> int:
    """Return the greatest length of a name in bytes. version: the server's."""
    return NAME_BYTES_MAX if tuple(version) >= LONG_NAMES_SINCE else OLD_NAME_BYTES_MAX


def open_session(url: str) -> Connection:
    """Connect for penstock's own statements. Outside a transaction each one commits at once.

    Raises the typed errors of a connection.
    """
    connection = connect(url, autocommit=True)
    try:
        connection.run(DDL_WAIT)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run a transaction, and roll it back whole on any error. DDL inside of it would commit it."""
    connection.set_autocommit(is_on=False)
    try:
        yield
        connection.commit()
    except BaseException:
        try:
            connection.rollback()
        except PenstockError:
            connection.close()  # the server rolls back the transaction of a lost session
        raise
    finally:
        if not connection.is_closed:
            connection.set_autocommit(is_on=True)


class OracleProgress(StateStore):
    """Connection to the progress tables in an Oracle target."""

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
            return self._connection.execute(self._number(sql), **self._binds(values))

    def run(self, sql: str, values: Sequence[object] = (), *, doing: str) -> int:
        """Run a statement and return the number of rows that it found.

        A MERGE of a row that another session inserts at the same time waits for it, and fails: it
        is run again, and then finds the row.
        """
        try:
            return self._run(sql, values, doing=doing)
        except StatementFailed as error:
            if error.fields.get("errno") != _DUPLICATE or not sql.startswith("MERGE"):
                raise
        return self._run(sql, values, doing=doing)

    def _run(self, sql: str, values: Sequence[object], *, doing: str) -> int:
        with name_work(doing):
            return self._connection.run(self._number(sql), **self._binds(values))

    def _number(self, sql: str) -> str:
        return self.dialect.number_parameters(sql)

    def _binds(self, values: Sequence[object]) -> dict[str, Any]:
        return {f"b{place}": self._parameter(one) for place, one in enumerate(values, 1)}

    def _parameter(self, value: object) -> object:
        """Return a value that the driver binds as the type that its column has."""
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, str) and len(value) > VARCHAR_SAFE:
            return self._connection.make_clob(value)
        return str(value) if isinstance(value, int) and abs(value) >= 10**19 else value

    def transaction(self) -> AbstractContextManager[object]:
        return transaction(self._connection)

    def ensure(self, names: Sequence[str]) -> None:
        """Create missing tables; what another session creates at the same time is looked at again.

        Each statement commits, so nothing keeps others out.
        """
        for _ in range(len(names) + 1):
            try:
                super().ensure(names)
            except StatementFailed as error:
                if error.fields.get("errno") in USER_REFUSED:
                    raise self.unwritable(error) from error
                if error.fields.get("errno") not in _MADE_MEANWHILE:
                    raise
            else:
                return
        super().ensure(names)

    @contextmanager
    def create_alone(self) -> Iterator[None]:
        """Create tables one by one; see `ensure`."""
        yield

    def advance(self, *, log_id: str, before: Applied, after: Applied) -> None:
        """Move the applied position; see `TargetProgress`. Locks the row until the commit."""
        table, doing = STAGED if is_shared(log_id) else LOG, "moving the applied position"
        found = self.rows(LOCK_APPLIED.format(table=table), (log_id,), doing=doing)
        wanted = (before.segment, before.gsn, before.position)
        if [tuple(map(int, row)) for row in found] != [wanted]:
            raise applied_by_another(before)
        self.run(
            ADVANCE.format(table=table),
            (
                *(after.segment, after.gsn, after.trx, str(after.position)),
                moment_text(utc(after.commit_time_us)),
                log_id,
            ),
            doing=doing,
        )

    def is_missing(self, error: StatementFailed) -> bool:
        return error.fields.get("errno") in _NOT_THERE

    def unwritable(self, error: PenstockError) -> ProgressUnwritable:
        return ProgressUnwritable(
            f"the tables of schema {SCHEMA} cannot be created in the target: {error.message}",
            hint=f"As a DBA, run: {CREATE_SCHEMA}; (with a tablespace of yours, and before 18c "
            "with IDENTIFIED BY [PASSWORD] ACCOUNT LOCK in place of NO AUTHENTICATION); GRANT "
            "CREATE ANY TABLE, CREATE ANY INDEX, ALTER ANY TABLE, DROP ANY TABLE, LOCK ANY TABLE, "
            "SELECT ANY TABLE, INSERT ANY TABLE, UPDATE ANY TABLE, DELETE ANY TABLE TO [USER];",
        )

    def close(self) -> None:
        self._connection.close()


class ShortNamesProgress(OracleProgress):
    """Progress tables of a server whose names have 30 bytes."""

    dialect = replace(DIALECT, merge_name_max=OLD_NAME_BYTES_MAX - 4)


def progress_of(connection: Connection) -> OracleProgress:
    """Return the progress tables over a connection, with names as long as the server allows."""
    if name_bytes_max(connection.version) == NAME_BYTES_MAX:
        return OracleProgress(connection)
    return ShortNamesProgress(connection)


def connect_progress(url: str, application_name: str) -> OracleProgress:
    """Connect to a target for its state tables. Raises the typed errors of a connection."""
    del application_name
    return progress_of(open_session(url))


def moment_text(moment: datetime | None) -> str | None:
    """Return a time as `MOMENT_SQL` reads it: a bind of the driver would lose its fraction."""
    return None if moment is None else f"{moment:%Y-%m-%d %H:%M:%S.%f}"


@contextmanager
def name_work(doing: str) -> Iterator[None]:
    """Name the work in errors of the server, in place of the statement."""
    try:
        yield
    except PenstockError as error:
        said = error.message.partition(": ")[2]
        if said and "errno" in error.fields:
            error.message = f"{doing}: {said}"
            error.args = (error.message,)
        raise


# --- what a reset removes -------------------------------------------------------------------------


def leftovers(url: str, *, tables: Collection[TableName] | None) -> Leftovers:
    """Return what the target holds of a pipeline. The schema stays, its tables are dropped."""
    with closing(open_session(url)) as connection:
        store = progress_of(connection)
        found = find_leftovers(store, tables, lambda *names: _empty(connection, *names))
        ours = [str(row[0]) for row in connection.execute(OUR_TABLES)]
        removals = tuple(_drops(one, ours) for one in found.removals)
        return replace(found, removals=tuple(one for one in removals if one.statements))


def _drops(removal: Removal, ours: Sequence[str]) -> Removal:
    """Return the removal of our schema as one statement for each of its tables."""
    if removal.statements != (DROP_SCHEMA,):
        return removal
    return replace(removal, statements=tuple(f"{drop_text(OWNER, name)};" for name in ours))


def drop_text(owner: str, name: str) -> str:
    """Return the statement that drops a table for good."""
    return f"DROP TABLE {quote(owner, name)} CASCADE CONSTRAINTS PURGE"


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
        if connection.execute(HAS_TABLE, owner=table.schema, name=table.name)
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
            statements=tuple(f"{drop_text(*table)};" for table in dropped),
        )


REFERRING = """
    SELECT f.owner, f.table_name, f.constraint_name
      FROM all_constraints f
      JOIN all_constraints p ON p.owner = f.r_owner AND p.constraint_name = f.r_constraint_name
     WHERE f.constraint_type = 'R' AND f.status = 'ENABLED' AND p.owner = :owner
       AND p.table_name = :name
     ORDER BY 1, 2, 3
"""


def _empty_statements(connection: Connection, tables: Sequence[TableName]) -> Iterator[str]:
    """Yield the statements that delete all rows, with the foreign keys to them enabled again."""
    keys = [
        (quote(str(owner), str(name)), quote(str(key)))
        for table in tables
        for owner, name, key in connection.execute(REFERRING, owner=table.schema, name=table.name)
    ]
    yield from (f"ALTER TABLE {name} DISABLE CONSTRAINT {key};" for name, key in keys)
    yield from (f"DELETE FROM {quote(*table)};" for table in tables)
    yield from (f"ALTER TABLE {name} ENABLE CONSTRAINT {key};" for name, key in keys)


def remove(url: str, removal: Removal) -> None:
    """Carry a removal out. Each DDL statement commits; all of them can be repeated."""
    with closing(open_session(url)) as connection, name_work(f"removing {removal.what}"):
        for text in removal.statements:
            connection.run(text.removesuffix(";"))
