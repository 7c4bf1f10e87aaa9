"""Rows of the logs that instances share: who has taken one over, and that it is there.

Not here: their applied positions (`progress.py`).
"""

from __future__ import annotations

from penstock.engines.mysql.connect import Connection, run
from penstock.engines.mysql.target.progress import (
    OPTIONS,
    ensure_tables,
    named_lock,
    read_applied,
    read_if_there,
)
from penstock.ports.target import SCHEMA, Applied

# A row for each log that instances share. It is made when one of them first takes it over.
SHARED_TABLE = f"""
    create table if not exists {SCHEMA}.wirekite_staged (
        log_id           varchar(255) not null primary key,
        applied_segment  bigint not null default -1,
        applied_gsn      bigint not null default 0,
        applied_trx      bigint not null default 0,
        applied_position decimal(39, 0) unsigned not null default 0,
        applied_commit   datetime(6) null,
        holder           varchar(64) not null default '',
        taken_over       datetime(6) null
    ) {OPTIONS}
"""
TAKE_OVER = f"""
    insert into {SCHEMA}.wirekite_staged (log_id, holder, taken_over)
    values (%s, %s, utc_timestamp(6))
        on duplicate key update
           applied_segment = applied_segment + 1,
           holder = values(holder),
           taken_over = values(taken_over)
"""


def take_over(connection: Connection, log_id: str, holder: str) -> Applied:
    """See `SharedProgress`."""
    _ensure_shared_table(connection)
    run(connection, TAKE_OVER, (log_id, holder), doing="taking over the applied position")
    return read_applied(connection, log_id)


def _ensure_shared_table(connection: Connection) -> None:
    ensure_tables(connection)
    with named_lock(connection):
        run(connection, SHARED_TABLE, doing=f"making table {SCHEMA}.wirekite_staged")


def ensure_shared(connection: Connection, log_id: str) -> None:
    """Insert the row of a shared log unless it is there."""
    if holder_of(connection, log_id) is None:
        _ensure_shared_table(connection)
        sql = f"insert ignore into {SCHEMA}.wirekite_staged (log_id) values (%s)"
        run(connection, sql, (log_id,), doing="making the row of the applied position")


def holder_of(connection: Connection, log_id: str) -> str | None:
    """Return who has taken a shared log over last; None if it has no row."""
    query = f"select holder from {SCHEMA}.wirekite_staged where log_id = %s"
    found = read_if_there(connection, query, (log_id,))
    return str(found[0]["holder"]) if found else None
