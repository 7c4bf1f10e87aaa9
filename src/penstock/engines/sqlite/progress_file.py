"""SQLite file of progress: its path, opening it, and typed errors.

Several processes use it at the same time: one writes the rows of segments, others read, an operator
may write an action. It is in WAL mode, so that writers do not wait for readers, and every commit is
synced. Not here: its tables (`progress.py`).
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, unquote

from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import ConnectFailed, StatementFailed, StatementInterrupted
from penstock.host.files import REAL_FILES
from penstock.model import PenstockError, Retry
from penstock.ports.target import ProgressUnwritable

SCHEME = "sqlite://"
FILE_NAME = "wirekite.db"
BUSY_TIMEOUT_S = 10.0  # a writer holds the file for a few milliseconds, mostly for one sync

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT})
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REFUSED = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)


class ProgressFileBroken(PenstockError):
    """The file of a pipeline without a target is damaged, or is not a SQLite database."""

    code = "SL01"
    retry: ClassVar[Retry] = "operator"


def progress_url(directory: Path) -> str:
    """Return the URL of the file in this directory, which is absolute."""
    return f"{SCHEME}{quote(str(directory / FILE_NAME))}"


def path_of(url: str) -> Path:
    """Return the path in a URL of `progress_url`."""
    return Path(unquote(url.removeprefix(SCHEME)))


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file, which identify it; None if there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConnectFailed(
            f"{path} cannot be looked at: {error.strerror or error}",
            hint=f"Let this user read {path.parent}.",
        ) from error
    return found.st_dev, found.st_ino


def create(path: Path) -> None:
    """Create an empty file and its directory if they are missing."""
    REAL_FILES.make_directory(path.parent)
    try:
        path.touch()
    except OSError as error:
        raise _refusal(path, f"making it failed: {error.strerror or error}") from error


def open_file(path: Path) -> sqlite3.Connection:
    """Open an existing file as schema `wirekite` of an empty database in memory.

    So the queries of document 000 run unchanged. Autocommit; any thread may use the connection, one
    at a time. Raises ConnectFailed, ProgressFileBroken.
    """
    connection = sqlite3.connect(
        ":memory:", timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=True
    )
    try:
        with typed_errors(path, "opening it"):
            connection.execute("attach ? as wirekite", (f"file:{quote(str(path))}?mode=rw",))
            connection.execute("pragma wirekite.synchronous = full")
            connection.create_function("utc_now", 0, _utc_now)
    except BaseException:
        connection.close()
        raise
    return connection


def _utc_now() -> str:
    """Return the present time as the tables hold it."""
    now = datetime.fromtimestamp(REAL_CLOCK.now_us() / 1e6, UTC).replace(tzinfo=None)
    return now.isoformat(sep=" ", timespec="microseconds")


@contextmanager
def typed_errors(path: Path, doing: str) -> Iterator[None]:
    """Convert SQLite's errors to typed ones. doing: the action, for the message."""
    try:
        yield
    except sqlite3.Error as error:
        raise _typed_error(path, doing, error) from error


def _refusal(path: Path, said: str) -> ProgressUnwritable:
    return ProgressUnwritable(
        f"{path}: {said}",
        hint=f"Let user {os.geteuid()} write {path.parent}, with room on its disk; then run the "
        "same command again.",
    )


def _typed_error(path: Path, doing: str, error: sqlite3.Error) -> PenstockError:
    number = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended part
    said = f"{path}: {doing} failed: {error}"
    if number in _BUSY:
        return StatementInterrupted(said, hint="Run the same command again.")
    if number in _BROKEN:
        files = f"{shlex.quote(str(path))}*"
        return ProgressFileBroken(
            said,
            hint="Stop the pipeline and remove the file and those beside it with the same "
            f"beginning: rm {files}; the next run makes it again from the change log, with the "
            "action RUN.",
        )
    if number in _REFUSED:
        return _refusal(path, f"{doing} failed: {error}")
    return StatementFailed(said, hint=f"Look into it: sqlite3 {path} .schema")
