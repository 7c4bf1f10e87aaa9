"""Steps of a bulk load after the rows: keys, indexes, statistics, foreign keys.

Each is safe to repeat. Not here: the statements that create keys (`postgres.schema`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg

from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    connect,
    quote,
    server_errors,
)
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.schema import add_foreign_keys, add_keys
from penstock.engines.postgres.target.target import read_target_tables
from penstock.model import TableDefinition, TableName
from penstock.ports.target import target_name

APPLICATION_NAME = "penstock bulk keys"
INDEX_MEMORY = "256MB"
ROUGH_STATISTICS = 10  # buckets and most common values per column; PostgreSQL's default is 100

# Whether autovacuum will analyze a table that got many rows: within autovacuum_naptime, a minute.
AUTOVACUUM_COMES = """
    select current_setting('autovacuum')::bool
           and current_setting('track_counts')::bool
           and coalesce((select o.option_value::bool
                           from pg_options_to_table(c.reloptions) as o
                          where o.option_name = 'autovacuum_enabled'), true)
      from pg_class as c
     where c.oid = to_regclass(%(name)s)
"""


def add_all_keys(
    target_url: str,
    definitions: Sequence[TableDefinition],
    namespaces: Mapping[str, str],
    *,
    threads: int,
    stop: Callable[[], bool],
) -> None:
    """Give the tables that penstock made their keys and indexes, and all of them statistics.

    Several tables at once, the largest first; none is begun after stop() said so. Raises the
    errors of `postgres.schema.add_keys`.
    """
    settings = {**EXACT_TEXT_SETTINGS, "maintenance_work_mem": INDEX_MEMORY}

    def finish(definition: TableDefinition, made: set[TableName]) -> None:
        if stop():
            return
        target = target_name(definition.name, namespaces)
        with connect(target_url, application_name=APPLICATION_NAME, options=settings) as connection:
            commit_durably(connection)  # the load counts as finished after it
            if target in made:
                add_keys(connection, definition, namespaces)
            with server_errors(f"analyzing {target}"):
                analyze(connection, definition, target)

    with connect(target_url, application_name=APPLICATION_NAME) as connection:
        made = PostgresProgress(connection).made_tables()
    ordered = sorted(definitions, key=lambda d: -d.size_bytes)
    with ThreadPoolExecutor(threads) as executor:
        for done in [executor.submit(finish, definition, made) for definition in ordered]:
            done.result()


def analyze(connection: psycopg.Connection, definition: TableDefinition, table: TableName) -> None:
    """Give the planner statistics of a table that was filled just now.

    For the columns that it has: the source may have more by now. Rough ones where autovacuum soon
    makes better ones: it finds the rows counted as changed, because an ANALYZE that names columns
    does not reset that count.
    """
    row = connection.execute(AUTOVACUUM_COMES, {"name": quote(*table)}).fetchone()
    there = read_target_tables(connection, [table]).get(table)
    columns = ", ".join(
        quote(c.name)
        for c in definition.columns
        if not c.generated and there is not None and there.column(c.name) is not None
    )
    if row is None or not row[0] or not columns:
        connection.execute(f"analyze {quote(*table)}")
        return
    connection.execute(f"set default_statistics_target = {ROUGH_STATISTICS}")
    connection.execute(f"analyze {quote(*table)} ({columns})")


def make_foreign_keys(
    connection: psycopg.Connection,
    definitions: Sequence[TableDefinition],
    namespaces: Mapping[str, str],
) -> list[str]:
    """Give the tables that penstock made their foreign keys; notes as `add_foreign_keys` has."""
    made = PostgresProgress(connection).made_tables()
    ours = [d for d in definitions if target_name(d.name, namespaces) in made]
    return add_foreign_keys(connection, ours, namespaces)
