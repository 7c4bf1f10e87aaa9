"""What a pipeline leaves at a MySQL or MariaDB target; see `ports/leftovers.py`.

Each statement commits by itself, so the order is one in which a reset that was killed can be
repeated: the tables first, and what remembers them last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing

from penstock.engines.mysql.connect import Connection, connect, quoted, rows, run, value
from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.model.words import count_words
from penstock.ports.leftovers import APPLICATION_NAME, Leftovers, names_of
from penstock.ports.target import SCHEMA

DOING = "looking at what the target holds of the pipeline"
OURS = "select table_name from information_schema.tables where table_schema = %s"
THERE = """
    select table_schema, table_name
      from information_schema.tables
     where table_type in ('BASE TABLE', 'SYSTEM VERSIONED')
       and table_schema in %s
"""


def leftovers(url: str, *, tables: Collection[TableName] | None) -> Leftovers:
    """See `ports.leftovers`."""
    with closing(connect(url, application_name=APPLICATION_NAME)) as connection:
        has_schema = value(
            connection,
            "select count(*) from information_schema.schemata where schema_name = %s",
            (SCHEMA,),
            doing=DOING,
        )
        ours = {row["table_name"] for row in rows(connection, OURS, (SCHEMA,), doing=DOING)}
        log_id = ""
        if "wirekite_log" in ours:
            log = f"select log_id from {SCHEMA}.wirekite_log"
            log_id = value(connection, log, doing=DOING) or ""
        removals: list[Removal] = []
        if tables is not None:
            known = _known(connection) if "wirekite_table" in ours else {}
            made = {table for table, was_made in known.items() if was_made}
            removals += _emptied(connection, {*tables, *known}, made)
    if has_schema:
        removals.append(
            Removal(
                what=f"the pipeline's progress at the target: database {SCHEMA}",
                statements=(f"drop database {quoted(SCHEMA)};",),
            )
        )
    return Leftovers(log_id=log_id, removals=tuple(removals))


def plan_emptying(url: str, tables: Collection[TableName]) -> tuple[Removal, ...]:
    """See `ports.leftovers`."""
    with closing(connect(url, application_name=APPLICATION_NAME)) as connection:
        return tuple(_emptied(connection, tables, ()))


def _known(connection: Connection) -> dict[TableName, bool]:
    """The target's tables that it remembers, and whether penstock made them."""
    found = rows(
        connection,
        f"select target_schema, target_name, made from {SCHEMA}.wirekite_table",
        doing=DOING,
    )
    return {TableName(row["target_schema"], row["target_name"]): bool(row["made"]) for row in found}


def _emptied(
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
        listed = ", ".join(quoted(*table) for table in dropped)
        yield Removal(
            what=f"{count_words(len(dropped), 'table')} at the target that penstock made: "
            f"{names_of(dropped)}",
            statements=(unchecked, f"drop table if exists {listed};"),
        )
    if kept:
        yield Removal(
            what=f"all rows of {count_words(len(kept), 'table')} at the target: {names_of(kept)}",
            statements=(unchecked, *(f"truncate table {quoted(*table)};" for table in kept)),
        )


def remove(url: str, removal: Removal) -> None:
    """See `ports.leftovers`."""
    with closing(connect(url, application_name=APPLICATION_NAME)) as connection:
        for text in removal.statements:
            run(connection, text, doing=f"removing {removal.what}")
