"""One target schema: under its lease rows are written, or an extractor and a loader work.

A tenure begins when the lease is ours and ends when it is lost, given up, or work fails; the
next one begins after a while, and continues what the last one left, here or in another instance.
Not here: the two processes (`feed_halves.py`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

import structlog

from penstock.control.doctor.past_errors import keep_error
from penstock.control.feeds.feed_halves import HALVES
from penstock.control.feeds.feed_notes import Notes
from penstock.control.pipeline.actions import StopRequest
from penstock.control.pipeline.diagnostics import open_diagnostics
from penstock.control.run.supervisor import Half, Supervisor
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES
from penstock.host.process import this_program
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError
from penstock.model.sections import StageMode, seconds
from penstock.ports.config import Config
from penstock.ports.progress import SharedProgress, open_shared_progress
from penstock.ports.staging import (
    Group,
    StagingDatabase,
    StagingSession,
    group_config,
    group_name,
    leases_of,
    log_id_of,
    source_identity,
)
from penstock.stage.consistent.beginning import begin_log, forget_log, take_over
from penstock.stage.consistent.lease import HeldLease, hold_lease
from penstock.stage.consistent.marks import Marking
from penstock.stage.position import LeaseLost, TakenOver
from penstock.stage.retire import Retiring

if TYPE_CHECKING:
    from penstock.stage.apply.sequencer import RowSequencer

logger = structlog.get_logger(__name__)

LEASE_POLL_S = 1.0
ROUND_S = 1.0  # between two rounds of rows
BACKOFF_S = (1.0, 2.0, 5.0, 10.0)
STEADY_S = 60.0  # after a tenure of this length the back-off begins again


class GroupWorker:
    """Worker on one group in a thread of its own until stopped.

    Attributes:
        problem: The error that ended the last tenure, until one goes on without.
        state: idle (another instance has the lease), working, waiting (to try again), ended.
    """

    def __init__(
        self,
        config: Config,
        group: Group,
        database: StagingDatabase,
        sequencer: RowSequencer,
        stop: StopRequest,
    ) -> None:
        """Begin. config: of the whole pipeline. sequencer: writes rows in the other modes."""
        self._sequencer = sequencer
        self.group = group
        self.state = "idle"
        self.problem: PenstockError | None = None
        self._whole = config
        self._config = group_config(config, group)
        self._database = database
        self._stop = stop
        self._log_id = log_id_of(config, group)
        self._notes = Notes(database, group, dead_letters=sequencer.dlq_table)
        assert config.stage is not None, "a file for changefeeds"
        self._section = config.stage
        self._thread = SupervisedThread(
            f"group {group_name(group)}", self._run, wait=stop.wait, on_error=self._show
        )
        self._thread.start()

    def join(self) -> None:
        """Wait for its end, once it was stopped."""
        self._thread.join()

    # -- tenures -----------------------------------------------------------------------------

    def _run(self) -> None:
        attempt = 0
        while not self._stop():
            began_s = REAL_CLOCK.monotonic_s()
            try:
                self._tenure()
                attempt = 0
            except PenstockError as error:
                if REAL_CLOCK.monotonic_s() - began_s > STEADY_S:
                    attempt = 0
                wait_s = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
                self._show(error, wait_s)
                self._stop.wait(wait_s)
                attempt += 1
        self.state = "ended"

    def _show(self, error: PenstockError, wait_s: float) -> None:
        """Show an error after which the group is tried again."""
        self.state = "waiting"
        shown = error.as_dict()
        is_new = self.problem is None or self.problem.as_dict() != shown
        self.problem = error
        self._notes.note_problem(error)
        if is_new:
            keep_error(self._whole, "stage", error)
        logger.warning(
            "group is tried again",
            group=group_name(self.group),
            code=shown["code"],
            error=shown["error"],
            hint=shown.get("hint", ""),
            wait_s=wait_s,
        )

    def _tenure(self) -> None:
        lifetime_s = self._section.lease_seconds
        names = leases_of(self.group, self._sequencer.table_names(self.group))
        with hold_lease(self._database, names, lifetime_s, socket.gethostname()) as lease:
            if isinstance(lease, datetime):
                self.state = "idle"
                self._stop.wait(LEASE_POLL_S)
                return
            self._work(lease)

    def _work(self, lease: HeldLease) -> None:
        """Work in the present mode until the lease is lost or the end is requested."""
        self.state = "working"
        holder = cache(self._taken_over)
        retiring = _Beside("retiring", self._retiring(lease).run, StopRequest())
        try:
            with self._database.open_session() as session:
                while not self._stop():
                    lease.check()
                    if self._goes_through_log(session):
                        self._follow(lease, session)
                        holder = cache(self._taken_over)  # the log has moved the fence
                    else:
                        # The log's rows must not be loaded after rows that are written now.
                        forget_log(self._config.layout)
                        self._sequencer.round(session, self.group, holder)
                        self._stop.wait(ROUND_S)
                    self.problem = None
        except LeaseLost:
            logger.warning("lease lost, its work was ended", group=group_name(self.group))
            raise
        finally:
            retiring.end()

    def _goes_through_log(self, session: StagingSession) -> bool:
        mode = self._sequencer.mode(session, self.group)
        self._notes.mode_is(session, mode.value)
        return mode is StageMode.CONSISTENT and not self._sequencer.is_rowwise(self.group)

    def _taken_over(self) -> TakenOver:
        """Exclude other writers: called when rows are first to be written under this lease."""
        with closing(self._target()) as progress:
            return take_over(self._log_id, progress)

    def _follow(self, lease: HeldLease, session: StagingSession) -> None:
        """Pass windows through the log, until another mode is in force."""
        progress = self._target()
        try:
            begin_log(
                self._config.layout,
                self._log_id,
                source_identity(self._config.source.url),
                progress,
            )
        finally:
            progress.close()
        ended = StopRequest()
        marking = _Beside("marking", self._marking().run, StopRequest())

        def on_tick() -> None:
            lease.check()
            if self._stop() or not self._goes_through_log(session):
                ended.ask()
            elif marking.error is not None:
                raise marking.error

        try:
            with ExitStack() as stack:
                self._supervisor(stack, ended, on_tick).run()
        except LeaseLost:
            raise
        except PenstockError:
            self._sequencer.metrics.note_not_loaded(self.group)
            raise
        finally:
            marking.end()  # last: it marks what the loader has committed at its end

    def _supervisor(self, stack: ExitStack, ended: StopRequest, on_tick: object) -> Supervisor:
        run = self._config.layout.run
        REAL_FILES.make_directory(run)
        halves = [
            Half(
                name=half,
                arguments=[
                    *(*this_program(), "stage", str(self._whole.path), "--json"),
                    *("--half", half, "--group", self._config.source.url),
                ],
                diagnostics=stack.enter_context(open_diagnostics(run / f"{half}.log")),
            )
            for half in HALVES
        ]
        return Supervisor(halves, ended, on_event=self._event, on_tick=on_tick)  # type: ignore[arg-type]

    def _event(self, text: str, _kind: str, **_fields: object) -> None:
        logger.info("group", group=group_name(self.group), text=text)

    def _target(self) -> SharedProgress:
        return open_shared_progress(self._config.target.url, application_name="penstock stage")

    def _marking(self) -> Marking:
        return Marking(
            self._database,
            self.group,
            self._log_id,
            target=self._target,
            on_marked=self._sequencer.metrics.note_loaded,
        )

    def _retiring(self, lease: HeldLease) -> Retiring:
        return Retiring(
            self._database,
            self.group,
            after_s=seconds(self._section.retire_offset),
            check=lease.check,
        )


class _Beside:
    """Work beside the main work, until it is asked to end."""

    def __init__(
        self, name: str, run: Callable[[Callable[[float], bool]], None], ended: StopRequest
    ) -> None:
        self._ended = ended
        self._thread = SupervisedThread(
            name, lambda: run(ended.wait), wait=ended.wait, gives_up=True
        )
        self._thread.start()

    @property
    def error(self) -> PenstockError | None:
        """Error after which it cannot continue."""
        return self._thread.error

    def end(self) -> None:
        """Ask for its end, and wait."""
        self._ended.ask()
        self._thread.join()
