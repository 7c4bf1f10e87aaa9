"""The fenced position of a target schema, which every writer moves or verifies, and its lease.

The target keeps the position in a row of its own. Its segment number is the fence: taking the
schema over raises it. Its position is the time up to which everything is applied. There are two
kinds of writers:

- The holder of the schema's lease applies windows and sweeps. Each of its transactions verifies
  that the fence is still its own, and moves the position once all rows up to a time are written.
- Any instance may write the rows of a request directly. It reads the position, then looks at the
  staged mutations of the rows' keys, and its transaction verifies that the position is the same.

Rows and checkpoints are marked applied up to the position, never further (`settle`). That is exact
because a window gets no more rows once its end is proposed (`StagingSession.stage`).

Work under a lease asks repeatedly whether it is still ours: it may be taken away, and it
expires when the staging database cannot be asked. In mode consistent, a log is applied under it. If
no other instance has taken the target's row over since we did, our log continues. Else it is thrown
away: it may end before the target's position, and the changes after its end are staged and can be
read again. Taking over also voids what a loader of the last holder is about to commit. Not here:
the fence against late commits (`penstock.ports.progress.SharedProgress.take_over`).
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

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
from penstock.ports.feeds import (
    Group,
    Lease,
    StagedTable,
    StagingDatabase,
    StagingSession,
    Window,
    group_name,
    position_behind,
    time_through,
)
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
    "stage.mark.rows",
    "stage.mark.checkpoint",
)


class LeaseLost(PenstockError):
    """The lease of a target schema was taken away, or could not be renewed in time."""

    code = "ST43"
    retry = "backoff"


class PositionMoved(PenstockError):
    """The target's position moved while a request was looked at."""

    code = "ST46"
    retry = "backoff"


class PositionAhead(PenstockError):
    """The target has applied more than the staging database has checkpoints for."""

    code = "ST47"
    retry = "operator"


class TakenOver(NamedTuple):
    """Shared log that this process holds: no other holder has its segment number."""

    log_id: str
    segment: int


def lease_lost(names: str, why: str) -> LeaseLost:
    """Return the error for a lease that is not ours any more."""
    return LeaseLost(
        f"lease {names} is not ours any more: {why}",
        hint="Another instance goes on, or this one does as soon as it gets the lease; "
        "look at the staging database: select * from leases;",
        names=names,
    )


def check_fence(group: Group, there: Applied, holder: TakenOver) -> None:
    """Raise LeaseLost if another holder has taken the schema over. there: the locked position."""
    if there.segment != holder.segment:
        raise lease_lost(group_name(group), "another instance has taken over")


def check_unmoved(group: Group, there: Applied, seen: Applied) -> None:
    """Raise PositionMoved unless the locked position is the one that was seen."""
    if not there.is_at(seen):
        raise _position_moved(group)


def _position_moved(group: Group) -> PositionMoved:
    name = group_name(group)
    return PositionMoved(
        f"the position of {name} in the target moved while a request was looked at",
        hint="Nothing to do: penstock looks at the request again.",
        group=name,
    )


def start_of(window: Window, there: Applied) -> Hlc:
    """Return the time after which rows of a window are not applied yet."""
    return max(window.committed, time_through(there.position))


def advance_to(there: Applied, through: Hlc) -> Applied:
    """Return the position with everything up to a time applied; it never goes back."""
    return replace(there, position=max(there.position, position_behind(through)))


def check_not_ahead(group: Group, window: Window, there: Applied) -> None:
    """Raise PositionAhead if checkpoints up to the position were deleted."""
    applied = time_through(there.position)
    if applied > window.proposed:
        name = group_name(group)
        raise PositionAhead(
            f"{name} is applied up to {applied} in the target, and the staging database has "
            f"checkpoints up to {window.proposed} only",
            hint="Nothing is applied meanwhile. To have everything after a time applied again, "
            "stop all instances and run: penstock stage FILE --rewind TIME",
            group=name,
        )


def settle(
    session: StagingSession,
    group: Group,
    there: Applied,
    on_marked: Callable[[Mapping[StagedTable, int], Hlc], None] = lambda _marked, _applied: None,
) -> Window:
    """Mark rows, then checkpoints, as far as the target has them; return the window after that.

    Both steps may be repeated, so the process may end at any moment.

    Args:
        session: Session of the staging database.
        group: The target schema.
        there: The position in the target.
        on_marked: Called with the number of rows by table, and the time up to which they are.

    Raises:
        PositionAhead: Checkpoints were deleted.
    """
    window, applied = session.window(group), time_through(there.position)
    if applied <= window.committed:
        return window
    check_not_ahead(group, window, there)
    marked = session.mark_applied_through(
        session.staged_tables(group), applied, after=window.committed
    )
    on_marked(marked, applied)
    faults.point("stage.mark.rows")
    session.commit(group, applied)
    faults.point("stage.mark.checkpoint")
    return session.window(group)


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
