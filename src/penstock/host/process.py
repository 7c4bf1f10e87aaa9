"""Child processes: each has a group of its own, ends with its parent, and reports its outcome.

A child detects its parent's death because its standard input ends: that holds for kill -9 and
for every platform.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from penstock.host.clock import REAL_CLOCK
from penstock.host.forking import ForkedProcess, forker
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError
from penstock.model.whole_number import parse_whole

WITH_PARENT = "PENSTOCK_WITH_PARENT"
JAVA_TIMEOUT_S = 60.0
_under_parent = False
JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
JAVA_RELEASE = re.compile(r'JAVA_VERSION="(?:1\.)?(\d+)')
JAVA_VERSIONS = (17, 21)  # the locked Spark runs on these


class ProcessNotStarted(PenstockError):
    """The operating system refused to start a child process."""

    code = "HS60"


class Child:
    """Running child process of ours.

    Its standard error is read line by line on a thread of its own and given to `on_line`; its
    standard input stays open as long as we live.

    Attributes:
        pid: Process id of the child.
    """

    def __init__(self, arguments: Sequence[str], *, on_line: Callable[[str], None]) -> None:
        """Start it. Raises ProcessNotStarted."""
        try:
            self._process = _start(arguments)
        except OSError as error:
            raise ProcessNotStarted(f"cannot start {arguments[0]}: {error.strerror}") from error
        self.pid = self._process.pid
        # Reads the child's standard error for the caller; a daemon thread, because a grandchild
        # that outlives the child may keep the pipe open.
        self._reader = SupervisedThread(
            "child-reader",
            lambda: _read_lines(self._process.stderr, on_line),
            wait=REAL_CLOCK.sleep,
        )
        self._reader.start()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal's number; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(timeout=2.0)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing if the child has ended."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill_group(self) -> None:
        """Kill the child and all its descendants that stayed in its group."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; return None if it still runs after timeout_s."""
        try:
            self._process.wait(timeout_s)
        except (subprocess.TimeoutExpired, TimeoutError):
            return None
        return self.poll()

    def close(self) -> None:
        """Close its standard input; the child ends if it still runs."""
        if self._process.stdin is not None:
            self._process.stdin.close()


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start a process, or have it forked if it is penstock and ours was forked, too."""
    own, parent = this_program(), forker()
    if parent is not None and list(arguments[: len(own)]) == own:
        return parent.start(arguments[len(own) :])
    return subprocess.Popen(
        list(arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, WITH_PARENT: "1"},
        # Ctrl-C in the terminal is for the parent, which ends its children in order.
        start_new_session=True,
    )


def _read_lines(stream: IO[bytes] | None, on_line: Callable[[str], None]) -> None:
    if stream is None:
        return
    for line in stream:
        on_line(line.decode("utf-8", errors="replace").rstrip("\n"))
    stream.close()


def end_with_parent() -> None:
    """Ask ourselves to end as soon as the parent has ended, in a child that `Child` started.

    Does nothing in a process that was started in another way.
    """
    global _under_parent
    if os.environ.pop(WITH_PARENT, None) is None:
        return
    _under_parent = True

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    SupervisedThread("parent-watch", watch, wait=REAL_CLOCK.sleep).start()


def under_parent() -> bool:
    """Return whether a `Child` started this process, as `end_with_parent` found."""
    return _under_parent


def output_is_unread() -> bool:
    """Return whether our standard output or error is a pipe without a reader."""
    watch = select.poll()
    for number in (1, 2):
        watch.register(number, 0)  # errors are always reported
    return any(events & select.POLLERR for _, events in watch.poll(0))


def this_program() -> list[str]:
    """Return the arguments that start this penstock again, with the same interpreter."""
    return [sys.executable, "-m", "penstock"]


def process_alive(pid: int) -> bool:
    """Return whether a process with this id runs (as any user)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def java_program() -> Path | None:
    """Return the Java that Spark will use, JAVA_HOME first, or None."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return Path(found) if found and Path(found).exists() else None


def java_version() -> int | None:
    """Return the major version of the Java that Spark will use; None if there is no Java or
    version.

    The version is in the runtime's release file. Only if it is missing there, the program is run,
    which costs more and may be slow or end early on a busy machine.
    """
    java = java_program()
    if java is None:
        return None
    release = java.resolve().parent.parent / "release"
    if release.is_file():
        match = JAVA_RELEASE.search(release.read_text(errors="replace"))
        if match is not None:
            return int(match[1])
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, timeout=JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = JAVA_VERSION.search((done.stderr + done.stdout).decode("utf-8", errors="replace"))
    return int(match[1]) if match else None


def holder_of(lock: Path) -> int:
    """Return the process that holds a lock file of ours, or 0.

    It is found by the pid in the file and, if there is /proc, that process's command line or open
    files: a program that imports penstock has a command line of its own. The lock itself is not
    tried: that would make a process fail that takes it at this moment.
    """
    try:
        text = lock.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return 0
    pid = parse_whole(text, otherwise=0)
    if not pid or not process_alive(pid):
        return 0
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return pid
    # After a kill the pid may belong to another program.
    is_ours = b"penstock" in command or pid == os.getpid() or _has_open(pid, lock)
    return pid if is_ours else 0


def _has_open(pid: int, path: Path) -> bool:
    """Return whether a process has a file open; False if it may not be asked."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        wanted, files = path.stat(), list(folder.iterdir())
    except OSError:
        return False
    for file in files:
        with suppress(OSError):  # closed meanwhile
            if os.path.samestat(file.stat(), wanted):
                return True
    return False
