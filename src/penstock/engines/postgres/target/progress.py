"""State tables in schema `wirekite` of a PostgreSQL target, and what a pipeline leaves there.

Times are UTC. Plain psycopg and no Spark, so that every process may import this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import Any

import psycopg

from penstock.engines.postgres.connect import connect, quote, server_errors, statement
from penstock.engines.postgres.target.parts import find_prepared, removal_of_prepared
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.model.words import count_words
from penstock.ports.bulk import APPLICATION_NAME as COPIER
from penstock.ports.reset import APPLICATION_NAME, Leftovers, names_of
from penstock.ports.target import ProgressUnwritable
from penstock.sql.state_dialect import StateDialect
from penstock.sql.state_store import StateStore, find_leftovers

_NOT_THERE = ("42P01", "3F000")  # the table, the schema
_UTC_NOW = "clock_timestamp() at time zone 'utc'"

DIALECT = StateDialect(
    container="schema",
    types={
        "start_time": "timestamp not null",
        "finish_time": "timestamp null",
        "action": "varchar(8) not null",
        "only_row": "boolean primary key default true check (only_row)",
        "log_id": "text",
        "holder": "text not null default ''",
        "position": "numeric(39)",
        "moment": "timestamp",
        "name": "varchar(63)",
        "flag": "boolean",
        "long_text": "text",
        "plan": "plan",
    },
    has_schema="select 1 from pg_namespace where nspname = 'wirekite'",
    drop_schema="drop schema wirekite cascade;",
    present="select tablename::text from pg_tables"
    " where schemaname = 'wirekite' and tablename in ({names})",
    has_no_ahead="to_regclass('wirekite.wirekite_ahead') is null",
    now=_UTC_NOW,
    utc_now=_UTC_NOW,
    merge_name_max=60,  # of 63
    name_encoding="utf-8",
)
UNDER_WAY = """
    select n.nspname, c.relname, sum(p.tuples_processed)::int8
      from pg_stat_progress_copy as p
      join pg_stat_activity as a on a.pid = p.pid
      join pg_class as c on c.oid = p.relid
      join pg_namespace as n on n.oid = c.relnamespace
     where p.command = 'COPY FROM'
       and a.application_name = %(name)s
       and a.datname = current_database()
     group by 1, 2
"""


class PostgresProgress(StateStore):
    """Connection to the progress tables in a PostgreSQL target."""

    dialect = DIALECT

    def __init__(self, connection: psycopg.Connection) -> None:
        """Store the connection: autocommit, or in the transaction that the rows belong to."""
        self._connection = connection

    @property
    def is_closed(self) -> bool:
        return self._connection.closed or self._connection.broken

    def rows(self, sql: str, values: Sequence[object] = (), *, doing: str) -> Sequence[Any]:
        with server_errors(doing):
            return self._connection.execute(self._text(sql), values).fetchall()

    def run(self, sql: str, values: Sequence[object] = (), *, doing: str) -> int:
        with server_errors(doing):
            return self._connection.execute(self._text(sql), values).rowcount

    def run_many(self, sql: str, rows: Iterable[Sequence[object]], *, doing: str) -> None:
        """Send the statements without waiting for each answer."""
        with server_errors(doing), self._connection.cursor() as cursor:
            cursor.executemany(self._text(sql), rows)

    def _text(self, sql: str) -> Any:
        return statement(self.dialect.number_parameters(sql))

    def transaction(self) -> AbstractContextManager[object]:
        return self._connection.transaction()

    @contextmanager
    def create_alone(self) -> Iterator[None]:
        """Create tables in a transaction. What is created before an error is rolled back."""
        with server_errors("creating the state tables"), self._connection.transaction():
            self._connection.execute("select pg_advisory_xact_lock(hashtext('penstock wirekite'))")
            yield

    def is_missing(self, error: StatementFailed) -> bool:
        return error.fields.get("sqlstate") in _NOT_THERE

    def unwritable(self, error: PrivilegeMissing) -> ProgressUnwritable:
        user, database = self._connection.info.user, self._connection.info.dbname
        return ProgressUnwritable(
            f"schema wirekite cannot be created in database {database}: {error.message}",
            hint=f'As its owner, run: create schema wirekite authorization "{user}"; or: '
            f'grant create on database "{database}" to "{user}";',
        )

    def under_way(self) -> Mapping[TableName, int]:
        with server_errors("reading the bulk load's progress"):
            found = self._connection.execute(UNDER_WAY, {"name": COPIER}).fetchall()
        return {TableName(schema, name): int(count) for schema, name, count in found}

    def prepared_names(self) -> tuple[str, ...]:
        log_id = self.log_id()
        return tuple(find_prepared(self._connection, log_id)) if log_id else ()

    def close(self) -> None:
        self._connection.close()


def connect_progress(url: str, application_name: str) -> PostgresProgress:
    """Connect to a target for its state tables. Raises the typed errors of a connection."""
    return PostgresProgress(connect(url, application_name=application_name))


DOING = "looking for the pipeline's state at the target"
KIND = """
    select c.relkind
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
     where n.nspname = %s
       and c.relname = %s
       and c.relkind in ('r', 'p')
"""


def leftovers(url: str, *, tables: Collection[TableName] | None) -> Leftovers:
    """Return what the target holds of a pipeline."""
    with (
        closing(connect(url, application_name=APPLICATION_NAME)) as connection,
        server_errors(DOING),
    ):
        store = PostgresProgress(connection)
        found = find_leftovers(store, tables, lambda *names: _empty(connection, *names))
        prepared = removal_of_prepared(connection, found.log_id)  # they lock what is removed
        return replace(found, removals=(*prepared, *found.removals))


def plan_emptying(url: str, tables: Collection[TableName]) -> tuple[Removal, ...]:
    """Return how the existing ones of these tables are emptied."""
    with (
        closing(connect(url, application_name=APPLICATION_NAME)) as connection,
        server_errors("looking at the tables of the target"),
    ):
        return tuple(_empty(connection, tables, ()))


def _empty(
    connection: psycopg.Connection, tables: Collection[TableName], made: Collection[TableName]
) -> Iterator[Removal]:
    """Yield the removal of all rows in one statement, which foreign keys do not prevent."""
    kinds = {table: connection.execute(KIND, tuple(table)).fetchone() for table in sorted(tables)}
    present = {table: kind[0] for table, kind in kinds.items() if kind is not None}
    if not present:
        return
    # A table that others inherit from keeps their rows; a partitioned one has none of its own.
    listed = ", ".join(
        quote(*table) if kind == "p" else f"only {quote(*table)}" for table, kind in present.items()
    )
    yield Removal(
        what=f"all rows of {count_words(len(present), 'table')} at the target: {names_of(present)}",
        statements=(f"truncate table {listed};",),
    )
    dropped = [table for table in present if table in made]
    if dropped:
        yield Removal(
            what=f"{len(dropped)} of these tables themselves, which penstock made",
            statements=(f"drop table {', '.join(quote(*table) for table in dropped)};",),
        )


def remove(url: str, removal: Removal) -> None:
    """Carry a removal out."""
    with (
        closing(connect(url, application_name=APPLICATION_NAME)) as connection,
        server_errors(f"removing {removal.what}"),
    ):
        for text in removal.statements:
            connection.execute(statement(text))
