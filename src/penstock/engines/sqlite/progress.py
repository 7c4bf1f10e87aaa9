"""Tables wirekite_progress and wirekite_action in the SQLite file; see `ports/progress.py`.

They have document 000's columns. Nothing is applied without a target, so the only rows are those of
segments (CE), and the tables that store a target's applied position are missing. Times are UTC, as
text that sorts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from penstock.engines.sqlite.progress_file import (
    create,
    file_identity,
    open_file,
    path_of,
    typed_errors,
)
from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import StatementFailed
from penstock.model import TableName
from penstock.ports.bulk import ChunkCounts
from penstock.ports.refusals import ActionUnknown
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied
from penstock.ports.target_state import ProgressRow
from penstock.sql.progress_queries import ProgressQueries

ACTIONS = ("RUN", "PAUSE", "STOP")

TABLES = (
    """
    create table if not exists wirekite.wirekite_progress (
        source       varchar(256) not null,
        target       varchar(256) not null,
        operation    varchar(2) not null,
        transmission varchar(1) not null,
        mark         varchar(64) null,
        table_name   varchar(256) null,
        start_time   timestamp not null,
        finish_time  timestamp null,
        restarts     int default 0 not null,
        primary key (source, target)
    )
    """,
    """
    create table if not exists wirekite.wirekite_action (
        action varchar(8) not null
    )
    """,
    """
    insert into wirekite.wirekite_action
    select 'RUN' where not exists (select 1 from wirekite.wirekite_action)
    """,
)

HAS_TABLES = """
    select count(*) from wirekite.sqlite_master
     where type = 'table' and name in ('wirekite_progress', 'wirekite_action')
"""

BEGIN_ROW = """
    insert into wirekite.wirekite_progress
           (source, target, operation, transmission, mark, start_time)
    values (:slot, :file, 'CE', 'F', :mark, :now)
        on conflict (source, target) do update
       set restarts = restarts + case when finish_time is null then 1 else 0 end
"""

END_ROW = """
    insert into wirekite.wirekite_progress
           (source, target, operation, transmission, mark, start_time, finish_time)
    values (:slot, :file, 'CE', 'F', :mark, :now, :now)
        on conflict (source, target) do update
       set mark = excluded.mark,
           operation = excluded.operation,
           finish_time = excluded.finish_time
"""


class SQLiteProgress(ProgressQueries):
    """Implementation of `Progress`, `TargetReader` and `ChunkCounts`. Used by one thread at a time.

    A missing file gives empty answers, and only `ensure_tables` creates it; a file that was
    replaced is opened again.
    """

    def __init__(self, url: str, application_name: str) -> None:
        """Store the path; the file is opened with the first query."""
        del application_name  # SQLite shows no connections
        self._path = path_of(url)
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    @property
    def is_closed(self) -> bool:
        """See Progress: the file is opened again automatically."""
        return False

    def close(self) -> None:
        """See Progress."""
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

    def ensure_tables(self) -> None:
        """See Progress."""
        if file_identity(self._path) is None:
            create(self._path)
        with self._session("making the progress tables") as connection:
            if connection is None or self._has_tables(connection):
                return
            # The mode is kept in the file itself; an existing file must not be locked for it.
            if connection.execute("pragma wirekite.journal_mode").fetchone() != ("wal",):
                connection.execute("pragma wirekite.journal_mode = wal")
            connection.execute("begin immediate")
            try:
                for statement in TABLES:
                    connection.execute(statement)
                connection.execute("commit")
            finally:
                if connection.in_transaction:
                    connection.execute("rollback")

    @staticmethod
    def _has_tables(connection: sqlite3.Connection) -> bool:
        return bool(connection.execute(HAS_TABLES).fetchone() == (2,))

    # -- RUN, PAUSE, STOP --------------------------------------------------------------------------

    def read_action(self) -> str:
        """See Progress."""
        with self._session("reading the action") as connection:
            if connection is None or not self._has_tables(connection):
                return "RUN"
            row = connection.execute("select action from wirekite.wirekite_action").fetchone()
        word = "RUN" if row is None else str(row[0]).strip().upper()
        if word not in ACTIONS:
            raise ActionUnknown(
                f"wirekite.wirekite_action holds {word!r}, expected RUN, PAUSE or STOP",
                hint=f"Run: sqlite3 {self._path} \"update wirekite_action set action = 'RUN'\"",
            )
        return word

    action = read_action

    def set_action(self, action: str) -> None:
        """See Progress. Raises StatementFailed if the pipeline has not created its tables yet."""
        if action not in ACTIONS:
            raise ActionUnknown(f"no such action: {action!r}", hint="Use RUN, PAUSE or STOP.")
        with self._session("writing the action") as connection:
            if connection is None or not self._has_tables(connection):
                raise StatementFailed(
                    f"{self._path} has no table wirekite_action yet",
                    hint="Start the pipeline: penstock run FILE",
                )
            update = "update wirekite.wirekite_action set action = ?"
            connection.execute("begin immediate")
            try:
                if not connection.execute(update, (action,)).rowcount:
                    connection.execute("insert into wirekite.wirekite_action values (?)", (action,))
                connection.execute("commit")
            finally:
                if connection.in_transaction:
                    connection.execute("rollback")

    # -- rows of segments --------------------------------------------------------------------------

    def begin_segment(self, *, slot: str, file: str, mark: str) -> None:
        """See Progress. A row that a crash left open counts a restart."""
        self._write(BEGIN_ROW, slot, file, mark)

    def end_segment(self, *, slot: str, file: str, mark: str) -> None:
        """See Progress."""
        self._write(END_ROW, slot, file, mark)

    def _write(self, statement: str, slot: str, file: str, mark: str) -> None:
        self.ensure_tables()  # the file may have been removed meanwhile
        now = datetime.fromtimestamp(REAL_CLOCK.now_us() / 1e6, UTC).replace(tzinfo=None)
        row = {
            "slot": slot,
            "file": file,
            "mark": mark,
            "now": now.isoformat(sep=" ", timespec="microseconds"),
        }
        with self._session("writing progress rows") as connection:
            if connection is not None:
                connection.execute(statement, row)

    def finished_segments(self, slot: str) -> set[str]:
        """See Progress."""
        found = self._rows(
            "select target from wirekite.wirekite_progress"
            " where operation = 'CE' and source = ? and finish_time is not null",
            (slot,),
        )
        return {row[0] for row in found}

    # -- for a status ------------------------------------------------------------------------------

    def present(self) -> tuple[bool, bool]:
        """See TargetReader: there are no tables of a bulk load."""
        with self._session("looking for the progress tables") as connection:
            return connection is not None and self._has_tables(connection), False

    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        """See ProgressQueries."""
        return self._rows(query, ())

    def _rows(self, query: str, values: tuple[str, ...]) -> Sequence[Sequence[Any]]:
        with self._session("reading the progress tables") as connection:
            return [] if connection is None else connection.execute(query, values).fetchall()

    def newest(self, operation: str) -> tuple[ProgressRow, ...]:
        """See TargetReader."""
        return tuple(
            ProgressRow(
                source=row.source,
                mark=row.mark,
                start_time=datetime.fromisoformat(str(row.start_time)),
                finish_time=datetime.fromisoformat(str(row.finish_time))
                if row.finish_time is not None
                else None,
            )
            for row in super().newest(operation)
        )

    # -- what only a target has --------------------------------------------------------------------

    def log_id(self) -> str:
        """See TargetReader: the file is bound to no log."""
        return ""

    def read_applied(self) -> Applied:
        """Return zeros: nothing is applied."""
        return Applied()

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        """See Progress: there are none."""
        return {}

    table_syncs = read_table_syncs

    def read_left_out(self) -> dict[TableName, frozenset[str]]:
        """See Progress: a log has every column."""
        return {}

    @property
    def counts(self) -> ChunkCounts:
        """See TargetReader."""
        return self

    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        """See ChunkCounts."""
        return {}

    def under_way(self) -> Mapping[TableName, int]:
        """See ChunkCounts."""
        return {}
