"""Objects that a pipeline leaves at a PostgreSQL target; see `ports/reset.py`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing

import psycopg

from penstock.engines.postgres.connect import connect, quote, server_errors, statement
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.model.words import count_words
from penstock.ports.reset import APPLICATION_NAME, Leftovers, names_of
from penstock.sql.state_leftovers import find_leftovers

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
        return find_leftovers(store, tables, lambda *names: _empty(connection, *names))


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
