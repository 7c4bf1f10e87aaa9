"""How far the target is behind the source, read from the source, the log and the target.

Seconds are of commit times, so that an idle pipeline has no lag: nothing is outstanding. Not
here: the query of document 000, which counts from the last finished file and grows when idle, and
asking a source of MySQL or MariaDB (`binlog_lag.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg

from penstock.control.log_facts import LogEnd, outstanding_commit_us, read_log_end
from penstock.control.positions import LsnPositions, Positions, positions_of
from penstock.engines.postgres.connect import server_errors
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import BinlogPosition, Lsn
from penstock.ports.config import Config
from penstock.ports.handover import read_handover
from penstock.ports.progress import open_progress
from penstock.ports.target import Applied

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


def _difference(first: int, last: int) -> int:
    return last - first


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """What a source tells of its log behind ours. commit_us: of its first transaction, or None."""

    commit_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """Where the source is. Positions are 0 where there is none; bytes behind the slot with them.

    flush_lag_s: how long the source has waited for the log to have a commit durably. A server
    without slots knows nothing of us: there slot_exists says that there is a log, slot_active that
    an extractor runs, confirmed is the log's end; and unread is told. bytes_between: of the
    source's log between two positions.
    """

    position: int
    slot_exists: bool
    slot_active: bool
    confirmed: int
    flush_lag_s: float
    unread: Unread | None = None
    bytes_between: Callable[[int, int], int] = _difference

    @property
    def slot_lag_bytes(self) -> int:
        """What the source has written behind the slot's confirmed position."""
        return self.bytes_behind(self.confirmed) if self.slot_exists else 0

    def bytes_behind(self, position: int) -> int:
        """What the source has written behind a position."""
        return max(self.bytes_between(position, self.position), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far behind.

    seconds: the age of the oldest commit that is not applied yet; 0 when none is outstanding.
    slot_bytes: WAL the source has written behind the slot. applied_bytes: WAL between what is
    applied and the source's present end, other databases' and the server's own included.
    rows: row changes in the log that are not applied. extracting: somebody reads the slot.
    positions: how the source writes them.
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
    positions: Positions = field(default_factory=LsnPositions, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """The lag as `penstock lag --json` prints it; positions as the source writes them."""
        return {
            "lag_seconds": round(self.seconds, 3),
            "extract_lag_bytes": self.slot_bytes,
            "slot_lag_bytes": self.slot_bytes,
            "applied_lag_bytes": self.applied_bytes,
            "rows_outstanding": self.rows,
            "extracting": self.extracting,
            "source_position": self.positions.text(self.source_position),
            "log_position": self.positions.text(self.log_position),
            "applied_position": self.positions.text(self.applied_position),
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
    positions: Positions | None = None,
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
    elif source.unread is not None:
        if source.unread.commit_us is not None:
            seconds = max((now_us - source.unread.commit_us) / 1e6, 0.0)
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
        applied_bytes=source.bytes_behind(at) if at else 0,
        rows=max(log.end.gsn - applied.gsn, 0),
        extracting=source.slot_active,
        source_position=source.position,
        log_position=log.end.position,
        applied_position=at,
        applied_commit_us=applied.commit_time_us,
        positions=positions or LsnPositions(),
    )


def read_lag(config: Config, clock: Clock = REAL_CLOCK) -> Lag:
    """Read all three places and tell the lag. Raises their typed errors."""
    from penstock.control.source_reader import open_source  # which is made of what is here

    name = "penstock lag"
    with closing(open_progress(config.target.url, application_name=name)) as target:
        applied = target.read_applied()
    log = read_log_end(config)
    with closing(open_source(config, application_name=name)) as source:
        state = source.state(log)
    return lag_of(
        state,
        log,
        applied,
        outstanding_us=outstanding_commit_us(config, applied.gsn),
        now_us=clock.now_us(),
        begin=log_begin(config),
        positions=positions_of(config),
    )


def log_begin(config: Config) -> int:
    """Where the handover says that the log begins; 0 without one."""
    handover = read_handover(config)
    if handover is None or not handover.slot_position:
        return 0
    kind = BinlogPosition if config.source.is_mysql else Lsn
    return kind.parse(handover.slot_position).ordinal
