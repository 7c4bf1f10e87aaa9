"""Consistent mode: the lease on a group, the begin of its log, and its target's applied position.

Work under a lease asks repeatedly whether it is still ours: it may be taken away, and it
expires when the staging database cannot be asked. Not here: the fence against late commits of the
work (`penstock.ports.progress.SharedProgress.take_over`).

The target's row of the log says how far everything is applied, by any instance. If no other
instance has taken the row over since we did, our log continues. Else it is thrown away: it may end
before the target's position, and the changes after its end are staged and can be read again. Taking
over also voids what a loader of the last holder is about to commit.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import msgspec
import structlog

from penstock.feeds.position import TakenOver, check_not_ahead, lease_lost, settle
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES
from penstock.host.retry import RECONNECT, Patience
from penstock.host.state_file import StateFile
from penstock.host.supervised import SupervisedThread
from penstock.log.layout import LogState, load_state, save_state
from penstock.model import FlushPoint, PenstockError
from penstock.model.hlc import Hlc
from penstock.model.layout import PipelineLayout
from penstock.ports.feeds import Group, Lease, StagedTable, StagingDatabase, StagingSession
from penstock.ports.progress import SharedProgress
from penstock.ports.target import Applied

logger = structlog.get_logger(__name__)
faults.declare(
    "stage.lease.acquired",
    "stage.lease.renew",
    "stage.lease.release",
    "stage.begin.taken_over",
    "stage.begin.emptied",
    "stage.begin.after",
)

RETRY_S = 1.0


class HeldLease:
    """Lease that is renewed by a thread of its own at half of its remaining time."""

    def __init__(
        self, database: StagingDatabase, lease: Lease, lifetime_s: float, clock: Clock
    ) -> None:
        """Hold the lease until `close`. lifetime_s: its lifetime, counted from now."""
        self._database = database
        self._lease = lease
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._until_s = clock.monotonic_s() + lifetime_s
        self._why = ""
        self._ended = threading.Event()
        self._thread = SupervisedThread("lease", self._run, wait=self._ended.wait, clock=clock)
        self._thread.start()

    def check(self) -> None:
        """Raise LeaseLost unless the lease is still held."""
        if not self._why and self._clock.monotonic_s() >= self._until_s:
            self._why = "it could not be renewed before it expired"
        if self._why:
            raise lease_lost(", ".join(self._lease.names), self._why)

    def _run(self) -> None:
        soon_s = min(RETRY_S, self._lifetime_s / 10)
        wait_s = max(soon_s, (self._until_s - self._clock.monotonic_s()) / 2)
        while not self._ended.wait(wait_s):
            began_s = self._clock.monotonic_s()
            try:
                faults.point("stage.lease.renew")
                with self._database.open_session() as session:
                    renewed = session.renew(self._lease, self._lifetime_s)
            except PenstockError as error:
                logger.warning("lease not renewed", error=error.message)
                wait_s = soon_s
                continue
            if renewed is None:
                self._why = "another instance has taken it away"
                return
            self._lease, self._until_s = renewed, began_s + self._lifetime_s
            wait_s = self._lifetime_s / 2

    def close(self) -> None:
        """Give the lease up, if it is still held."""
        self._ended.set()
        self._thread.join()
        try:
            faults.point("stage.lease.release")
            with self._database.open_session() as session:
                session.release(self._lease)
        except PenstockError as error:
            logger.warning("lease not released, it expires", error=error.message)


@contextmanager
def hold_lease(
    database: StagingDatabase,
    names: Sequence[str],
    lifetime_s: float,
    hostname: str,
    *,
    clock: Clock = REAL_CLOCK,
) -> Iterator[HeldLease | datetime]:
    """Yield the lease while the block runs, or the time until which another has it.

    Raises the errors of the staging database.
    """
    with database.open_session() as session:
        found = session.acquire(names, lifetime_s, hostname)
    if isinstance(found, datetime):
        yield found
        return
    faults.point("stage.lease.acquired")
    logger.info("lease acquired", names=list(names), hostname=hostname)
    lease = HeldLease(database, found, lifetime_s, clock)
    try:
        yield lease
    finally:
        lease.close()


HOLDER_FILE = "holder.json"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Token with which this directory took the log over last."""

    token: str


def take_over(log_id: str, progress: SharedProgress) -> TakenOver:
    """Become the one who moves the applied position. Call under the group's lease."""
    return TakenOver(log_id, progress.take_over(log_id, str(uuid.uuid4())).segment)


def begin_log(
    layout: PipelineLayout, log_id: str, source: Mapping[str, str], progress: SharedProgress
) -> None:
    """Prepare a log here that continues at the target's position. Call under the group's lease.

    source: the identity that the log's extractor names. Raises the errors of the disk and the
    target.
    """
    holders = StateFile(layout.root / HOLDER_FILE, Holder)
    state = load_state(layout.log)
    holder = holders.load()
    is_ours = state is not None and holder is not None and state.log_id == log_id
    if is_ours and holder is not None and progress.holder(log_id) == holder.token:
        return
    token = str(uuid.uuid4())
    applied = progress.take_over(log_id, token)
    faults.point("stage.begin.taken_over")
    holders.remove()
    for directory in (layout.log, layout.state, layout.spill):
        _empty(directory)
    faults.point("stage.begin.emptied")
    REAL_FILES.make_directory(layout.log)
    begin = FlushPoint(
        position=applied.position,
        gsn=applied.gsn,
        trx=applied.trx,
        commit_time_us=applied.commit_time_us,
    )
    number = applied.segment + 1
    save_state(
        layout.log,
        LogState(log_id=log_id, source=dict(source), number_next=number, end=begin),
    )
    holders.save(Holder(token=token))
    faults.point("stage.begin.after")
    logger.info("log begins where the target is", log=log_id, gsn=applied.gsn, segment=number)


def forget_log(layout: PipelineLayout) -> None:
    """Let the next `begin_log` take the log over again, in any case."""
    (layout.root / HOLDER_FILE).unlink(missing_ok=True)


def _empty(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


OnMarked = Callable[[Mapping[StagedTable, int], Hlc], None]
POLL_S = 0.1


class Marking:
    """Marker of the mutations that one group's target has applied. Used by one thread.

    target: connects to the target. on_marked: gets the marked numbers, and up to which time.
    """

    def __init__(
        self,
        database: StagingDatabase,
        group: Group,
        log_id: str,
        *,
        target: Callable[[], SharedProgress],
        on_marked: OnMarked = lambda _marked, _applied: None,
    ) -> None:
        """Prepare; nothing is connected yet."""
        self._database = database
        self._group = group
        self._log_id = log_id
        self._target = target
        self._on_marked = on_marked
        self._settled: Applied | None = None

    def run(self, wait: Callable[[float], bool]) -> None:
        """Mark until wait(seconds) returns true; transient errors are tried again.

        Raises other errors.
        """
        patience = Patience(RECONNECT)
        while True:
            try:
                if self._connect(wait, patience):
                    return
            except PenstockError as error:
                wait_s = patience.wait_s(error)
                if error.retry != "backoff" or wait_s is None:
                    raise
                logger.warning("marking goes on", error=error.message, wait_s=round(wait_s, 1))
                if wait(wait_s):
                    return

    def _connect(self, wait: Callable[[float], bool], patience: Patience) -> bool:
        with ExitStack() as stack:
            session = stack.enter_context(self._database.open_session())
            target = self._target()
            stack.callback(target.close)
            while True:
                self.mark(session, target)
                patience.note_progress()
                if wait(POLL_S):
                    self.mark(session, target)
                    return True

    def mark(self, session: StagingSession, target: SharedProgress) -> None:
        """Mark the mutations that the target has by now. Raises PositionAhead."""
        there = target.read_shared(self._log_id)
        if there == self._settled:
            check_not_ahead(self._group, session.window(self._group), there)
        else:
            settle(session, self._group, there, self._on_marked)
            self._settled = there
