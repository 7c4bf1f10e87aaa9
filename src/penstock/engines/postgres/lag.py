"""The lag of a PostgreSQL source: its WAL behind the slot, and how much of it the server keeps."""

from __future__ import annotations

import psycopg

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import connect, server_errors
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd, Retention, SourceReader, SourceState

# The bytes are those of Wirekite's query; on a standby there is no current WAL position.
# Not pg_stat_replication's flush_lag: it is of what was confirmed last, and does not change until
# the next confirmation.
SLOT_STATE = """
    select (extract(epoch from clock_timestamp()) * 1e6)::int8,
           case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                else pg_current_wal_lsn() end,
           s.confirmed_flush_lsn,
           s.active
      from (select) as one
      left join pg_replication_slots as s on s.slot_name = %(slot)s
"""
# The files' times need a privilege: without it only bytes are known. A recycled file has the name
# of a later one and an old time, so names after the present one are left out.
KEPT = """
    select pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                                else pg_current_wal_lsn() end, restart_lsn)::int8,
           wal_status,
           safe_wal_size,
           case when not pg_is_in_recovery() then pg_walfile_name(restart_lsn) end,
           case when not pg_is_in_recovery() then pg_walfile_name(pg_current_wal_lsn()) end,
           has_function_privilege('pg_catalog.pg_ls_waldir()', 'execute')
      from pg_replication_slots
     where slot_name = %(slot)s
       and restart_lsn is not null
"""
FILE_AGE = """
    select extract(epoch from clock_timestamp() - min(modification))::float8
      from pg_ls_waldir()
     where name >= %(first)s
       and name <= %(last)s
       and length(name) = 24
"""


class PostgresLagReader(SourceReader):
    """The reader of a PostgreSQL source; see `ports.lag.SourceReader`."""

    def __init__(self, config: Config, application_name: str) -> None:
        """Connect. Raises the typed errors of a connection."""
        self._slot = config.change_extractor.replication_slot
        self._connection = connect(config.source.url, application_name=application_name)

    @property
    def is_closed(self) -> bool:
        return self._connection.closed or self._connection.broken

    def state(self, _log: LogEnd) -> SourceState:
        """Return the source's state. The slot shows what is not in our log yet."""
        return read_source_state(self._connection, self._slot)

    def retention(self) -> Retention | None:
        return read_retention(self._connection, self._slot)

    def close(self) -> None:
        self._connection.close()


def read_source_state(connection: psycopg.Connection, slot: str) -> SourceState:
    """Ask the source for its position and the slot's."""
    with server_errors("reading the source's position"):
        row = connection.execute(SLOT_STATE, {"slot": slot}).fetchone()
    if row is None:
        raise RuntimeError("no row from a query that always has one")
    return SourceState(
        now_us=row[0],
        position=Lsn.parse(row[1]).ordinal if row[1] else 0,
        slot_exists=row[2] is not None,
        slot_active=bool(row[3]),
        confirmed=Lsn.parse(row[2]).ordinal if row[2] else 0,
    )


def read_retention(connection: psycopg.Connection, slot: str) -> Retention | None:
    """Ask the source; None without a slot or once the slot is lost."""
    with server_errors("asking what the source keeps of its log"):
        row = connection.execute(KEPT, {"slot": slot}).fetchone()
        if row is None:
            return None
        size_bytes, state, left_bytes, first, last, may_look = row
        age_s: float | None = None
        if may_look and first is not None:
            found = connection.execute(FILE_AGE, {"first": first, "last": last}).fetchone()
            age_s = None if found is None or found[0] is None else max(found[0], 0.0)
    return Retention(
        size_bytes=max(size_bytes, 0), age_s=age_s, left_bytes=left_bytes, state=state or ""
    )
