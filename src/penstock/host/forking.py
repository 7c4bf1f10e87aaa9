"""Processes that are forked from a parent in place of being started: they share its memory.

A parent without threads imports everything once. A forked process then needs only the memory that
it changes, and begins at once. A process that the parent forked may have a channel to it, by which
`Child` asks for processes of its own. Not here: what the parent does besides
(`control/run/group.py`).
"""

from __future__ import annotations

import array
import atexit
import fcntl
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

CHANNEL = 3  # descriptor in a forked process, after its standard streams
FREE_FROM = 10  # descriptors that are not among those of a forked process
MESSAGE_BYTES_MAX = 65536
WAIT_STEP_S = 0.05
COMMAND_NAME_MAX = 15  # Linux cuts longer ones

_forker: Forker | None = None


def fork_process(
    work: Callable[[], object],
    streams: tuple[int, int, int],
    *,
    name: str,
    channel: socket.socket | None = None,
) -> int:
    """Fork a process that does the work and ends; return its process id.

    The caller must have no other threads. The process has a session of its own, none of our other
    descriptors, and the default handlers of signals.

    Args:
        work: Its exit code is that of a Python program: SystemExit has one, another error is 1.
        streams: Descriptors of its standard streams.
        name: Shown by `ps -o comm`.
        channel: Its end of a pair of sockets; our end gets its requests (`take_request`).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    every = signal.valid_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, every)
    settled, theirs = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _become(work, streams, name, channel, before)
        os.close(theirs)
        os.read(settled, 1)  # its session exists, so that its group can be killed
        return pid
    finally:
        os.close(settled)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _become(
    work: Callable[[], object],
    streams: tuple[int, int, int],
    name: str,
    channel: socket.socket | None,
    mask: set[signal.Signals | int],
) -> NoReturn:
    """Be the forked process. It never returns into the frames of the parent, whose objects still
    have descriptors that are closed here.
    """
    code = 1
    try:
        _settle(streams, name, channel, mask)
        code = _do(work)
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _settle(
    streams: tuple[int, int, int],
    name: str,
    channel: socket.socket | None,
    mask: set[signal.Signals | int],
) -> None:
    """Take over descriptors and signals."""
    global _forker
    os.setsid()
    atexit._clear()
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = [*streams, *([channel.fileno()] if channel is not None else [])]
    free = [fcntl.fcntl(one, fcntl.F_DUPFD, FREE_FROM) for one in wanted]
    for number, one in enumerate(free):
        os.dup2(one, number, inheritable=number < CHANNEL)
    os.closerange(len(free), os.sysconf("SC_OPEN_MAX"))
    _forker = Forker(socket.socket(fileno=CHANNEL)) if channel is not None else None
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name[:COMMAND_NAME_MAX])
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _do(work: Callable[[], object]) -> int:
    """Do the work; return the exit code."""
    try:
        work()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def forker() -> Forker | None:
    """Return this process's channel to the parent that forked it; None if there is none."""
    return _forker


class Forker:
    """Channel to the parent, which forks processes on request and reports how they ended."""

    def __init__(self, channel: socket.socket) -> None:
        """Keep our end of a pair of sockets."""
        self._channel = channel
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        self._is_alone = False  # the parent has ended

    def start(self, arguments: Sequence[str]) -> ForkedProcess:
        """Have a process forked that runs this command line of penstock. Raises OSError."""
        theirs_in, ours_in = os.pipe()
        ours_err, theirs_err = os.pipe()
        try:
            with self._lock:
                self._send(arguments, theirs_in, theirs_err)
                while True:  # the ends of other processes may come first
                    answer = self._receive(None)
                    if "code" not in answer:
                        break
        except BaseException:
            os.close(ours_in)
            os.close(ours_err)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_err)
        return ForkedProcess(
            self, int(answer["pid"]), os.fdopen(ours_in, "wb", 0), os.fdopen(ours_err, "rb")
        )

    def _send(self, arguments: Sequence[str], *descriptors: int) -> None:
        carried = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        self._channel.sendmsg([json.dumps(list(arguments)).encode()], [carried])

    def _receive(self, wait_s: float | None) -> dict[str, Any]:
        """Return the next message; empty if there is none in time. Raises OSError at the end."""
        if self._is_alone or not select.select([self._channel], [], [], wait_s)[0]:
            return {}
        data = self._channel.recv(MESSAGE_BYTES_MAX)
        if not data:
            self._is_alone = True
            raise ConnectionResetError("the process that starts processes has ended")
        found: dict[str, Any] = json.loads(data)
        if "code" in found:
            self._codes[found["pid"]] = found["code"]
        return found

    def code_of(self, pid: int) -> int | None:
        """Return the exit code of a process, as subprocess has it; None while it runs."""
        with self._lock:
            with suppress(OSError):
                while self._receive(0.0):
                    pass
            if pid in self._codes:
                return self._codes[pid]
            return -signal.SIGTERM if self._is_alone and not _is_alive(pid) else None


class ForkedProcess:
    """Process that the parent forked for us, with the methods of `subprocess.Popen` in use."""

    def __init__(self, channel: Forker, pid: int, stdin: IO[bytes], stderr: IO[bytes]) -> None:
        """Keep its id and our ends of its streams."""
        self.pid = pid
        self.stdin = stdin
        self.stderr = stderr
        self.returncode: int | None = None
        self._channel = channel

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = self._channel.code_of(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutError."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end_s is not None and time.monotonic() >= end_s:
                raise TimeoutError
            time.sleep(WAIT_STEP_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal; does nothing if it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def take_request(ours: socket.socket) -> tuple[list[str], int, int] | None:
    """Return a request on the parent's end of a channel: command line, standard input and error.

    Returns None if the process at the other end has ended.
    """
    data, descriptors, _flags, _address = socket.recv_fds(ours, MESSAGE_BYTES_MAX, 2)
    if not data:
        return None
    stdin, stderr = descriptors
    return json.loads(data), stdin, stderr


def tell(ours: socket.socket, **fields: int) -> None:
    """Send a message to a forked process; does nothing if that has ended."""
    with suppress(OSError):
        ours.send(json.dumps(fields).encode())


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a channel: ours, and that of the process to fork."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
