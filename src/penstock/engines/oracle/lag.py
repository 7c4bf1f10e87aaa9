"""Lag of an Oracle source: the redo that is written and not in our log, and what is archived.

The server's position is the SCN up to which every open thread has written its redo, as far as a
window can be read. The server turns SCNs into times only approximately, to some seconds.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.codec.oracle.scn import OraclePosition
from penstock.engines.oracle.connect import connect_root
from penstock.engines.oracle.source.mining import EPOCH
from penstock.engines.oracle.source.views import Session, read_clock
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd, Retention, SourceReader, SourceState, Unread

WRITTEN = "SELECT MIN(LAST_REDO_CHANGE#) FROM V$THREAD WHERE STATUS = 'OPEN'"
TIME_OF = "SELECT TO_CHAR(SCN_TO_TIMESTAMP(:scn), 'YYYY-MM-DD HH24:MI:SS.FF6') FROM DUAL"
ARCHIVED = (
    "SELECT SUM(BLOCKS * BLOCK_SIZE), TO_CHAR(MIN(FIRST_TIME), 'YYYY-MM-DD HH24:MI:SS') "
    "FROM V$ARCHIVED_LOG WHERE NAME IS NOT NULL AND DELETED = 'NO' AND STATUS = 'A' "
    "AND STANDBY_DEST = 'NO'"
)
_UNKNOWN_SCN = 8181
_MICROSECOND = timedelta(microseconds=1)


class OracleLagReader(SourceReader):
    """Reader of the end of the written redo."""

    is_closed = False

    def __init__(self, config: Config, _application_name: str) -> None:
        """Connect."""
        self._session: Session = connect_root(config.source.url)

    def close(self) -> None:
        self.is_closed = True
        self._session.close()

    def state(self, log: LogEnd) -> SourceState:
        here = log.end.position
        now = read_clock(self._session)
        ((scn,),) = self._session.execute(WRITTEN)
        written = OraclePosition.of_scn(int(scn or 0)).ordinal
        commit_us = None
        if written > here > 0:
            commit_us = self._time_of(OraclePosition(here).scn + 1, now)
        return SourceState(
            position=max(written, here),
            now_us=(now - EPOCH) // _MICROSECOND,
            slot_exists=bool(log.log_id),
            slot_active=log.has_writer,
            confirmed=here,
            unread=Unread(commit_us=commit_us),
            counts_bytes=False,
            bytes_between=lambda first, last: int(0 < first < last),
        )

    def _time_of(self, scn: int, now: datetime) -> int | None:
        """Return the time of an SCN in microseconds; None if the server does not know it."""
        try:
            ((text,),) = self._session.execute(TIME_OF, scn=scn)
        except PenstockError as error:
            if error.fields.get("errno") != _UNKNOWN_SCN:
                raise
            return None
        # In the time zone of the database's host, which the clock tells.
        time = datetime.fromisoformat(str(text).strip()).replace(tzinfo=now.tzinfo)
        return (time - EPOCH) // _MICROSECOND

    def retention(self) -> Retention | None:
        """Return what is archived; None if the user may not ask."""
        try:
            now = read_clock(self._session)
            ((size, oldest),) = self._session.execute(ARCHIVED)
        except (PrivilegeMissing, StatementFailed):
            return None
        if oldest is None:
            return None
        since = datetime.fromisoformat(str(oldest).strip()).replace(tzinfo=now.tzinfo)
        return Retention(
            size_bytes=int(size or 0),
            age_s=max((now - since).total_seconds(), 0.0),
            left_bytes=None,
            state="reserved",
        )
