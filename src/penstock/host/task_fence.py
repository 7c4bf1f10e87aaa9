"""Permits for tasks that may outlive the process that submitted them.

In a Spark that several pipelines share, the tasks of a loader that was killed go on, and could
write beside those of the next one. So each task holds a lock while it works, and works only as long
as its permit is the newest one of the directory. The next loader issues another permit, kills the
processes that still hold a lock, and then nothing of the previous loader works any more.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.model import PenstockError

PERMITS_NAME = "permits"  # of the directory, below a pipeline's run/
NEWEST_NAME = "newest"
SUFFIX = ".task"
KILL_WAIT_S = 30.0
CHECK_S = 0.02


class PermitOutdated(PenstockError):
    """A task of a loader that has ended was started after the next loader."""

    code = "HS73"
    retry = "backoff"


class TaskNotEnded(PenstockError):
    """A task of the previous loader goes on although its process was killed."""

    code = "HS74"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPermit:
    """Permit of one loader's tasks. directory: absolute, of the pipeline."""

    directory: Path
    number: str

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock of a task during the block. Raises PermitOutdated.

        The lock comes first, so the issuer of the next permit sees the lock, or the task sees
        that permit.
        """
        path = self.directory / f"{os.getpid()}{SUFFIX}"
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _newest(self.directory) != self.number:
                raise PermitOutdated(
                    "the loader of this task has ended",
                    hint="Do nothing: the next loader repeats its work.",
                )
            yield
        finally:
            with suppress(FileNotFoundError):
                path.unlink()
            os.close(file)


def issue_permit(directory: Path) -> TaskPermit:
    """Return the newest permit after the end of all tasks with another one. Raises TaskNotEnded."""
    directory.mkdir(parents=True, exist_ok=True)
    permit = TaskPermit(directory=directory.absolute(), number=uuid.uuid4().hex)
    _write(directory, permit.number)
    _end_tasks(directory)
    return permit


def withdraw_permits(directory: Path) -> None:
    """End all tasks that have a permit of a directory, if there ever were any.

    Raises TaskNotEnded.
    """
    if (directory / NEWEST_NAME).exists():
        _write(directory, "")
        _end_tasks(directory)


def _newest(directory: Path) -> str:
    try:
        return (directory / NEWEST_NAME).read_text(encoding="ascii")
    except FileNotFoundError:
        return ""  # the pipeline was reset


def _write(directory: Path, number: str) -> None:
    draft = directory / f"{NEWEST_NAME}.{os.getpid()}"
    draft.write_text(number, encoding="ascii")
    draft.replace(directory / NEWEST_NAME)


def _end_tasks(directory: Path) -> None:
    """Kill each process that holds the lock of a task."""
    end_s = time.monotonic() + KILL_WAIT_S
    for path in directory.glob(f"*{SUFFIX}"):
        while not _remove_free(path):
            with suppress(ProcessLookupError):
                os.kill(int(path.stem), signal.SIGKILL)
            if time.monotonic() >= end_s:
                raise TaskNotEnded(
                    f"process {path.stem} of Spark goes on after SIGKILL",
                    hint="Look at that process and the machine's storage; then start again.",
                    pid=int(path.stem),
                )
            time.sleep(CHECK_S)


def _remove_free(path: Path) -> bool:
    """Remove the file of a task that no process holds; return whether it is gone."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(file)
