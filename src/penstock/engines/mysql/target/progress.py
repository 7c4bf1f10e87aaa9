"""State tables in database `wirekite` of a MySQL or MariaDB target, and a pipeline's leftovers.

The times in wirekite_progress are moments: TIMESTAMP columns show them in the reader's time zone,
as `now()` does. `wirekite_merge` holds a stamp for each merge table. Plain PyMySQL and no Spark, so
that every process may import this.

Each statement that removes leftovers commits separately, so they are in an order in which a reset
that was killed can be repeated: the tables first, and the record of them last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import pymysql
from pymysql.cursors import Cursor

from penstock.engines.mysql.connect import (
    Connection,
    connect,
    quote,
    rows,
    run,
    server_errors,
    value,
)
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.model.words import count_words
from penstock.ports.reset import APPLICATION_NAME, Leftovers, names_of
from penstock.ports.target import SCHEMA, ProgressUnwritable
from penstock.sql.state_dialect import RowLock, StateDialect, Upsert
from penstock.sql.state_store import StateStore, find_leftovers

NAME_LENGTH_MAX = 64
LOCK_NAME = "penstock wirekite"
LOCK_WAIT_S = 30
_NOT_THERE = (1049, 1146)  # the database, the table


def upsert_on_duplicate_key(row: Upsert) -> str:
    """Return `insert ... on duplicate key update`."""
    if not row.changes:
        return f"insert ignore into {row.table} {row.insert_text}"
    return f"insert into {row.table} {row.insert_text} on duplicate key update {row.changes_text}"


DIALECT = StateDialect(
    container="database",
    types={
        # The defaults are written out: without them older servers set start_time at every update.
        "start_time": "timestamp not null default current_timestamp",
        "finish_time": "timestamp null default null",
        "action": "varchar(8) not null primary key",
        "only_row": "tinyint not null default 1 primary key",
        "log_id": "varchar(255)",
        "holder": "varchar(64) not null default ''",
        "position": "decimal(39, 0) unsigned",
        "moment": "datetime(6)",
        "name": "varchar(64)",
        "flag": "boolean",
        "long_text": "longtext",
        "plan": "plan",
    },
    table_options=" engine = InnoDB row_format = dynamic"
    " default character set utf8mb4 collate utf8mb4_bin",
    has_schema=f"select 1 from information_schema.schemata where schema_name = '{SCHEMA}'",
    create_schema=f"create database if not exists {SCHEMA}",
    drop_schema=f"drop database {SCHEMA};",
    present="select table_name from information_schema.tables"
    f" where table_schema = '{SCHEMA}' and table_name in ({{names}})",
    has_no_ahead="not exists (select 1 from information_schema.tables"
    f" where table_schema = '{SCHEMA}' and table_name = 'wirekite_ahead')",
    upsert=upsert_on_duplicate_key,
    old="{}",
    new="values({})",
    now="current_timestamp",
    utc_now="utc_timestamp(6)",
    for_share=RowLock(suffix=" lock in share mode"),
    merge_name_max=61,  # of NAME_LENGTH_MAX
    folds_case=True,  # on some servers
)


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run a transaction, and roll it back whole on any error.

    This holds also if the server has rolled back only the statement, as after a lock wait timeout.
    Raises the errors of `server_errors` if it cannot be begun or committed.
    """
    with server_errors("beginning a transaction"):
        connection.begin()
    try:
        yield
        with server_errors("committing"):
            connection.commit()
    except BaseException:
        if connection.open:
            try:
                connection.rollback()
            except pymysql.Error:
                connection.close()  # the server rolls back the open transaction
        raise


class MySQLProgress(StateStore):
    """Connection to the progress tables in a MySQL or MariaDB target."""

    dialect = DIALECT
    tables = (*StateStore.tables, "wirekite_merge")

    def __init__(self, connection: Connection) -> None:
        """Store the connection: autocommit, or in the transaction that the rows belong to.

        The connection of `advance` counts found rows, not changed ones.
        """
        self._connection = connection

    @property
    def is_closed(self) -> bool:
        return not self._connection.open

    def rows(self, sql: str, values: Sequence[object] = (), *, doing: str) -> Sequence[Any]:
        with server_errors(doing), self._connection.cursor(Cursor) as cursor:
            cursor.execute(self.dialect.number_parameters(sql), values or None)
            rows: Sequence[Any] = cursor.fetchall()
            return rows

    def run(self, sql: str, values: Sequence[object] = (), *, doing: str) -> int:
        return run(
            self._connection, self.dialect.number_parameters(sql), values or None, doing=doing
        )

    def transaction(self) -> AbstractContextManager[object]:
        return transaction(self._connection)

    @contextmanager
    def create_alone(self) -> Iterator[None]:
        values = (LOCK_NAME, LOCK_WAIT_S)
        run(self._connection, "do get_lock(%s, %s)", values, doing="locking our tables")
        try:
            yield
        finally:
            if self._connection.open:
                doing = "unlocking our tables"
                run(self._connection, "do release_lock(%s)", (LOCK_NAME,), doing=doing)

    def is_missing(self, error: StatementFailed) -> bool:
        return error.fields.get("errno") in _NOT_THERE

    def unwritable(self, error: PrivilegeMissing) -> ProgressUnwritable:
        user = value(self._connection, "select current_user()", doing="asking who we are")
        return ProgressUnwritable(
            f"database {SCHEMA} cannot be created or written: {error.message}",
            hint=f"As an administrator, run: create database {SCHEMA}; grant all on {SCHEMA}.* to "
            f"{user};",
        )

    def close(self) -> None:
        self._connection.close()


def connect_progress(url: str, application_name: str) -> MySQLProgress:
    """Connect to a target for its state tables. Raises the typed errors of a connection."""
    return MySQLProgress(connect(url, application_name=application_name))


DOING = "looking at what the target holds of the pipeline"
THERE = """
    select table_schema, table_name
      from information_schema.tables
     where table_type in ('BASE TABLE', 'SYSTEM VERSIONED')
       and table_schema in %s
"""


def leftovers(url: str, *, tables: Collection[TableName] | None) -> Leftovers:
    """Return what the target holds of a pipeline."""
    with closing(connect(url, application_name=APPLICATION_NAME)) as connection:
        store = MySQLProgress(connection)
        return find_leftovers(store, tables, lambda *names: _empty(connection, *names))


def plan_emptying(url: str, tables: Collection[TableName]) -> tuple[Removal, ...]:
    """Return how the existing ones of these tables are emptied."""
    with closing(connect(url, application_name=APPLICATION_NAME)) as connection:
        return tuple(_empty(connection, tables, ()))


def _empty(
    connection: Connection, tables: Collection[TableName], made: Collection[TableName]
) -> Iterator[Removal]:
    schemas = sorted({table.schema for table in tables})
    there = rows(connection, THERE, (schemas,), doing=DOING) if schemas else []
    present = sorted(
        {TableName(row["table_schema"], row["table_name"]) for row in there} & set(tables)
    )
    if not present:
        return
    dropped = [table for table in present if table in made]
    kept = [table for table in present if table not in made]
    # No order would satisfy all foreign keys between them.
    unchecked = "set session foreign_key_checks = 0;"
    if dropped:
        listed = ", ".join(quote(*table) for table in dropped)
        yield Removal(
            what=f"{count_words(len(dropped), 'table')} at the target that penstock made: "
            f"{names_of(dropped)}",
            statements=(unchecked, f"drop table if exists {listed};"),
        )
    if kept:
        yield Removal(
            what=f"all rows of {count_words(len(kept), 'table')} at the target: {names_of(kept)}",
            statements=(unchecked, *(f"truncate table {quote(*table)};" for table in kept)),
        )


def remove(url: str, removal: Removal) -> None:
    """Carry a removal out."""
    with closing(connect(url, application_name=APPLICATION_NAME)) as connection:
        for text in removal.statements:
            run(connection, text, doing=f"removing {removal.what}")
