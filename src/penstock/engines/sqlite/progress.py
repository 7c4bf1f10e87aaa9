"""Tables wirekite_progress and wirekite_action in the SQLite file; see `penstock.sql.state_store`.

They have document 000's columns. Nothing is applied without a target, so the only rows are those of
segments (CE), and the tables that store a target's applied position are missing. Times are UTC, as
text that sorts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from penstock.engines.sqlite.progress_file import (
    create,
    file_identity,
    open_file,
    path_of,
    typed_errors,
)
from penstock.host.errors import StatementFailed
from penstock.ports.progress import ProgressRow
from penstock.sql.state_dialect import RowLock, StateDialect
from penstock.sql.state_store import StateStore, check_action

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
    """Return the time that the file holds as text; None as it is."""
    return None if text is None else datetime.fromisoformat(str(text))
