"""Lag of a SQL Server source: what was captured and is not in our log, and what the source keeps.

The server's position is the newest captured commit. What the capture job itself has not read yet is
not known here; `penstock doctor` asks for its latency.
"""

from __future__ import annotations

from penstock.engines.sqlserver.connect import connect
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.reader import Session, read_commits, read_newest
from penstock.engines.sqlserver.source.source_engine import bytes_between
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd, Retention, SourceReader, SourceState, Unread

# Age of the oldest transaction that change tables may have, in seconds.
OLDEST = (
    "SELECT TOP (1) DATEDIFF(second, tran_end_time, GETDATE()) AS age_s "
    "FROM cdc.lsn_time_mapping ORDER BY start_lsn"
)


class SQLServerLagReader(SourceReader):
    """Reader of the newest captured commit, and of the first that our log lacks."""

    is_closed = False

    def __init__(self, config: Config, _application_name: str) -> None:
        """Connect."""
        self._session: Session = connect(config.source.url)

    def close(self) -> None:
        self.is_closed = True
        self._session.close()

    def state(self, log: LogEnd) -> SourceState:
        here = log.end.position
        newest = read_newest(self._session)
        commits = []
        if newest.position > here:
            commits = read_commits(
                self._session, here, newest.position, count=1, zone_us=newest.zone_us
            )
        return SourceState(
            position=max(newest.position, here) if here and not commits else newest.position,
            now_us=newest.now_us,
            slot_exists=bool(log.log_id),
            slot_active=log.has_writer,
            confirmed=here,
            unread=Unread(commit_us=commits[0].time_us if commits else None),
            counts_bytes=False,
            bytes_between=bytes_between,
        )

    def retention(self) -> Retention | None:
        """Return how long change tables are kept; None if the user may not read the jobs."""
        try:
            jobs = self._session.execute(statements.JOBS)
            oldest = self._session.execute(OLDEST)
        except (PrivilegeMissing, StatementFailed):
            return None
        kept = [one for job, _, one in jobs if job == statements.CLEAN_UP_JOB and one is not None]
        if not kept:
            return None
        return Retention(
            size_bytes=0,
            age_s=float(oldest[0][0]) if oldest and oldest[0][0] is not None else None,
            left_bytes=None,
            state="reserved",
            expires_s=float(kept[0]) * 60,
        )
