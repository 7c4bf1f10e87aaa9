"""The rows of `wirekite.wirekite_apart` in a MySQL or MariaDB target; see `ports/table_sync.py`."""

from __future__ import annotations

from penstock.engines.mysql.connect import Connection, rows, run
from penstock.engines.mysql.target.progress import NOT_THERE
from penstock.host.errors import StatementFailed
from penstock.model import TableName
from penstock.ports.table_sync import SyncState, TableSync
from penstock.ports.target import SCHEMA, Applied

READ = f"select * from {SCHEMA}.wirekite_apart"
WRITE = (
    f"replace into {SCHEMA}.wirekite_apart"
    " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, utc_timestamp(6))"
)


def read_table_syncs(connection: Connection) -> dict[TableName, TableSync]:
    """The rows by source table; none before the table is made."""
    try:
        found = rows(connection, READ, doing="reading the table syncs")
    except StatementFailed as error:
        if error.fields.get("errno") not in NOT_THERE:
            raise
        return {}
    return {
        (table := TableName(row["source_schema"], row["source_name"])): TableSync(
            table=table,
            state=SyncState(row["state"]),
            copy_id=row["copy_id"],
            start=int(row["start_position"]),
            applied=Applied(
                segment=row["applied_segment"],
                gsn=row["applied_gsn"],
                trx=row["applied_trx"],
                position=int(row["applied_position"]),
            ),
        )
        for row in found
    }


def write_table_sync(connection: Connection, row: TableSync) -> None:
    """Insert or replace a table's row."""
    at = row.applied
    values = (row.copy_id, row.start, at.segment, at.gsn, at.trx, at.position)
    run(
        connection,
        WRITE,
        (*row.table, str(row.state), *values),
        doing="writing a table's state",
    )
