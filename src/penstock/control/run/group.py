"""`penstock run` with several files: one process each for `penstock run FILE`, and what they share.

This process has no threads. It imports everything once and forks all other processes of Python:
the runs of the pipelines, their children (`host/forking.py`), the web interface, and the process
that owns the one Spark. So each needs only the memory that it changes. It sleeps until a process
writes a line, ends, or asks for a child, or a signal arrives.

A run that fails is started again, with growing pauses, as long as another one goes on: the others
do not notice. Not here: a single pipeline (`supervisor.py`), printing (`penstock.cli`).
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import structlog

from penstock.control.pipeline.actions import (
    HURRIED_EXIT_CODE,
    StopRequest,
    stop_on_signals,
)
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.diagnostics import configure_diagnostics
from penstock.control.run.child_ends import describe_end, read_object
from penstock.control.status.live import event
from penstock.host.clock import REAL_CLOCK
from penstock.host.forking import channel_pair, fork_process, take_request, tell
from penstock.host.process import WITH_PARENT
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.registry import engine_at

logger = structlog.get_logger()

RESTART_WAIT_FIRST_S = 5.0
RESTART_WAIT_MAX_S = 300.0
HEALTHY_AFTER_S = 60.0
HOST_WAIT_S = 1.0
END_WAIT_S = 20.0  # for what ends after the pipelines
LINE_BYTES_MAX = 2**20
READ_BYTES = 65536
SUFFIX = ".toml"
DIAGNOSTIC = "timestamp="  # how a line of diagnostics begins
SPARK_PLACE = "PENSTOCK_SPARK"  # `penstock.load.shared_spark`, which needs Spark, has it too
PRELOADED = (
    "penstock.control.run.supervisor",
    "penstock.control.run.extract_process",
    "pyarrow.compute",
)
PRELOADED_WITH_SPARK = ("penstock.control.run.load_process", "penstock.load.spark_host")

Command = Callable[[list[str]], object]
"""Runs a command line of penstock, and raises SystemExit with its exit code."""


class PipelinesFailed(PenstockError):
    """Error of at least one pipeline when a run of several ended."""

    code = "CT05"
    retry = "operator"


class NoPipelineFiles(PenstockError):
    """A directory given to `penstock run` has no pipeline files."""

    code = "CT06"
    retry = "operator"


class GroupView(Protocol):
    """View of the run of several pipelines."""

    def event(self, pipeline: str, fields: Mapping[str, Any]) -> None:
        """Show an event of a pipeline, as `penstock run --json` prints it; "" for all of them."""
        ...

    def error(self, pipeline: str, error: Mapping[str, Any]) -> None:
        """Show an error that ended a pipeline's run."""
        ...

    def text(self, pipeline: str, line: str) -> None:
        """Show a line that is neither."""
        ...


@dataclass(slots=True, kw_only=True)
class Process:
    """One of the forked processes. descriptors: our ends of its streams, and what reads them."""

    name: str
    pid: int = 0
    stdin: int = -1
    code: int | None = None
    error: Mapping[str, Any] | None = None
    failures: int = 0
    started_s: float = 0.0
    restart_at_s: float | None = None

    @property
    def is_running(self) -> bool:
        """Return whether it has been started and has not ended."""
        return self.pid != 0 and self.code is None

    @property
    def has_failed(self) -> bool:
        """Return whether it ended with an error, the last time."""
        return self.code not in (None, 0)

    @property
    def end(self) -> str:
        """Why it has ended, in one line."""
        if self.error is not None:
            return f"{self.error['code']}: {self.error['error']}"
        return describe_end("", self.code)

    def postpone(self, first_s: float) -> float:
        """Set when it is started again; return the wait in seconds."""
        now_s = REAL_CLOCK.monotonic_s()
        if now_s - self.started_s > HEALTHY_AFTER_S:
            self.failures = 0
        wait_s: float = min(RESTART_WAIT_MAX_S, first_s * 2 ** min(self.failures, 16))
        self.failures += 1
        self.restart_at_s = now_s + wait_s
        return wait_s


@dataclass(slots=True, kw_only=True)
class Member(Process):
    """Run of one pipeline."""

    file: Path


@dataclass(slots=True, kw_only=True)
class Helper(Process):
    """Process that all pipelines share: Spark, or the web interface."""

    work: Callable[[], object]


@dataclass(slots=True)
class _Lines:
    """Text of a stream, given out by line."""

    take: Callable[[str], None]
    rest: bytes = b""

    def add(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.take(line.decode("utf-8", errors="replace"))
        self.rest = self.rest[-LINE_BYTES_MAX:]


def pipeline_files(given: Iterable[Path]) -> list[Path]:
    """Return the pipeline files; in place of a directory, those that are in it, by name.

    Raises NoPipelineFiles.
    """
    found: dict[Path, None] = {}
    for path in given:
        inside = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            raise NoPipelineFiles(
                f"there is no file *{SUFFIX} in {path}",
                hint="Write one with `penstock init`.",
            )
        found.update(dict.fromkeys(inside))
    return list(found)


@dataclass(slots=True, kw_only=True)
class GroupOptions:
    """Options of a run of several pipelines.

    Attributes:
        given: Pipeline files, and directories of them.
        command: Runs a command line in a forked process.
        web: Options of `penstock web`; None without it.
        verbose: Whether runs print diagnostics.
    """

    given: Sequence[Path]
    command: Command
    web: Sequence[str] | None = None
    verbose: bool = False


def run_group(options: GroupOptions, view: GroupView) -> None:
    """Run several pipelines until all have ended, or until stopped.

    SIGHUP reads directories again, and starts what does not run. Raises NoPipelineFiles, and
    PipelinesFailed at the end.
    """
    files = pipeline_files(options.given)
    with tempfile.TemporaryDirectory(prefix="penstock-") as place, _wakeups() as (woken, signals):
        Group(options, view, Path(place), woken, signals).run(files)


@contextmanager
def _wakeups() -> Iterator[tuple[socket.socket, list[int]]]:
    """Note signals; a byte can be read from the socket for each one."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
    before = [signal.signal(number, note) for number in numbers]
    wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield ours, seen
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        ours.close()
        theirs.close()


def preload(configs: Iterable[Config]) -> None:
    """Import what the forked processes need, and keep it away from the garbage collector."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's would start threads at once
    every = list(configs)
    with_spark = any(one.has_target or one.has_base for one in every)
    urls = {one.source.url for one in every if one.merge is None}
    urls |= {one.target.url for one in every if one.has_target}
    for name in (*PRELOADED, *(PRELOADED_WITH_SPARK if with_spark else ())):
        with suppress(ModuleNotFoundError):  # the process that needs it reports it
            import_module(name)
    for url in urls:
        with suppress(PenstockError):
            for part in engine_at(url.split()[0]).parts.values():
                with suppress(ImportError):
                    import_module(part.partition(":")[0])
    with suppress(ModuleNotFoundError):
        import_module("pyarrow").array([0])  # the first one imports pandas, where it is
    gc.collect()
    gc.freeze()


class Group:
    """The loop of this process."""

    def __init__(
        self,
        options: GroupOptions,
        view: GroupView,
        place: Path,
        woken: socket.socket,
        signals: list[int],
    ) -> None:
        """Prepare. place: for Spark. woken, signals: see `_wakeups`."""
        self._options = options
        self._view = view
        self._place = place
        self._signals = signals
        self._members: dict[Path, Member] = {}
        self._helpers: dict[str, Helper] = {}
        self._web_files: list[Path] = []
        self._children: dict[int, socket.socket] = {}  # of members, each with its member's channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(woken, selectors.EVENT_READ, partial(_drain, woken))
        self._stops = 0
        self._last_said = ""

    def run(self, files: Sequence[Path]) -> None:
        """Run until all pipelines have ended. Raises PipelinesFailed, SystemExit."""
        os.environ[SPARK_PLACE] = str(self._place)
        try:
            self._add(files)
            while any(one.is_running for one in self._members.values()):
                self._step()
            self._check()
        finally:
            self._end_helpers()
            self._kill_left_overs()

    # --- what there is to run ---------------------------------------------------------------------

    def _add(self, files: Sequence[Path]) -> None:
        """Start the runs of these files that do not run, and what they share."""
        configs = self._readable(files)
        preload(configs.values())
        for file in files:
            self._members.setdefault(file, Member(name="", file=file))
        _name(self._members)
        self._share_spark(configs.values())
        self._show_web(list(configs))
        for member in self._members.values():
            if not member.is_running and (member.file in files or member.has_failed):
                member.failures = 0
                self._start_member(member)
        self._say()

    def _readable(self, files: Iterable[Path]) -> dict[Path, Config]:
        """Return the files without errors; the run of another one reports its error."""
        found = {}
        for file in files:
            with suppress(PenstockError):
                found[file] = load_config(file)
        return found

    def _share_spark(self, configs: Iterable[Config]) -> None:
        """Start a process for each kind of Spark that the pipelines can share."""
        for config in configs:
            if not (config.has_target or config.has_base):
                continue
            with suppress(PenstockError, ImportError):  # the loader reports it
                from penstock.load.session import session_options, shared_place
                from penstock.load.shared_spark import with_more_slots

                options = session_options(config)
                place = shared_place(config, options, str(self._place))
                if place is None or place.name in self._helpers:
                    continue
                place.mkdir(mode=0o700)
                # Not in the directory of one of the pipelines, which may be reset.
                master = with_more_slots(options.master)
                options = replace(options, work_directory=place, master=master)
                host = Helper(name="spark", work=partial(_host, options, place))
                self._helpers[place.name] = host
                self._start_helper(host)

    def _show_web(self, files: list[Path]) -> None:
        """Start the web interface for these files, again if they are others."""
        if self._options.web is None or not files or files == self._web_files:
            return
        self._web_files = files
        arguments = ["web", *map(str, files), *self._options.web, "--json"]
        web = self._helpers.get("web")
        work = partial(self._options.command, arguments)
        if web is None:
            web = self._helpers["web"] = Helper(name="web", work=work)
            self._start_helper(web)
        else:
            web.work = work
            _signal(web.pid, signal.SIGTERM)  # its end starts it again

    # --- processes --------------------------------------------------------------------------------

    def _start_member(self, member: Member) -> None:
        arguments = ["run", str(member.file), "--json"]
        arguments += ["--verbose"] if self._options.verbose else []
        ours, theirs = channel_pair()
        self._start(member, partial(self._run_child, arguments), f"run {member.name}", theirs)
        theirs.close()
        self._selector.register(
            ours, selectors.EVENT_READ, partial(self._take_request, ours, member.name)
        )

    def _start_helper(self, helper: Helper) -> None:
        self._start(helper, partial(_as_child, helper.work), f"penstock {helper.name}", None)

    def _run_child(self, arguments: list[str]) -> None:
        _as_child(partial(self._options.command, arguments))

    def _start(
        self,
        process: Process,
        work: Callable[[], object],
        name: str,
        channel: socket.socket | None,
    ) -> None:
        theirs_in, process.stdin = os.pipe()
        out, theirs_out = os.pipe()
        err, theirs_err = os.pipe()
        streams = (theirs_in, theirs_out, theirs_err)
        process.code, process.error, process.restart_at_s = None, None, None
        process.pid = fork_process(work, streams, name=name, channel=channel)
        process.started_s = REAL_CLOCK.monotonic_s()
        for one in streams:
            os.close(one)
        for stream, use in ((out, self._take_event), (err, self._take_error)):
            lines = _Lines(partial(use, process))
            self._selector.register(
                stream, selectors.EVENT_READ, partial(self._read, stream, lines)
            )
        logger.info("process started", process=name, pid=process.pid)

    def _take_request(self, ours: socket.socket, name: str) -> None:
        """Fork a process for a run, which gets its exit code."""
        try:
            request = take_request(ours)
        except OSError:
            request = None
        if request is None:
            self._selector.unregister(ours)
            ours.close()
            self._children = {p: one for p, one in self._children.items() if one is not ours}
            return
        arguments, stdin, stderr = request
        silent = os.open(os.devnull, os.O_WRONLY)
        pid = fork_process(
            partial(self._run_child, arguments),
            (stdin, silent, stderr),
            name=f"{arguments[0]} {name}",
        )
        for one in (stdin, stderr, silent):
            os.close(one)
        self._children[pid] = ours
        tell(ours, pid=pid)

    # --- the loop ---------------------------------------------------------------------------------

    def _step(self) -> None:
        for key, _ in self._selector.select(self._wait_s()):
            key.data()
        while self._signals:
            self._take_signal(self._signals.pop(0))
        self._reap()
        now_s = REAL_CLOCK.monotonic_s()
        for process in (*self._helpers.values(), *self._members.values()):
            if process.restart_at_s is not None and now_s >= process.restart_at_s:
                if isinstance(process, Member):
                    self._start_member(process)
                    self._say()
                elif isinstance(process, Helper):
                    self._start_helper(process)

    def _wait_s(self) -> float | None:
        due = [
            one.restart_at_s
            for one in (*self._helpers.values(), *self._members.values())
            if one.restart_at_s is not None
        ]
        return max(0.0, min(due) - REAL_CLOCK.monotonic_s()) if due else None

    def _take_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._stops += 1
            if self._stops == 1:
                self._note("", "stopping", "stopping")
            for member in self._members.values():
                member.restart_at_s = None
                if member.is_running:
                    _signal(member.pid, signal.SIGTERM)
        elif number == signal.SIGHUP and not self._stops:
            with suppress(NoPipelineFiles):  # those that run go on
                self._add(pipeline_files(self._options.given))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._note_end(pid, os.waitstatus_to_exitcode(status))

    def _note_end(self, pid: int, code: int) -> None:
        channel = self._children.pop(pid, None)
        if channel is not None:
            tell(channel, pid=pid, code=code)
            return
        for process in (*self._helpers.values(), *self._members.values()):
            if process.pid == pid and process.code is None:
                process.code = code
                os.close(process.stdin)
                self._read_rest()
                if isinstance(process, Member):
                    self._member_ended(process)
                elif not self._stops:
                    self._helper_ended(process)

    def _member_ended(self, member: Member) -> None:
        if self._stops and member.code == -signal.SIGTERM:
            member.code = 0
        if member.has_failed and not self._stops:
            wait_s = member.postpone(RESTART_WAIT_FIRST_S)
            if any(one.is_running for one in self._members.values()):
                self._note(
                    member.name,
                    "pipeline failed",
                    f"{member.end}; it is started again in {wait_s:.0f} s, and the others go on",
                    restarts=member.failures,
                )
        self._say()

    def _helper_ended(self, helper: Process) -> None:
        was_asked = helper.name == "web" and helper.code == 0
        wait_s = 0.0 if was_asked else helper.postpone(HOST_WAIT_S)
        helper.restart_at_s = REAL_CLOCK.monotonic_s() + wait_s
        if not was_asked:
            self._note(
                "",
                "process ended",
                f"{helper.name}: {helper.end}; it is started again in {wait_s:.0f} s",
                process=helper.name,
            )

    # --- lines ------------------------------------------------------------------------------------

    def _read(self, stream: int, lines: _Lines) -> bool:
        data = os.read(stream, READ_BYTES)
        if data:
            lines.add(data)
            return True
        self._selector.unregister(stream)
        os.close(stream)
        return False

    def _read_rest(self) -> None:
        """Read what processes have written before they ended."""
        while found := [k for k, _ in self._selector.select(0) if isinstance(k.fileobj, int)]:
            for key in found:
                key.data()

    def _take_event(self, process: Process, line: str) -> None:
        fields = read_object(line)
        name = process.name if isinstance(process, Member) else ""
        if fields is None:
            self._view.text(name, line)
        else:
            self._view.event(name, fields)

    def _take_error(self, process: Process, line: str) -> None:
        fields = read_object(line)
        name = process.name if isinstance(process, Member) else ""
        if fields is not None and {"code", "error"} <= fields.keys():
            process.error = fields
            self._view.error(name, fields)
        elif self._options.verbose or not line.startswith(DIAGNOSTIC):
            self._view.text(name, line)

    def _note(self, pipeline: str, kind: str, text: str, **fields: Any) -> None:
        self._view.event(pipeline, event(REAL_CLOCK, kind, text=text, **fields))

    def _say(self) -> None:
        """Say which pipelines need attention, if that has changed."""
        every = self._members.values()
        bad = sorted(one.name for one in every if one.has_failed)
        text = f"{sum(one.is_running for one in every)} of {len(every)} pipelines run"
        if bad:
            text += f"; {', '.join(bad)} {'needs' if len(bad) == 1 else 'need'} attention"
        if text != self._last_said:
            self._last_said = text
            self._note("", "pipelines", text, failed=bad)

    # --- the end ----------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise PipelinesFailed if a pipeline failed the last time, SystemExit if hurried."""
        if self._stops > 1:
            raise SystemExit(HURRIED_EXIT_CODE)
        failed = [one for one in self._members.values() if one.has_failed]
        if failed:
            raise PipelinesFailed(
                f"{len(failed)} of {len(self._members)} pipelines failed: "
                + "; ".join(f"{one.name}: {one.end}" for one in failed),
                hint="Follow the hint of each error above, then start again.",
                pipelines=[one.name for one in failed],
            )

    def _end_helpers(self) -> None:
        self._stops += 1
        end_s = REAL_CLOCK.monotonic_s() + END_WAIT_S
        for helper in self._helpers.values():
            helper.restart_at_s = None
            if helper.is_running:
                _signal(helper.pid, signal.SIGTERM)
        while any(one.is_running for one in self._helpers.values()):
            if REAL_CLOCK.monotonic_s() >= end_s:
                return
            for key, _ in self._selector.select(0.2):
                key.data()
            self._reap()

    def _kill_left_overs(self) -> None:
        for process in (*self._helpers.values(), *self._members.values()):
            if process.is_running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _as_child(work: Callable[[], object]) -> None:
    """Do the work in a forked process, which ends with its parent."""
    from penstock.host.process import end_with_parent

    os.environ[WITH_PARENT] = "1"
    end_with_parent()
    work()


def _host(options: Any, place: Path) -> None:
    """Own the shared Spark, in a forked process."""
    from penstock.load.spark_host import host_spark

    configure_diagnostics(verbose=False, file=None)
    stop = StopRequest()
    with stop_on_signals(stop):
        host_spark(options, place, stop, stop.wait)


def _name(members: Mapping[Path, Member]) -> None:
    """Name each pipeline by its file, with the path if two files have the same name."""
    stems = [one.stem for one in members]
    for file, member in members.items():
        member.name = file.stem if stems.count(file.stem) == 1 else str(file)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _drain(woken: socket.socket) -> None:
    with suppress(BlockingIOError):
        while woken.recv(READ_BYTES):
            pass
