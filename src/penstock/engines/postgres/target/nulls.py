"""NOT NULL that the source has dropped since the target's table was created.

The server sends no message for DROP NOT NULL; the first NULL shows it. Only tables that penstock
made are altered: their NOT NULL is a copy of the source's, and no more than that.
"""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
import structlog

from penstock.engines.postgres.connect import quote
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.model import TableName
from penstock.ports.target import SCHEMA

logger = structlog.get_logger(__name__)

NOT_NULL_COLUMNS = """
    select a.attname
      from pg_attribute a
     where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped and a.attnotnull
       and not exists (select from pg_index i where i.indrelid = a.attrelid and i.indisprimary
                          and a.attnum = any(i.indkey))
"""


def drop_not_null(
    connection: psycopg.Connection, merges: Iterable[tuple[TableName, str, MergeLayout]]
) -> int:
    """Drop NOT NULL of columns for which filled merge tables hold a NULL; return their number.

    merges: target table, the name of its merge table and its layout.
    """
    made = PostgresProgress(connection).made_tables()
    dropped = 0
    for table, staging, layout in merges:
        if table not in made:
            continue
        places = {column.name: place for place, column in enumerate(layout.relation.columns)}
        rows = connection.execute(NOT_NULL_COLUMNS, (quote(*table),)).fetchall()
        names = [name for (name,) in rows if name in places]
        if not names:
            continue
        found = ", ".join(
            f"coalesce(bool_or({_is_null(layout, places[name])}), false)" for name in names
        )
        row = connection.execute(
            f"select {found} from {quote(SCHEMA, staging)} as m where m.{quote(layout.count)} > 0"
        ).fetchone()
        for name, has_null in zip(names, row or (), strict=True):
            if has_null:
                connection.execute(
                    f"alter table {quote(*table)} alter column {quote(name)} drop not null"
                )
                logger.warning("column may be null from now on", table=str(table), column=name)
                dropped += 1
    return dropped


def _is_null(layout: MergeLayout, place: int) -> str:
    value = f"{layout.reference(place, 'm')} is null"
    if not layout.relation.key:
        return value
    absent = f"m.{quote(layout.absent)}"
    return f"{value} and ({absent} is null or get_bit({absent}, {place}) = 0)"
