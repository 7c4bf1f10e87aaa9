"""`penstock run`: its child processes, watched, restarted, ended in order.

The halves share nothing but files and tables, so either may die at any moment: one that was
killed is started again, one that ends with an error ends the run with that error. Consumers run
beside them: one that fails, for any reason, is started again, and never ends the run.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import IO

import structlog

from penstock.control.doctor.doctor import examine
from penstock.control.doctor.plan import check as check_plan
from penstock.control.pipeline.actions import HURRIED_EXIT_CODE, StopRequest, stop_on_signals
from penstock.control.pipeline.diagnostics import diagnostics_to, open_diagnostics
from penstock.control.pipeline.file_edits import keep_first_settings, settle_file_edits
from penstock.control.pipeline.outages import Outage
from penstock.control.pipeline.running import RUN_LOCK, check_not_running, take_lock
from penstock.control.run.child_ends import make_failure, make_killed, name_signal
from penstock.control.status.live import View
from penstock.control.status.run_events import ReportEvent
from penstock.control.status.status import Status, StatusReader
from penstock.control.tables.new_table_watch import settle_new_tables
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES
from penstock.host.process import Child, this_program
from penstock.host.supervised import SupervisedThread
from penstock.log import load_done
from penstock.model import PenstockError
from penstock.ports.config import Config

logger = structlog.get_logger()

POLL_INTERVAL_S = 0.5
STATUS_INTERVAL_S = 2.0
SILENT_S = 8.0  # an answer that takes longer is reported as missing
RESTARTS_MAX = 5
RESTART_WAIT_FIRST_S = 1.0
CONSUMER_WAIT_MAX_S = 60.0
HEALTHY_AFTER_S = 60.0  # after running this long a half may be restarted as often as at the start
LAST_LINES_KEPT = 30


@dataclass(slots=True)
class Half:
    """One of the processes: how to start it, and its known state.

    Attributes:
        is_consumer: The others continue without it.
        serves: It never ends without a request, and has nothing to do when all others have ended.
    """

    name: str
    arguments: list[str]
    diagnostics: IO[str]
    child: Child | None = None
    code: int | None = None
    restarts: int = 0
    started_s: float = 0.0
    restart_at_s: float | None = None
    lines: deque[str] | None = None
    is_consumer: bool = False
    serves: bool = False

    @property
    def is_over(self) -> bool:
        """Return whether it has ended and will not be started again."""
        return self.code is not None and self.restart_at_s is None

    def start(self) -> None:
        """Start the process; write its lines to its diagnostics file, and keep the last ones."""
        kept: deque[str] = deque(maxlen=LAST_LINES_KEPT)

        def on_line(line: str) -> None:
            kept.append(line)
            self.diagnostics.write(line + "\n")

        self.code, self.restart_at_s, self.lines = None, None, kept
        self.child = Child(self.arguments, on_line=on_line)
        self.started_s = REAL_CLOCK.monotonic_s()
        logger.info("process started", process=self.name, pid=self.child.pid)

    def poll(self) -> bool:
        """Look whether the process has ended; return True if it has since the last call."""
        if self.child is None or self.code is not None:
            return False
        self.code = self.child.poll()
        if self.code is None:
            return False
        self.child.close()
        logger.info("process ended", process=self.name, exit_code=self.code)
        return True

    def error(self) -> PenstockError:
        """Return the error that ended the process: the last line that is an error of `--json`."""
        return make_failure(self.name, self.code, self.lines or ())


class StatusThread:
    """Thread that reads the status at intervals, so that a hanging server does not hang the run."""

    def __init__(self, config: Config) -> None:
        """Begin to read in a thread. `take` returns a status when there is one."""
        self._reader = StatusReader(config)
        self._ended = threading.Event()
        self._latest: Status | None = None
        self._last: Status | None = None
        self._asked_s: float | None = None
        self._trouble = ""
        self._thread = SupervisedThread("status", self._run, wait=self._ended.wait)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._read()
            self._ended.wait(STATUS_INTERVAL_S)
        self._reader.close()

    def _read(self) -> None:
        self._asked_s = REAL_CLOCK.monotonic_s()
        try:
            self._latest = self._reader.read()
            self._trouble = ""
        except PenstockError as error:
            if self._trouble != error.message:
                logger.warning("status not readable", error=error.message)
            self._trouble = error.message
        finally:
            self._asked_s = None

    def take(self) -> Status | None:
        """Return the newest status that was not taken yet, or None."""
        latest, self._latest = self._latest, None
        if latest is None:
            return self._silence()
        self._last = latest
        return latest

    def _silence(self) -> Status | None:
        """Return what to report while a server has taken a question and does not answer."""
        asked_s, last, side = self._asked_s, self._last, self._reader.asking
        silent_s = 0.0 if asked_s is None else REAL_CLOCK.monotonic_s() - asked_s
        if last is None or silent_s < SILENT_S:
            return None
        now_us = REAL_CLOCK.now_us()
        silent = Outage(
            side=side,
            code="HS27",
            error="it does not answer",
            hint="Look at the server and the network in between.",
            since_us=now_us - round(silent_s * 1e6),
        )
        return replace(last, lag=None, outages=(silent,), retries=(), read_us=now_us)

    def close(self) -> None:
        """End the thread; does not wait for a server that hangs."""
        self._ended.set()
        self._thread.join(timeout=2.0)


class Supervisor:
    """Supervisor that starts, watches and ends the halves. Used by the main thread."""

    def __init__(
        self,
        halves: list[Half],
        stop: StopRequest,
        *,
        on_event: ReportEvent,
        on_tick: Callable[[], None],
        is_log_done: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare the supervisor.

        Args:
            halves: The processes.
            stop: The request for an end.
            on_event: Gets the events of processes.
            on_tick: Called every POLL_INTERVAL_S.
            is_log_done: Asked when a half has ended well; consumers then read the log to its end.
        """
        self._halves = halves
        self._stop = stop
        self._on_event = on_event
        self._on_tick = on_tick
        self._is_log_done = is_log_done
        self._is_finishing = False
        self._signals_passed = 0
        self._failure: PenstockError | None = None

    def run(self) -> None:
        """Return when all have ended well. Raises HalfFailed or HalfKilled."""
        try:
            for half in self._halves:
                half.start()
            while not all(half.is_over for half in self._halves):
                self._step()
                self._on_tick()
                REAL_CLOCK.sleep(POLL_INTERVAL_S)
        finally:
            self._kill_left_overs()
        if self._failure is not None:
            raise self._failure

    def _step(self) -> None:
        self._pass_signals()
        if all(half.is_over for half in self._halves if not half.serves):
            self._end_servers()
        for half in self._halves:
            if half.poll():
                self._note_end(half)
            elif half.restart_at_s is not None:
                self._restart_when_due(half)

    def _end_servers(self) -> None:
        for half in self._halves:
            half.restart_at_s = None
            if half.serves and half.child is not None and half.code is None:
                half.child.signal(signal.SIGTERM)

    def _pass_signals(self) -> None:
        """Pass the first signal to the halves once, and the second one once."""
        wanted = 2 if self._stop.is_hurried else 1 if self._stop() else 0
        while self._signals_passed < wanted:
            self._signals_passed += 1
            if self._failure is None:
                text = "stopping" if self._signals_passed == 1 else "stopping at once"
                self._on_event(text, "stopping", at_once=self._signals_passed > 1)
            for half in self._halves:
                if half.child is not None:
                    half.child.signal(signal.SIGTERM)

    def _note_end(self, half: Half) -> None:
        code = half.code
        if code == 0:
            self._ended_well(half)
            return
        if self._stop() and (code == -signal.SIGTERM or self._stop.is_hurried):
            return
        if half.is_consumer:
            self._consumer_ended(half)
        elif code is not None and code < 0:
            self._was_killed(half, code)
        elif self._failure is None:
            self._failure = half.error()
            self._stop.ask()

    def _ended_well(self, half: Half) -> None:
        """End the other processes because the work is done. Consumers end when they have read
        everything.
        """
        if half.is_consumer or half.name != self._halves[0].name:
            return
        if self._is_log_done():
            self._is_finishing = True
        else:
            self._stop.ask()

    def _consumer_ended(self, half: Half) -> None:
        """Start a consumer's process again after a pause, however it ended. At the end of the run,
        report its failure.
        """
        error = half.error()
        if self._is_finishing:
            if not half.serves:
                self._failure = self._failure or error
            return
        if self._stop():
            return
        now = REAL_CLOCK.monotonic_s()
        if now - half.started_s > HEALTHY_AFTER_S:
            half.restarts = 0
        wait_s = min(CONSUMER_WAIT_MAX_S, RESTART_WAIT_FIRST_S * 2 ** min(half.restarts, 16))
        half.restarts += 1
        half.restart_at_s = now + wait_s
        shown = error.as_dict()
        self._on_event(
            f"{half.name} failed: {shown['error']}; it is started again in {wait_s:.0f} s, and the "
            "others go on",
            "consumer failed",
            process=half.name,
            error=shown,
            restarts=half.restarts,
        )
        logger.warning("consumer failed", process=half.name, error=shown["error"])

    def _was_killed(self, half: Half, code: int) -> None:
        now = REAL_CLOCK.monotonic_s()
        if now - half.started_s > HEALTHY_AFTER_S:
            half.restarts = 0
        name = name_signal(code)
        if half.restarts >= RESTARTS_MAX:
            self._failure = self._failure or make_killed(half.name, code, half.restarts + 1)
            self._stop.ask()
            return
        if self._stop():
            return
        wait_s = RESTART_WAIT_FIRST_S * 2**half.restarts
        half.restarts += 1
        half.restart_at_s = now + wait_s
        self._on_event(
            f"{half.name} was killed by {name}: started again in {wait_s:.0f} s",
            "process killed",
            process=half.name,
            signal=name,
            restarts=half.restarts,
        )
        logger.warning("process killed", process=half.name, signal=name, restarts=half.restarts)

    def _restart_when_due(self, half: Half) -> None:
        if self._stop() or (half.is_consumer and self._is_finishing):
            half.restart_at_s = None
        elif half.restart_at_s is not None and REAL_CLOCK.monotonic_s() >= half.restart_at_s:
            half.start()

    def _kill_left_overs(self) -> None:
        for half in self._halves:
            if half.child is not None and half.code is None:
                half.child.kill_group()


def run_pipeline(
    config: Config,
    view: View,
    *,
    verbose: bool = False,
    stop: StopRequest | None = None,
    on_started: Callable[[], object] = lambda: None,
) -> None:
    """Run a pipeline until it is done or stopped.

    Raises PreflightFailed or AlreadyRunning with nothing changed, NewTable, HalfFailed with the
    error of the process that ended, SystemExit after a second signal.

    Args:
        config: The pipeline.
        view: Shows what happens.
        verbose: Print diagnostics, too.
        stop: Request for an end, for other threads; signals are added to it.
        on_started: Called once, when all checks have passed and the processes are about to start.
    """
    stop = stop or StopRequest()
    with ExitStack() as stack:
        stack.callback(view.close)
        stack.push(partial(_summarize_failure, view))
        stack.enter_context(stop_on_signals(stop, hurry=False))
        name = config.pipeline.name
        places = "source, target" if config.has_target else "source"
        text = f"checking {places} and this machine for pipeline {name}"
        view.event(text, "checking", pipeline=name)
        check_not_running(config, "run", "extract", "load")
        given = config
        config = settle_file_edits(config, lambda text: view.event(text, "file edited"))
        config = settle_new_tables(config)
        check_plan(config)
        examine(config).require()
        keep_first_settings(given)
        if stop():
            return
        REAL_FILES.make_directory(config.layout.run)
        stack.enter_context(take_lock(config, config.layout.run, RUN_LOCK))
        stack.enter_context(diagnostics_to(config.layout.run / "run.log", verbose=verbose))
        halves = _halves_of(config, stack)
        status = StatusThread(config)
        stack.callback(status.close)

        def on_tick() -> None:
            seen = status.take()
            if seen is not None:
                view.show(seen)

        def is_log_done() -> bool:
            return load_done(config.layout.log) is not None

        on_started()
        Supervisor(
            halves, stop, on_event=view.event, on_tick=on_tick, is_log_done=is_log_done
        ).run()
        status.close()
        if stop.is_hurried:
            raise SystemExit(HURRIED_EXIT_CODE)
        view.finish(read_last_status(config))


def _halves_of(config: Config, stack: ExitStack) -> list[Half]:
    """Return the processes of a run, not started; `stack` closes their diagnostics files."""
    return [
        Half(
            name=name,
            arguments=[*this_program(), *command, "--json", "--checked"],
            diagnostics=stack.enter_context(open_diagnostics(config.layout.run / f"{name}.log")),
            is_consumer=command[0] in ("consume", "serve"),
            serves=command[0] == "serve",
        )
        for name, command in commands_of(config).items()
    ]


def commands_of(config: Config) -> dict[str, list[str]]:
    """Return the commands of a run, by name: extract and load, then consumers, then the server."""
    path = str(config.path)
    found = {name: [name, path] for name in half_names(config)}
    if config.pipeline.mode.has_change:
        found |= {f"consume-{name}": ["consume", path, name] for name in config.consumers}
        found |= {"serve": ["serve", path]} if config.serve is not None else {}
    return found


def half_names(config: Config) -> tuple[str, ...]:
    """Return the processes of a mode; the loader first, because Spark takes longest to start."""
    if not config.has_target:
        return ("extract", "load") if config.has_base else ("extract",)
    return ("load", "extract") if config.pipeline.mode.has_change else ("load",)


def _summarize_failure(view: View, kind: type[BaseException] | None, *_: object) -> None:
    """Show what the run did until an exception ended it."""
    if kind is not None:
        view.fail()


def read_last_status(config: Config) -> Status | None:
    """Return the status at the end, for the last lines; None if it cannot be read."""
    reader = StatusReader(config)
    try:
        return reader.read()
    except PenstockError as error:
        logger.warning("status not readable", error=error.message)
        return None
    finally:
        reader.close()
