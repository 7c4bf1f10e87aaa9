"""Mining sessions: windows of redo, each with logs that are chosen for it.

A window has an explicit end, up to which every open thread has written its redo; without one the
view is frozen at the session's start (reference, 1a O5). Each window begins with START_LOGMNR, and
ends with END_LOGMNR. A log may be switched between its choice and the fetch of its rows: the server
says so (ORA-00310, ORA-01368), and the window is read again with other files.

LogMiner's memory in a session grows, so a session is renewed by age. Not here: what the rows mean
(`assembly`), where a window begins (`stream`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from penstock.engines.oracle.source import statements
from penstock.engines.oracle.source.errors import (
    RELOAD,
    IncarnationChanged,
    RedoAwaited,
    RedoLost,
    RedoUnreadable,
)
from penstock.engines.oracle.source.log_choice import (
    Lack,
    LogFile,
    LogViews,
    Missing,
    choose_logs,
    oldest_scn,
)
from penstock.engines.oracle.source.recovery import Recovery, is_missing, recovery_of
from penstock.engines.oracle.source.views import (
    Incarnation,
    Session,
    read_clock,
    read_incarnation,
    read_views,
)
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import ServerBusy, StatementFailed, StatementInterrupted
from penstock.host.faults import declare, point
from penstock.model import PenstockError

ROWS_AT_ONCE = 2000
SESSION_AGE_MAX_S = 1200.0
RETRIES = 5
SLICE_S = 0.5  # of a pause
RETRY_S = 0.5  # doubled with each retry: 15 s in all
SPAN_FIRST = 100_000  # SCNs
SPAN_MIN = 1000
SPAN_MAX = 1 << 44
ROWS_WANTED = 200_000  # of a window
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

logger = structlog.get_logger(__name__)
declare("oracle.window.before", "oracle.window.after")

Sink = Callable[[list[tuple[Any, ...]]], None]


@dataclass(slots=True)
class Span:
    """Length of windows in SCNs: about ROWS_WANTED rows, more while an old transaction is open."""

    size: int = SPAN_FIRST

    def end(self, low: int, last: int, flushed: int) -> int:
        """Return the end of the window that begins at low, when the log has all up to last."""
        return min(flushed, max(low, last) + self.size)

    def note(self, row_count: int, *, is_pinned: bool) -> None:
        """Adapt to a window that was read. is_pinned: the next one begins at the same SCN."""
        if is_pinned or row_count < ROWS_WANTED // 2:
            self.size = min(self.size * 2, SPAN_MAX)
        elif row_count > ROWS_WANTED * 2:
            self.shorten()

    def shorten(self) -> None:
        """Halve the windows."""
        self.size = max(self.size // 2, SPAN_MIN)


class Miner:
    """Reader of windows. Used by one thread.

    Attributes:
        incarnation: That of the log; None before `check`.
        span: Length of windows.
    """

    def __init__(
        self,
        opens: Callable[[], Session],
        *,
        clock: Clock = REAL_CLOCK,
        rows_at_once: int = ROWS_AT_ONCE,
        retry_s: float = RETRY_S,
    ) -> None:
        """Keep the arguments. opens: opens a session for mining."""
        self.incarnation: Incarnation | None = None
        self.span = Span()
        self._opens = opens
        self._clock = clock
        self._rows_at_once = rows_at_once
        self._retry_s = retry_s
        self._session: Session | None = None
        self._opened_s = 0.0
        self._zone = timedelta()
        self._time_us: tuple[datetime, int] | None = None  # the last one that was converted
        self._views: tuple[int, LogViews] | None = None

    # ------------------------------------------------------------------ the session

    @property
    def session(self) -> Session:
        """Return the session; open one if there is none. Raises IncarnationChanged."""
        age_s = self._clock.monotonic_s() - self._opened_s
        if self._session is not None and age_s > SESSION_AGE_MAX_S:
            self.close()
        if self._session is None:
            self._session = self._opens()
            self._opened_s = self._clock.monotonic_s()
            self.check()
            self._zone = read_clock(self._session).utcoffset() or timedelta()
            self._time_us = None
        return self._session

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def check(self) -> None:
        """Check that the database is still of the log's incarnation. Raises IncarnationChanged."""
        session = self._session if self._session is not None else self.session
        now, known = read_incarnation(session), self.incarnation
        if known is None:
            self.incarnation = now
            return
        if (now.dbid, now.resetlogs) != (known.dbid, known.resetlogs):
            raise IncarnationChanged(
                f"the database {now.name} (DBID {now.dbid}) was opened with RESETLOGS at SCN "
                f"{now.resetlogs[0]}; the log belongs to {known.name} (DBID {known.dbid}), "
                f"RESETLOGS at SCN {known.resetlogs[0]}",
                hint=f"It was restored to an earlier time, or is another database. {RELOAD}",
            )

    def time_us(self, time: object) -> int:
        """Return a TIMESTAMP of the redo in microseconds since 1970 UTC; 0 without one."""
        if not isinstance(time, datetime):
            return 0
        known = self._time_us
        if known is not None and known[0] == time:
            return known[1]  # of another commit in the same second
        utc = time.replace(tzinfo=UTC) - self._zone
        time_us = (utc - EPOCH) // timedelta(microseconds=1)
        self._time_us = time, time_us
        return time_us

    # ------------------------------------------------------------------ bounds

    def read_end(self, low: int) -> int:
        """Return the SCN up to which all redo is written; 0 if no thread is open."""
        self.check()
        assert self.incarnation is not None, "checked"
        views = read_views(self.session, self.incarnation.resetlogs, low)
        self._views = low, views
        return views.end_scn

    def open_starts(self) -> list[int]:
        """Return the SCNs at which the transactions began that are open now.

        A transaction whose START is not written yet is among them. Call it after `read_end`.
        """
        rows = self.session.execute(statements.OPEN_TRANSACTIONS)
        return [start for _, _, _, start in rows if start]

    def oldest_scn(self) -> int:
        """Return the lowest SCN from which on all redo is there."""
        session = self.session
        assert self.incarnation is not None, "the session checked it"
        return oldest_scn(read_views(session, self.incarnation.resetlogs, 0))

    def check_recoverable(self, known: dict[int, int], last: int) -> None:
        """Warn of data files in which rows were loaded without redo after an SCN.

        known: newest such SCN of each file, of which was warned before; it is changed.
        """
        for file, scn in self.session.execute(statements.UNRECOVERABLE):
            if scn and scn > last and known.get(file) != scn:
                known[file] = scn
                logger.warning(
                    "rows were loaded without redo (NOLOGGING), which the log cannot have",
                    file=file,
                    scn=scn,
                    hint="ALTER DATABASE FORCE LOGGING; and load the tables of that file again",
                )

    # ------------------------------------------------------------------ windows

    def read(self, query: str, low: int, high: int, begin: Callable[[], Sink]) -> Iterator[None]:
        """Read the rows of a window whose SCNs are at least low and at most high.

        Yields between two lists of rows, so that the caller can do something else.

        Args:
            query: See `statements.contents`.
            low: First SCN.
            high: Last SCN, at most that of `read_end`.
            begin: Returns what takes the rows, in lists; called again for each retry.

        Raises:
            RedoLost: A log is missing, and stayed so.
            RedoAwaited: A log is not ready.
            RedoUnreadable: A log is corrupt.
            StatementInterrupted: A new session may succeed.
        """
        for attempt in range(RETRIES + 1):
            is_last = attempt == RETRIES
            try:
                files = self._choose(low - 1, high, is_last=is_last)
                if files is not None:
                    yield from self._mine(files, query, low, high, begin())
                    return
            except (StatementFailed, StatementInterrupted, ServerBusy) as error:
                self._recover(error, is_last=is_last)
            self._views = None
            next_s = self._clock.monotonic_s() + self._retry_s * 2**attempt
            while (left_s := next_s - self._clock.monotonic_s()) > 0:
                self._clock.sleep(min(left_s, SLICE_S))
                yield

    def _choose(self, low: int, high: int, *, is_last: bool) -> Sequence[LogFile] | None:
        """Return the files; None if one is missing, which may be ready soon."""
        session = self.session
        assert self.incarnation is not None, "the session checked it"
        if self._views is not None and self._views[0] <= low:
            views = self._views[1]
        else:
            views = read_views(session, self.incarnation.resetlogs, low)
        found = choose_logs(views, low, high)
        if not isinstance(found, Missing):
            return found
        logger.info("a log is missing", reason=str(found))
        if not is_last:
            return None
        if found.lack in (Lack.END, Lack.FILE):
            raise RedoAwaited(
                f"the redo of SCN {low} to {high} is not complete: {found}",
                hint="penstock retries automatically. If this repeats, look for errors of the "
                "archiver in V$ARCHIVE_DEST_STATUS.",
            )
        raise _redo_lost(str(found), low)

    def _mine(
        self, files: Sequence[LogFile], query: str, low: int, high: int, sink: Sink
    ) -> Iterator[None]:
        session = self.session
        point("oracle.window.before")
        add = statements.ADD_FIRST
        for file in files:
            session.run(add, name=file.name)
            add = statements.ADD_NEXT
        # Some servers leave out the rows of the first SCN.
        session.run(statements.START, low=low - 1, high=high)
        for rows in session.rows(query, array_rows=self._rows_at_once):
            sink(rows)
            yield
        session.run(statements.END)
        point("oracle.window.after")

    def _recover(self, error: PenstockError, *, is_last: bool) -> None:
        """Prepare for another attempt after an error, or raise what ends the attempts."""
        recovery = recovery_of(error)
        if recovery is Recovery.RAISE:
            raise error
        logger.info("mining failed", recovery=recovery.value, error=error.message)
        self.close()
        if recovery is Recovery.STOP:
            raise RedoUnreadable(
                f"LogMiner cannot read the redo: {error.message}",
                hint=f"Check the archived logs with RMAN: VALIDATE ARCHIVELOG ALL; {RELOAD}",
            ) from error
        if recovery is Recovery.SHORTEN:
            self.span.shorten()
            raise StatementInterrupted(error.message, hint=error.hint, **error.fields) from error
        if not is_last:
            return
        if is_missing(error):
            raise _redo_lost(error.message, 0) from error
        raise RedoAwaited(
            f"the redo could not be read: {error.message}",
            hint="penstock retries automatically. If this repeats, make the redo logs larger: "
            "they are overwritten while they are read.",
        ) from error


def _redo_lost(what: str, scn: int) -> RedoLost:
    place = f" from SCN {scn} on" if scn else ""
    return RedoLost(
        f"redo that the log needs{place} is gone: {what}",
        hint=f"Restore the archived logs with RMAN if they exist: RESTORE ARCHIVELOG FROM SCN n; "
        f"then run penstock again. Otherwise: {RELOAD}",
    )
