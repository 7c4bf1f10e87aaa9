"""Stage batches in a separate thread, so that the next one is ready after each.

It handles one request at a time: it looks for segments after a position until there are some, and
stages them. The loader requests the next batch before it applies the current one, so at most one is
staged ahead, in the other set of merge tables. If the loader stops, holds or begins again, it
abandons the request; the next request empties its merge tables.

The thread has its own connection. All but the request itself runs in the thread of the loader. Not
here: staging (`sql_target.py`), and when a batch may be applied (`loader.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import structlog

from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.log.layout import SegmentFile
from penstock.model.position import POSITION_MAX
from penstock.ports.loading import Batch, BatchOptions, BatchStager, Loading
from penstock.ports.target import Applied

if TYPE_CHECKING:  # the states of tables are listed without Spark
    from penstock.load.session import Session

logger = structlog.get_logger(__name__)
faults.declare("load.ahead.before", "load.ahead.after")

LOOK_INTERVAL_S = 0.5
APPLIED_INTERVAL_S = 0.02


class Sessions(Protocol):
    """Provider of the Spark session."""

    def get(self) -> Session:
        """Return the session, started if necessary."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A requested batch: rows after `applied`, with position < before.

    look: finds its segments; called repeatedly until it returns some. wait: waits until another
    look is useful, at most this many seconds. Without it the whole time passes.
    """

    applied: Applied
    look: Callable[[], Sequence[SegmentFile]]
    wait: Callable[[float], object] | None = None
    before: int = POSITION_MAX


@dataclass(slots=True)
class _Request:
    """One request, shared by its thread and the loader."""

    wanted: Wanted
    abandoned: threading.Event = field(default_factory=threading.Event)
    found: bool = False
    session: Session | None = None
    staged: Batch | None = None
    error: BaseException | None = None
    thread: threading.Thread | None = None


class StagePrefetch:
    """Stager of the next batch, while the loader works on another."""

    def __init__(
        self,
        options: BatchOptions,
        sessions: Sessions,
        loading: Loading,
        *,
        jobs: str = "",
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the parts; work begins with the first request(). jobs: name for its own
        Spark jobs.
        """
        self._jobs = jobs
        self._options = options
        self._sessions = sessions
        self._loading = loading
        self._clock = clock
        self._stager: BatchStager | None = None
        self._request: _Request | None = None
        self._applying: Batch | None = None

    @property
    def is_asked(self) -> bool:
        """Return whether a batch is being staged, or waits to be fetched."""
        return self._request is not None

    @property
    def is_staging(self) -> bool:
        """Return whether segments were found, so that waiting is useful."""
        return self._request is not None and self._request.found

    def request(self, wanted: Wanted, *, applying: Batch | None = None) -> None:
        """Begin with a batch. applying: the batch whose merge tables must not be touched meanwhile.

        Call it again only after the previous one was fetched or abandoned.
        """
        assert self._request is None, "the batch before was neither fetched nor abandoned"
        request = self._request = _Request(wanted)
        self._applying = applying
        request.thread = threading.Thread(
            target=self._run, args=(request,), name="stager", daemon=True
        )
        request.thread.start()

    def note_applied(self) -> None:
        """Record that the batch given as `applying` no longer needs its merge tables."""
        self._applying = None

    def fetch(self, timeout_s: float) -> Batch | None:
        """Return the staged batch; None if it is not ready within this time. Raises errors of
        staging.
        """
        request = self._request
        assert request is not None, "nothing was asked for"
        assert request.thread is not None
        request.thread.join(timeout_s)
        if request.thread.is_alive():
            return None
        self._request = None
        if request.error is not None:
            raise request.error
        return request.staged

    def abandon(self) -> None:
        """Abandon the request, whether it is staged or not; return once no thread works on it."""
        request, self._request = self._request, None
        self._applying = None
        if request is None:
            return
        assert request.thread is not None
        request.abandoned.set()
        if request.thread.is_alive() and request.session is not None:
            request.session.cancel()
        request.thread.join()
        if request.found:
            logger.info("staged batch abandoned", gsn_after=request.wanted.applied.gsn)

    def close(self) -> None:
        """Abandon the request and close the connection; request() opens another."""
        self.abandon()
        self._disconnect()

    def _disconnect(self) -> None:
        stager, self._stager = self._stager, None
        if stager is not None:
            stager.close()

    # --- in the request's thread ------------------------------------------------------------------

    def _run(self, request: _Request) -> None:
        try:
            files = self._look(request)
            if files:
                request.staged = self._stage(request, files)
        except BaseException as error:
            request.error = error
            self._disconnect()

    def _look(self, request: _Request) -> Sequence[SegmentFile]:
        has_emptied = False
        while not request.abandoned.is_set():
            files = request.wanted.look()
            if files:
                request.found = True
                return files
            # What is applied meanwhile must be done before its merge tables can be emptied.
            interval_s = LOOK_INTERVAL_S
            if self._stager is not None and not has_emptied:
                interval_s = APPLIED_INTERVAL_S
                if self._applying is None:
                    self._stager.empty_ahead()
                    has_emptied = True
            wait = request.wanted.wait or request.abandoned.wait
            wait(interval_s)
        return ()

    def _stage(self, request: _Request, files: Sequence[SegmentFile]) -> Batch | None:
        # Read once: a batch that is no longer applied at this moment is irrelevant.
        applying = self._applying
        if applying is not None:
            faults.point("load.ahead.before")
        session = self._sessions.get()
        if self._jobs:
            session = session.with_jobs(self._jobs)
        if self._stager is None:
            self._stager = self._loading.open_stager(self._options, clock=self._clock)
        request.session = session
        if request.abandoned.is_set():
            return None
        staged = self._stager.stage(
            files,
            session,
            applied=request.wanted.applied,
            before=request.wanted.before,
            place=0 if applying is None else 1 - applying.place,
        )
        if applying is not None:
            faults.point("load.ahead.after")
        return staged
