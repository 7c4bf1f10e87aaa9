"""Find out whether the capture job has read the log to its end, as far as the server tells.

Change tables lag behind the log: a silent source may still have committed changes that are not
captured yet. The newest finished scan of the log is looked at first, and the newest captured commit
after it (reference, section 10 and S6). A scan that began after the question and had less
transactions than it may have (`maxtrans`) has drained the log. Where scans cannot be seen, which is
so on a readable secondary and without the right VIEW DATABASE STATE, a fixed time has to pass (S5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any

import structlog

from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.reader import Session, read_newest
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import PrivilegeMissing, StatementFailed, StatementInterrupted

MARGIN_S = 15.0  # the capture job scans every 5 seconds by default, Azure's scheduler every 20
MAXTRANS_DEFAULT = 500
POLL_S = 0.1
LOCKED_S = 60.0  # how long writers wait at most for a lock under which the log is drained
SCANS_AFTER = 2  # of two empty scans that ended later, one began later

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Scan:
    """Row of `statements.LAST_SCAN`. now: the server's local time when it was asked."""

    session_id: int
    started: datetime
    ended: datetime
    transaction_count: int
    empty_count: int
    now: datetime


@dataclass(slots=True)
class CaughtUp:
    """Question whether the capture job has drained the log since a moment.

    Attributes:
        margin_s: Time to wait where the server does not tell.
    """

    margin_s: float = MARGIN_S
    clock: Clock = field(default=REAL_CLOCK)
    _since: Scan | None = None
    _since_s: float = 0.0
    _drained_to: int | None = None
    _has_warned: bool = False

    def begin(self, session: Session) -> None:
        """Note the moment."""
        self._since = self._last_scan(session)
        self._since_s = self.clock.monotonic_s()
        self._drained_to = None

    def is_reached(self, session: Session, position: int) -> bool:
        """Return whether the log is drained, and everything captured by then is before position."""
        if self._drained_to is None and self._is_drained(session):
            self._drained_to = read_newest(session).position
        return self._drained_to is not None and self._drained_to <= position

    def _is_drained(self, session: Session) -> bool:
        last = self._last_scan(session)
        if last is None or self._since is None:
            self._warn()
            return self.clock.monotonic_s() - self._since_s >= self.margin_s
        if last.transaction_count >= self._most(session):
            return False
        if last.started >= self._since.now:
            return True
        is_same = last.session_id == self._since.session_id
        return is_same and last.empty_count >= self._since.empty_count + SCANS_AFTER

    def _last_scan(self, session: Session) -> Scan | None:
        """Return the newest finished scan; None if the server shows none."""
        rows = _rows(session, statements.LAST_SCAN)
        return Scan(*rows[0]) if rows and None not in rows[0] else None

    def _most(self, session: Session) -> int:
        """Return how many transactions a scan reads at most."""
        for job, most, _ in _rows(session, statements.JOBS):
            if job == statements.CAPTURE_JOB and most is not None:
                return int(most)
        return MAXTRANS_DEFAULT

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.info("the server shows no scans of its log", waits_s=self.margin_s)


def wait_captured(
    session: Session, *, clock: Clock = REAL_CLOCK, limit_s: float = inf, who_waits: str = ""
) -> int:
    """Wait until everything committed so far is captured; return the newest commit.

    limit_s: wait for so many seconds at most, because who_waits waits, too.
    Raises StatementInterrupted after that.
    """
    caught_up = CaughtUp(clock=clock)
    caught_up.begin(session)
    until_s = clock.monotonic_s() + limit_s
    while not caught_up.is_reached(session, read_newest(session).position):
        if clock.monotonic_s() > until_s:
            raise StatementInterrupted(
                f"the capture job did not reach the end of the log in {limit_s:g} seconds, while "
                f"{who_waits} waited",
                hint="Run `penstock doctor`: it says whether the capture job runs.",
            )
        clock.sleep(POLL_S)
    return read_newest(session).position


def _rows(session: Session, sql: str) -> list[tuple[Any, ...]]:
    """Return a statement's rows; nothing if the user may not ask, or the server has no such view.

    Azure SQL Database has no msdb.
    """
    try:
        return session.execute(sql)
    except (PrivilegeMissing, StatementFailed):
        return []
