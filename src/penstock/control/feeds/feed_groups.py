"""The groups of a pipeline with [stage], each a target schema with its worker.

They are found in the staging database. Under a schema's lease rows are written, or an extractor and
a loader work. A tenure begins when the lease is ours and ends when it is lost, given up, or work
fails; the next one begins after a while, and continues what the last one left, here or in another
instance.

In consistent mode the two processes are `penstock extract` and `penstock load` without the parts
that a group lacks: a handover, a bulk load, table syncs.

Consumers of a schema have a log of all staged rows, and a process each. They need no lease: staged
rows are only read, applied or not, so each instance has a log of its own that continues where it
ended, in any mode and whichever instance applies.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

import structlog

from penstock.control.doctor.past_errors import keep_error
from penstock.control.feeds.feed_status import Notes
from penstock.control.pipeline.actions import ActionWatch, StopRequest, stop_on_signals
from penstock.control.pipeline.consumers import register_configured
from penstock.control.pipeline.diagnostics import open_diagnostics
from penstock.control.pipeline.running import LOAD_LOCK, take_lock
from penstock.control.pipeline.servers import pipeline_of
from penstock.control.run.extract_process import CeRecorder, extract_options
from penstock.control.run.supervisor import Half, Supervisor
from penstock.extract.extractor import Extractor
from penstock.feeds.position import (
    HeldLease,
    LeaseLost,
    Marking,
    TakenOver,
    begin_log,
    forget_log,
    hold_lease,
    take_over,
)
from penstock.feeds.receiver.targets import TargetSchemas
from penstock.feeds.retire import Retiring
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES
from penstock.host.process import this_program
from penstock.host.supervised import SupervisedThread
from penstock.load.loader import Loader, LoaderOptions
from penstock.load.session import PendingSession, SessionKeeper, session_options
from penstock.model import PenstockError
from penstock.model.policies import Policies, Policy
from penstock.model.sections import StageMode, seconds
from penstock.ports.config import Config, TargetSection
from penstock.ports.feeds import (
    Group,
    StagingDatabase,
    StagingSession,
    feed_config,
    group_at,
    group_config,
    group_name,
    leases_of,
    log_id_of,
    source_identity,
)
from penstock.ports.progress import SharedProgress, open_shared_progress
from penstock.ports.source import extraction_of

if TYPE_CHECKING:
    from penstock.feeds.apply.sequencer import RowSequencer

LOAD, EXTRACT, FEED = "load", "extract", "feed"
HALVES = (LOAD, EXTRACT)  # Spark takes longest to start
# A target's tables are their owner's: a feed's value without a column stops before the log.
POLICIES = Policies(default=Policy.IGNORE)


def run_half(config: Config, half: str, group_url: str) -> None:
    """Work as one of HALVES, or as FEED, until a signal arrives. group_url: see `source_url`.

    Raises the errors that end an extraction or a load.
    """
    group = group_at(group_url)
    if half == FEED:
        feed_group(feed_config(config, group), config.target)
        return
    config, log_id = group_config(config, group), log_id_of(config, group)
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        REAL_FILES.make_directory(config.layout.run)
        work = extract_group if half == EXTRACT else load_group
        work(config, log_id, stop, stack)


def extract_group(config: Config, log_id: str, stop: StopRequest, stack: ExitStack) -> None:
    """Extract windows into the log."""
    options = extract_options(config)
    engine = stack.enter_context(
        extraction_of(config).open_engine(pipeline_of(config), options, tables=list, stop=stop)
    )
    recorder = CeRecorder(config)
    stack.callback(recorder.close)
    gate = ActionWatch(config.target.url, name="penstock stage action", interval_s=0.0)
    stack.callback(gate.close)
    Extractor(
        engine,
        config.directory,
        options=options,
        recorder=recorder,
        gate=gate,
        stop=stop,
        log_id=log_id,
    ).run()


def feed_group(config: Config, target: TargetSection) -> None:
    """Extract all staged rows into the log of consumers, whether applied or not."""
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        REAL_FILES.make_directory(config.layout.run)
        register_configured(config)
        options = extract_options(config)
        pipeline = pipeline_of(replace(config, target=target))
        engine = stack.enter_context(
            extraction_of(config).open_engine(pipeline, options, tables=list, stop=stop)
        )
        recorder = CeRecorder(config)
        stack.callback(recorder.close)
        gate = ActionWatch(config.target.url, name="penstock stage action")
        stack.callback(gate.close)
        Extractor(
            engine,
            config.directory,
            options=options,
            recorder=recorder,
            gate=gate,
            stop=stop,
        ).run()


def load_group(config: Config, log_id: str, stop: StopRequest, stack: ExitStack) -> None:
    """Load the log into the target: batches end at the log's flush points."""
    del log_id  # the log has it
    stack.enter_context(take_lock(config, config.layout.state, LOAD_LOCK))
    options = session_options(config)
    sessions = SessionKeeper(options, PendingSession(options))
    stack.callback(sessions.close)
    actions = ActionWatch(config.target.url, name="penstock stage action")
    stack.callback(actions.close)
    section = config.change_loader
    Loader(
        LoaderOptions(
            url=config.target.url,
            log_directory=config.layout.log,
            state_directory=config.layout.state,
            run_directory=config.layout.run,
            max_files_per_batch=section.max_files_per_batch,
            read_open_segment=section.read_open_segment,
            max_threads=section.max_threads,
            remove_files=section.remove_files,
            keeping=section.keeping,
            change_file_extension=section.change_file_extension,
            exit_when_done=False,
            policies=POLICIES,
            on_note=lambda note: keep_error(config, "load", note),
        ),
        sessions,
        stop=stop,
        actions=actions,
    ).run()


logger = structlog.get_logger(__name__)
AGAIN_S = 10.0


class FeedWorker:
    """Supervisor of the processes of a group's consumers, in its own thread, until stopped."""

    def __init__(self, config: Config, group: Group, stop: StopRequest) -> None:
        """Begin. config: of the whole pipeline."""
        self._whole, self._group, self._stop = config, group, stop
        self._config = feed_config(config, group)
        self._problem: PenstockError | None = None
        self._thread = SupervisedThread(
            f"feed {group_name(group)}", self._run, wait=stop.wait, on_error=self._show
        )
        self._thread.start()

    def join(self) -> None:
        """Wait until the stopped thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        while not self._stop():
            ended = StopRequest()

            def on_tick(ended: StopRequest = ended) -> None:
                if self._stop():
                    ended.ask()

            try:
                with ExitStack() as stack:
                    halves = self._halves(stack)
                    Supervisor(halves, ended, on_event=self._event, on_tick=on_tick).run()  # type: ignore[arg-type]
            except PenstockError as error:
                self._note_failure(error)

    def _halves(self, stack: ExitStack) -> list[Half]:
        run, file = self._config.layout.run, str(self._whole.path)
        REAL_FILES.make_directory(run)
        commands = {FEED: ["stage", file, "--half", FEED, "--group", self._config.source.url]}
        for name in self._config.consumers:
            of_group = ["--group", group_name(self._group), "--checked"]
            commands[f"consume-{name}"] = ["consume", file, name, *of_group]
        return [
            Half(
                name=name,
                arguments=[*this_program(), *command, "--json"],
                diagnostics=stack.enter_context(open_diagnostics(run / f"{name}.log")),
                is_consumer=name != FEED,
            )
            for name, command in commands.items()
        ]

    def _note_failure(self, error: PenstockError) -> None:
        """Report the error; the load continues, and consumers have the log so far."""
        self._show(error, AGAIN_S)
        self._stop.wait(AGAIN_S)

    def _show(self, error: PenstockError, wait_s: float) -> None:
        if self._problem is None or self._problem.as_dict() != error.as_dict():
            keep_error(self._whole, "stage", error)
        self._problem = error
        logger.warning("consumers' log is tried again", error=error.as_dict(), wait_s=wait_s)

    def _event(self, text: str, _kind: str = "", **_fields: object) -> None:
        logger.info("feed", group=group_name(self._group), text=text)


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
        """Wait until the stopped thread has ended."""
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


LOOK_S = 1.0


class Groups:
    """Watch for groups that starts a worker for each."""

    def __init__(
        self,
        config: Config,
        database: StagingDatabase,
        sequencer: RowSequencer,
        stop: StopRequest,
    ) -> None:
        """Begin looking."""
        self._config, self._database, self._stop = config, database, stop
        self._sequencer = sequencer
        self._schemas = TargetSchemas(config)
        self.workers: dict[str, GroupWorker] = {}
        self._feeds: list[FeedWorker] = []
        self._others: set[str] = set()
        self._thread = SupervisedThread("groups", self._run, wait=stop.wait)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop():
            try:
                with self._database.open_session() as session:
                    while not self._stop():
                        self._look(session.group_names())
                        self._stop.wait(LOOK_S)
            except PenstockError as error:
                logger.warning("groups not readable", code=error.code, error=error.message)
                self._stop.wait(LOOK_S)

    def _look(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name in self.workers or name in self._others:
                continue
            group = self._schemas.group_of(name)
            if group is None:
                logger.warning("group is not of this target", group=name)
                self._others.add(name)
            else:
                self.workers[name] = GroupWorker(
                    self._config, group, self._database, self._sequencer, self._stop
                )
                if self._config.consumers:
                    self._feeds.append(FeedWorker(self._config, group, self._stop))

    def join(self) -> None:
        """Wait until all have ended, once they were stopped."""
        self._thread.join()
        for worker in self.workers.values():
            worker.join()
        for feed in self._feeds:
            feed.join()


@contextmanager
def working(config: Config, database: StagingDatabase, sequencer: RowSequencer) -> Iterator[Groups]:
    """Work on all groups while the block runs; then each ends in order, and gives up its lease."""
    stop = StopRequest()
    groups = Groups(config, database, sequencer, stop)
    try:
        yield groups
    finally:
        stop.ask()
        groups.join()
