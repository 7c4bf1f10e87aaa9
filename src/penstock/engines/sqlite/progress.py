"""Tables wirekite_progress and wirekite_action in an SQLite file; see `penstock.sql.state_store`.

They have Wirekite's columns. Nothing is applied without a target, so the only rows are those of
segments (CE), and the tables that store a target's applied position are missing. Times are UTC, as
text that sorts.

Several processes use the file at the same time: one writes the rows of segments, others read, an
operator may write an action. It is in WAL mode, so that writers do not wait for readers, and every
commit is synced.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import ConnectFailed, StatementFailed, StatementInterrupted
from penstock.host.files import REAL_FILES
from penstock.model import PenstockError, Retry
from penstock.ports.progress import ProgressRow
from penstock.ports.target import ProgressUnwritable
from penstock.sql.state_dialect import RowLock, StateDialect
from penstock.sql.state_store import StateStore, check_action

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

    So the queries of Wirekite's guide run unchanged. Autocommit; any thread may use the connection,
    one at a time. Raises ConnectFailed, ProgressFileBroken.
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


DIALECT = StateDialect(
    container="file",
    types={
        "start_time": "timestamp not null",
        "finish_time": "timestamp null",
        "action": "varchar(8) not null",
    },
    has_schema="select 1",
    drop_schema="",
    present="select name from wirekite.sqlite_master where type = 'table' and name in ({names})",
    placeholder="?",
    now="utc_now()",  # a function of ours
    utc_now="utc_now()",
    for_update=RowLock(),
    for_share=RowLock(),
    merge_name_max=0,
)


class SQLiteProgress(StateStore):
    """Progress tables in a file. Used by one thread at a time.

    A missing file gives empty answers, and only `ensure_tables` creates it; a file that was
    replaced is opened again.
    """

    dialect = DIALECT
    tables = ("wirekite_progress", "wirekite_action")

    def __init__(self, url: str, application_name: str) -> None:
        """Store the path; the file is opened with the first query."""
        del application_name  # SQLite shows no connections
        self._path = path_of(url)
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    @property
    def is_closed(self) -> bool:
        """False: the file is opened again automatically."""
        return False

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _session(self, doing: str) -> Iterator[sqlite3.Connection | None]:
        """Provide the connection to the current file, or None if there is no file."""
        found = file_identity(self._path)
        if found != self._identity:
            self.close()
        self._identity = found
        if found is not None and self._connection is None:
            self._connection = open_file(self._path)
        with typed_errors(self._path, doing):
            yield self._connection

    def rows(self, sql: str, values: Sequence[object] = (), *, doing: str) -> Sequence[Any]:
        with self._session(doing) as connection:
            return [] if connection is None else connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Sequence[object] = (), *, doing: str) -> int:
        with self._session(doing) as connection:
            return 0 if connection is None else connection.execute(sql, values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._session("writing the progress tables") as connection:
            if connection is None:
                yield
                return
            connection.execute("begin immediate")
            try:
                yield
                connection.execute("commit")
            finally:
                if connection.in_transaction:
                    connection.execute("rollback")

    @contextmanager
    def create_alone(self) -> Iterator[None]:
        with self._session("creating the progress tables") as connection:
            # The mode is kept in the file itself; an existing file must not be locked for it.
            mode = "pragma wirekite.journal_mode"
            if connection is not None and connection.execute(mode).fetchone() != ("wal",):
                connection.execute(f"{mode} = wal")
        with self.transaction():
            yield

    def is_missing(self, error: StatementFailed) -> bool:
        return "no such table" in error.message

    def action_command(self) -> str:
        return f"sqlite3 {self._path} \"update wirekite_action set action = 'RUN'\""

    def ensure_tables(self) -> None:
        if file_identity(self._path) is None:
            create(self._path)
        super().ensure_tables()

    def set_action(self, action: str) -> None:
        """Store the action. Raises StatementFailed if the pipeline has not created its tables
        yet.
        """
        check_action(action)
        if "wirekite_action" not in self.present_tables():
            raise StatementFailed(
                f"{self._path} has no table wirekite_action yet",
                hint="Start the pipeline: penstock run FILE",
            )
        super().set_action(action)

    def begin_segment(self, *, slot: str, file: str, mark: str) -> None:
        self.ensure_tables()  # the file may have been removed meanwhile
        super().begin_segment(slot=slot, file=file, mark=mark)

    def end_segment(self, *, slot: str, file: str, mark: str) -> None:
        self.ensure_tables()
        super().end_segment(slot=slot, file=file, mark=mark)

    def newest(self, operation: str) -> tuple[ProgressRow, ...]:
        return tuple(
            replace(row, start_time=_moment(row.start_time), finish_time=_moment(row.finish_time))
            for row in super().newest(operation)
        )


def _moment(text: Any) -> Any:
    """Return a time that the file holds as text; None stays None."""
    return None if text is None else datetime.fromisoformat(str(text))
