"""Lives of a loader that may be killed, in a standing JVM: `penstock load` without its start.

A loader's start costs ten CPU seconds of Java. A life is forked from a process that has imported
everything, and uses the JVM of the test's own session, so a kill costs what its batch costs. What
such a loader leaves behind is worse than after a kill of both processes: the JVM ends what it was
told, which a loader on another machine may do, too. Not here: whole processes
(`harness/faults/kills.py`), whose workers have fault points as well.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import socketserver
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from penstock.load.session import Session
from penstock.ports.target import AppliedByAnother

END_TIMEOUT_S = 900.0
_PRELOADED = ("harness.lake.lives", "harness.lake.preloaded", "pyspark")
_context = multiprocessing.get_context("forkserver")


class _Counter(socketserver.StreamRequestHandler):
    """Answers Java at the end of each task, as pyspark's server of accumulators does.

    Java waits for the answer. A life that a test has paused gives none, and all lives of the JVM
    would wait for it, so the test's process answers. No life counts anything.
    """

    def handle(self) -> None:
        server: Any = self.server
        self.rfile.read(server.secret_size)
        while number := self.rfile.read(4):
            assert number == bytes(4), "a life counts in Spark"
            self.wfile.write(b"\x01")


@functools.cache
def _start_counter(secret_size: int) -> int:
    """Start a server of this process; return its port."""
    server: Any = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Counter)
    server.daemon_threads = True
    server.secret_size = secret_size
    threading.Thread(target=server.serve_forever, name="counter", daemon=True).start()
    return int(server.server_address[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A standing JVM with a Spark context.

    Attributes:
        port, secret: Of its py4j gateway.
        pid: Its process.
        counter_port: Of the server that Java tells of the end of each task.
    """

    port: int
    secret: str
    pid: int
    counter_port: int

    @classmethod
    def of(cls, session: Session) -> Java:
        """Return the JVM of a session."""
        given = session.context._gateway.gateway_parameters  # type: ignore[union-attr]
        secret = given.auth_token
        return cls(
            port=given.port,
            secret=secret,
            pid=session.java_pid,
            counter_port=_start_counter(len(secret)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """Facts of a life's start.

    Attributes:
        file: The pipeline file.
        fault: As in PENSTOCK_FAULT.
        once: See PENSTOCK_FAULT_ONCE.
        output: The file that gets its messages.
        is_second: It takes no lock, as a loader on another machine that sees no lock of this one.
    """

    java: Java
    file: Path
    fault: str
    once: Path
    output: Path
    is_second: bool


class Life:
    """The loader of a pipeline: one process after the other."""

    def __init__(self, file: Path, session: Session) -> None:
        """Prepare; nothing is started yet."""
        self.file = file
        self._java = Java.of(session)
        self._process: Any = None
        self.output = file.parent / "lives.out"
        self.once = Path(tempfile.mkdtemp(prefix="once-life-", dir=file.parent))
        self.start_count = 0
        _context.set_forkserver_preload(list(_PRELOADED))

    def start(self, fault: str = "", *, is_second: bool = False) -> None:
        """Start a process. fault: as in PENSTOCK_FAULT. is_second: see `Birth`."""
        for told in self.once.iterdir():
            told.unlink()
        birth = Birth(
            java=self._java,
            file=self.file,
            fault=fault,
            once=self.once,
            output=self.output,
            is_second=is_second,
        )
        self._process = _context.Process(target=_live, args=(birth,), daemon=True)
        with _without_main():
            self._process.start()
        self.start_count += 1

    @property
    def pid(self) -> int:
        """Process id."""
        return int(self._process.pid)

    @property
    def running(self) -> bool:
        """Return whether it runs or is paused."""
        return self._process is not None and bool(self._process.is_alive())

    @property
    def exit_code(self) -> int | None:
        """Exit code; the signal's number below 0; None while it runs."""
        code: int | None = self._process.exitcode
        return code

    @property
    def has_reached(self) -> bool:
        """Return whether the fault it was started with has happened."""
        return any(self.once.iterdir())

    @property
    def is_refused(self) -> bool:
        """Return whether it ended because another loader had moved the lake.

        So does one whose JVM still carries out what a killed loader has told it.
        """
        code = f'"code": "{AppliedByAnother.code}"'
        return self.exit_code == 1 and code in self.read_output(500)

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait."""
        self._process.kill()
        self._process.join()

    def finish(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Wait for its end; return the exit code."""
        self._process.join(timeout_s)
        assert self.exit_code is not None, f"the loader does not end: {self.read_output()}"
        return self.exit_code

    def stop(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Ask it to end (SIGTERM), and wait; return the exit code."""
        if self.running:
            self.signal(signal.SIGTERM)
        return self.finish(timeout_s)

    def read_output(self, size: int = 3000) -> str:
        """Return the end of the output of all lives."""
        return self.output.read_text(errors="replace")[-size:] if self.output.exists() else ""


@contextmanager
def _without_main() -> Iterator[None]:
    """Let a new process not import the program of this one, which costs more than a batch."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _live(birth: Birth) -> None:
    """Run `penstock load` in this process, which was forked for it."""
    os.setsid()
    with birth.output.open("ab") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    code = 1
    try:
        code = _load(birth)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _load(birth: Birth) -> int:
    # The process of the tests has none of it imported before a test needs it.
    from penstock.control.pipeline.config import load_config
    from penstock.control.pipeline.diagnostics import diagnostics_to
    from penstock.control.run import load_process
    from penstock.host import faults
    from penstock.load import session as session_module
    from penstock.model import PenstockError

    os.environ[faults.ONCE_VARIABLE] = str(birth.once)
    faults.arm(birth.fault)
    replaced: Any = session_module
    replaced.start_session = lambda options, _=None: _attach(birth.java, options)
    if birth.is_second:
        process: Any = load_process
        process.take_lock = lambda *_: nullcontext()
        process.check_not_running = lambda *_: None
    config = load_config(birth.file)
    config.layout.run.mkdir(parents=True, exist_ok=True)
    _say(f"-- life {os.getpid()} {birth.fault} second={birth.is_second}")
    try:
        with diagnostics_to(config.layout.run / "load.log", verbose=False):
            load_process.load_changes(config, checked=True)
    except PenstockError as error:
        _say(json.dumps({"code": error.code, "message": error.message}))
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Attached(Session):
    """Session in a JVM that this process neither started nor ends."""

    def __init__(self, context: Any, gateway: Any, java: Java) -> None:
        super().__init__(context, gateway, started_s=0.0)
        self._java = java

    @property
    def java_pid(self) -> int:
        return self._java.pid

    @property
    def alive(self) -> bool:
        return psutil.pid_exists(self._java.pid)

    def with_jobs(self, jobs: str) -> Session:
        other = _Attached(self._context, self._gateway, self._java)
        other._jobs = jobs
        return other

    def warm_up(self) -> None:
        """Do nothing: this JVM is warm."""

    def close(self) -> None:
        """Leave the JVM as it is."""


def _attach(java: Java, options: Any) -> Session:
    from pyspark import SparkConf, SparkContext, java_gateway

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_GATEWAY_PORT"] = str(java.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = java.secret
    began = time.monotonic()
    launch: Any = java_gateway.launch_gateway
    gateway = launch()
    jvm: Any = gateway.jvm
    running = jvm.org.apache.spark.SparkContext.getOrCreate()
    context = SparkContext(
        master=options.master,
        appName=options.name,
        conf=SparkConf(loadDefaults=False),
        gateway=gateway,
        jsc=jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running),
    )
    replaced: Any = context
    replaced._javaAccumulator = jvm.PythonAccumulatorV2("127.0.0.1", java.counter_port, java.secret)
    running.register(replaced._javaAccumulator)
    session = _Attached(context, gateway, java)
    session.started_s = time.monotonic() - began
    return session
