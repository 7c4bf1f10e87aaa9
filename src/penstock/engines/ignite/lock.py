"""Lock of a node's CDC directory, as Java takes it: a POSIX lock on byte 0 of `lock`."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from penstock.host.clock import Clock
from penstock.host.files import Lock
from penstock.model import PenstockError

ATTEMPT_INTERVAL_S = 1.0
POLL_S = 0.1
_FLOCK = struct.Struct("@hhqqi4x")  # of Linux: kind, from where, begin, length, process

# A POSIX lock belongs to the process: it does not exclude a second reader in this process, and is
# released when any descriptor of the file is closed. So the locks of this process are listed here,
# by file, and such a file is not opened again.
_held: dict[tuple[int, int, int], str] = {}
_held_lock = threading.Lock()

logger = structlog.get_logger(__name__)


class DirectoryTaken(PenstockError):
    """Another process, perhaps Ignite's utility, reads the directory. fields: path, holder."""

    code = "IG50"
    retry = "backoff"


class CdcLock(Lock):
    """Lock that is held until release(); the system releases it when the process ends."""

    def __init__(self, directory: Path) -> None:
        """Take the lock without waiting. Raises BlockingIOError."""
        self.path = directory / "lock"
        with _held_lock:
            if _held_here(self.path):
                raise BlockingIOError(errno.EAGAIN, "held by this process")
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError as error:
                os.close(self._descriptor)
                raise BlockingIOError(error.errno, error.strerror) from error
            text = f"[consumerId=cdc.lock, proc={os.getpid()}@{socket.gethostname()}]"
            os.pwrite(self._descriptor, text.encode(), 1)
            os.ftruncate(self._descriptor, 1 + len(text.encode()))
            self._key = _key_of(os.fstat(self._descriptor))
            _held[self._key] = text

    def release(self) -> None:
        """Release the lock. The file keeps the holder's name, as Ignite leaves it."""
        with _held_lock:
            if _held.pop(self._key, None) is not None:
                os.close(self._descriptor)


def _key_of(found: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), found.st_dev, found.st_ino  # a forked process holds nothing


def _held_here(path: Path) -> str:
    """Return the holder's name from the lock if this process holds it; empty if it does not."""
    try:
        return _held.get(_key_of(path.stat()), "")
    except FileNotFoundError:
        return ""


def holder(directory: Path) -> str:
    """Return the name of the present or last holder, from the file."""
    if held := _held_here(directory / "lock"):
        return held
    data = (directory / "lock").read_bytes()[1:]
    return data.decode(errors="replace").strip("\0")


def reader_of(directory: Path) -> int:
    """Return the process that holds the lock; 0 if none does. The lock is only tested, never
    taken.
    """
    if _held_here(directory / "lock"):
        return os.getpid()
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def not_acquired(directory: Path, held_by: str, waited_s: float = 0) -> str:
    """Return the published text for a lock that another process holds."""
    return (
        f"Failed to acquire file lock [holder={held_by}, time={waited_s:.0f} sec, "
        f"path={directory / 'lock'}]"
    )


def take(
    directory: Path, timeout_ms: int | None, *, stop: Callable[[], bool], clock: Clock
) -> CdcLock | None:
    """Take the lock, trying once a second for this time; None when asked to stop. Raises
    DirectoryTaken.
    """
    began_s = clock.monotonic_s()
    while not stop():
        try:
            return CdcLock(directory)
        except BlockingIOError:
            held_by = holder(directory)
        waited_s = clock.monotonic_s() - began_s
        if timeout_ms is not None:
            logger.warning(not_acquired(directory, held_by, waited_s))
            if waited_s * 1000 >= timeout_ms:
                raise DirectoryTaken(
                    f"Can't acquire lock for Change Data Capture folder [dir={directory}]",
                    hint=f"{held_by} reads it: end that process, or start this one with --standby.",
                    path=str(directory),
                    holder=held_by,
                )
        until_s = clock.monotonic_s() + ATTEMPT_INTERVAL_S
        while not stop() and clock.monotonic_s() < until_s:
            clock.sleep(POLL_S)
    return None
