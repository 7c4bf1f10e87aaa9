"""How much of its own log the source still keeps for a pipeline, in bytes and in time.

Not here: how far the extractor has read (`lag.py`), and judging it (`doctor_slot.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.engines.postgres.connect import server_errors

# Files are looked at only by who may: others learn the bytes alone. A recycled file has the name of
# a later one and an old time, so names behind the present one are left out.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What the source keeps because this pipeline has not confirmed it yet.

    size_bytes: of its log. age_s: since the oldest file of it was last written; None where the
    role may not ask. left_bytes: what may still be written before the source throws it away; None
    where it never does. state: the server's own word (reserved, extended, unreserved, lost).
    Servers of MySQL's family keep nothing for us: there it is all that they keep, and expires_s is
    the age at which they delete a file; None where they never do.
    """

    size_bytes: int
    age_s: float | None
    left_bytes: int | None
    state: str
    expires_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """As the web interface's JSON has it."""
        return {
            "size_bytes": self.size_bytes,
            "age_seconds": None if self.age_s is None else round(self.age_s, 1),
            "left_bytes": self.left_bytes,
            "state": self.state,
            "expires_seconds": self.expires_s,
        }


def read_retention(connection: psycopg.Connection, slot: str) -> Retention | None:
    """Ask the source; None without a slot or once the slot has lost its log."""
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
