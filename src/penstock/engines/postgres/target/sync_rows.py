"""The rows of `wirekite.wirekite_apart` in a PostgreSQL target; see `ports/table_sync.py`."""

from __future__ import annotations

import psycopg

from penstock.model import TableName
from penstock.ports.table_sync import SyncState, TableSync
from penstock.ports.target import Applied

READ = """
    select source_schema, source_name, state, copy_id, start_position::text,
           applied_segment, applied_gsn, applied_trx, applied_position::text
      from wirekite.wirekite_apart
"""
WRITE = """
    insert into wirekite.wirekite_apart
    values (%s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp() at time zone 'utc')
        on conflict (source_schema, source_name) do update
       set state = excluded.state,
           copy_id = excluded.copy_id,
           start_position = excluded.start_position,
           applied_segment = excluded.applied_segment,
           applied_gsn = excluded.applied_gsn,
           applied_trx = excluded.applied_trx,
           applied_position = excluded.applied_position,
           since = excluded.since
"""


def read_table_syncs(connection: psycopg.Connection) -> dict[TableName, TableSync]:
    """Return the rows by source table; none before the table is made."""
    try:
        rows = connection.execute(READ).fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return {}
    return {
        (table := TableName(row[0], row[1])): TableSync(
            table=table,
            state=SyncState(row[2]),
            copy_id=row[3],
            start=int(row[4]),
            applied=Applied(segment=row[5], gsn=row[6], trx=row[7], position=int(row[8])),
        )
        for row in rows
    }


def write_table_sync(connection: psycopg.Connection, row: TableSync) -> None:
    """Insert or replace a table's row."""
    at = row.applied
    values = (row.copy_id, row.start, at.segment, at.gsn, at.trx, at.position)
    connection.execute(WRITE, (*row.table, str(row.state), *values))
