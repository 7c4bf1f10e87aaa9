"""Leftovers of a pipeline at a MySQL or MariaDB target; see `ports/reset.py`.

Each statement commits separately, so they are in an order in which a reset that was killed can be
repeated: the tables first, and the record of them last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing

from penstock.engines.mysql.connect import Connection, connect, quote, rows, run
from penstock.engines.mysql.target.progress import MySQLProgress
from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.model.words import count_words
from penstock.ports.reset import APPLICATION_NAME, Leftovers, names_of
from penstock.sql.state_leftovers import find_leftovers

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
