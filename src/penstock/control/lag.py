"""How far the target is behind the source, read from the source, the log and the target.

Seconds are of commit times, so that an idle pipeline has no lag: nothing is outstanding. Not
here: the query of document 000, which counts from the last finished file and grows when idle.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.control.config import Config
from penstock.control.handover_state import read_handover
from penstock.control.log_facts import LogEnd, outstanding_commit_us, read_log_end
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.connect import connect, server_errors
from penstock.load.progress import open_progress
from penstock.load.target import Applied
from penstock.model import Lsn

# The bytes are those of document 000's query; on a standby there is no current WAL position.
SLOT_STATE = """
    select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                else pg_current_wal_lsn() end as now,
           s.confirmed_flush_lsn,
           s.active,
           extract(epoch from r.flush_lag)::float8
      from (select) as one
      left join pg_replication_slots as s on s.slot_name = %(slot)s
      left join pg_stat_replication as r on r.pid = s.active_pid
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """Where the source is. Positions are 0 where there is none; bytes behind the slot with them.

    flush_lag_s: how long the source has waited for the log to have a commit durably.
    """

    position: int
    slot_exists: bool
    slot_active: bool
    confirmed: int
    flush_lag_s: float

    @property
    def slot_lag_bytes(self) -> int:
        """What the source has written behind the slot's confirmed position."""
        return max(self.position - self.confirmed, 0) if self.slot_exists else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far behind.

    seconds: the age of the oldest commit that is not applied yet; 0 when none is outstanding.
    slot_bytes: WAL the source has written behind the slot. applied_bytes: WAL between what is
    applied and the source's present end, other databases' and the server's own included.
    rows: row changes in the log that are not applied. extracting: somebody reads the slot.
    """

    seconds: float
    slot_bytes: int
    applied_bytes: int
    rows: int
    extracting: bool
    source_position: int
    log_position: int
    applied_position: int
    applied_commit_us: int

    def as_dict(self) -> dict[str, Any]:
        """The lag as `penstock lag --json` prints it; positions as the source writes them."""
        return {
            "lag_seconds": round(self.seconds, 3),
            "slot_lag_bytes": self.slot_bytes,
            "applied_lag_bytes": self.applied_bytes,
            "rows_outstanding": self.rows,
            "extracting": self.extracting,
            "source_position": str(Lsn(self.source_position)),
            "log_position": str(Lsn(self.log_position)),
            "applied_position": str(Lsn(self.applied_position)),
        }


def read_source_state(connection: psycopg.Connection, slot: str) -> SourceState:
    """Ask the source where it is and where the slot stands."""
    with server_errors("reading the source's position"):
        row = connection.execute(SLOT_STATE, {"slot": slot}).fetchone()
    if row is None:
        raise RuntimeError("no row from a query that always has one")
    return SourceState(
        position=Lsn.parse(row[0]).ordinal if row[0] else 0,
        slot_exists=row[1] is not None,
        slot_active=bool(row[2]),
        confirmed=Lsn.parse(row[1]).ordinal if row[1] else 0,
        flush_lag_s=row[3] or 0.0,
    )


def lag_of(
    source: SourceState,
    log: LogEnd,
    applied: Applied,
    *,
    outstanding_us: int | None,
    now_us: int,
    begin: int = 0,
) -> Lag:
    """Put the three together. Pure.

    outstanding_us: commit time of the first row in the log that is not applied; None: there is
    none. With nothing in the log and no reader on the slot it is not known whether what the
    source has written since concerns this pipeline: then the age of the last applied commit is
    told, which is the most it can be. begin: the position where the log begins, for as long as
    nothing is applied.
    """
    seconds = 0.0
    if outstanding_us is not None:
        seconds = max((now_us - outstanding_us) / 1e6, 0.0)
    elif source.slot_active and source.slot_lag_bytes:
        seconds = source.flush_lag_s
    elif source.slot_lag_bytes and applied.commit_time_us:
        seconds = max((now_us - applied.commit_time_us) / 1e6, 0.0)
    # Once everything in the log is applied, the target is where the log is.
    at = max(applied.position, log.end.position) if outstanding_us is None else applied.position
    at = max(at, begin)
    return Lag(
        seconds=seconds,
        slot_bytes=source.slot_lag_bytes,
        applied_bytes=max(source.position - at, 0) if at else 0,
        rows=max(log.end.gsn - applied.gsn, 0),
        extracting=source.slot_active,
        source_position=source.position,
        log_position=log.end.position,
        applied_position=at,
        applied_commit_us=applied.commit_time_us,
    )


def read_lag(config: Config, clock: Clock = REAL_CLOCK) -> Lag:
    """Read all three places and tell the lag. Raises their typed errors."""
    name = "penstock lag"
    with closing(open_progress(config.target.url, application_name=name)) as target:
        applied = target.read_applied()
    with connect(config.source.url, application_name=name) as source:
        state = read_source_state(source, config.change_extractor.replication_slot)
    return lag_of(
        state,
        read_log_end(config),
        applied,
        outstanding_us=outstanding_commit_us(config, applied.gsn),
        now_us=clock.now_us(),
        begin=log_begin(config),
    )


def log_begin(config: Config) -> int:
    """Where the handover says that the log begins; 0 without one."""
    handover = read_handover(config)
    return Lsn.parse(handover.slot_position).ordinal if handover and handover.slot_position else 0
