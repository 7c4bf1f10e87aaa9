"""Comparison by `penstock verify` for MySQL and MariaDB: `Verifier`, `VerifyReader` of
`ports/verify.py`.

The sessions are in transactions with consistent snapshots: at the source the sessions of
`engines.mysql.source.snapshot`, in the target sessions that begin while the loader is paused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
import pymysql
from pymysql.cursors import SSCursor

from penstock.codec.mysql.binlog_position import BINLOG_OFFSET_BITS, BinlogPosition
from penstock.engines.mysql import checksum
from penstock.engines.mysql.connect import Connection, connect, quote, rows, run, server_errors
from penstock.engines.mysql.log_start import stored_resume_state
from penstock.engines.mysql.source.bulk_reader import MySQLBulkReader
from penstock.engines.mysql.source.catalog import CANDIDATES
from penstock.engines.mysql.source.chunks import plan_chunks
from penstock.engines.mysql.source.definitions import definitions_of
from penstock.engines.mysql.source.proxied_session import open_proxied
from penstock.engines.mysql.source.session_proxy import SessionProxy
from penstock.engines.mysql.source.snapshot import APPLICATION_NAME as SNAPSHOT_NAME
from penstock.engines.mysql.source.snapshot import open_snapshots, read_choices
from penstock.engines.mysql.source.strategies import NoConsistentPoint, Strategy
from penstock.engines.mysql.source.unread import has_changes
from penstock.engines.mysql.target.target import read_target_tables
from penstock.engines.mysql.url import MySQLUrl
from penstock.host.errors import StatementFailed, StatementInterrupted
from penstock.model import TableDefinition, TableName
from penstock.model.patterns import Selection
from penstock.ports.bulk import rows_per_chunk
from penstock.ports.config import Config
from penstock.ports.lent_sessions import LentSessions
from penstock.ports.verify import (
    APPLICATION_NAME,
    ARRAY_ROWS,
    PART_BYTES,
    Dialect,
    Hasher,
    Hashes,
    Part,
    SourcePoint,
    TableChangedMeanwhile,
    Verifier,
    VerifyReader,
    table_gone,
)

ISOLATION = "set session transaction isolation level repeatable read"
BEGIN = "start transaction with consistent snapshot, read only"


class MySQLVerifier(Verifier):
    """Verifier of a MySQL or MariaDB server."""

    @contextmanager
    def open_source(
        self,
        config: Config,
        tables: Callable[[], Sequence[TableDefinition]],
        tell: Callable[[str], None],
        /,
        *,
        sessions: int,
        part_bytes: int = PART_BYTES,
    ) -> Iterator[tuple[VerifyReader, SourcePoint]]:
        """Open sessions that are all in snapshots at one position of the binlog.

        Raises NoConsistentPoint if the account may use no strategy that gives exactly one position,
        and the errors of taking snapshots.
        """
        url, found = config.source.url, tables()
        follows = config.pipeline.mode.has_change
        with connect(url, application_name=SNAPSHOT_NAME) as connection:
            among = [
                choice
                for choice in read_choices(connection, found, follows=follows)
                if choice.strategy is not Strategy.LOCK_FREE
            ]
        if not among:
            raise NoConsistentPoint(
                "the tables cannot be compared at one point: the account may not lock for a moment",
                hint="Run at the server: grant reload on *.* to 'USER'@'HOST'; or lock tables on "
                "them.",
            )
        with (
            open_snapshots(
                url,
                found,
                count=sessions + 1,
                among=among,
                on_choice=lambda one: tell(str(one)),
                follows=follows,
            ) as taken,
            MySQLVerifyReader(url, taken.connections, part_bytes=part_bytes) as reader,
        ):
            position = taken.status.position
            ordinal = position.ordinal + (_shift(config) << BINLOG_OFFSET_BITS)
            yield reader, SourcePoint(position=ordinal, text=str(position))

    @contextmanager
    def open_target(
        self, url: str, *, sessions: int, part_bytes: int = PART_BYTES
    ) -> Iterator[VerifyReader]:
        """Open sessions that see the same rows, because no writer is active at the beginning."""
        with ExitStack() as stack:
            opened = []
            for _ in range(sessions + 1):
                connection = stack.enter_context(
                    closing(connect(url, application_name=APPLICATION_NAME))
                )
                run(connection, ISOLATION, doing="preparing a snapshot")
                opened.append(connection)
            for connection in opened:
                run(connection, BEGIN, doing="taking a snapshot")
            yield stack.enter_context(MySQLVerifyReader(url, opened, part_bytes=part_bytes))

    def nudge(self, url: str) -> None:
        """Do nothing: a binlog's end is reported without a nudge."""

    def unread(
        self,
        config: Config,
        point: SourcePoint,
        tables: Callable[[], Sequence[TableDefinition]],
        /,
        *,
        since: int,
    ) -> str:
        resume_state = stored_resume_state(config)
        if resume_state is None or not since:
            return ""
        shift = resume_state.mark.shift << BINLOG_OFFSET_BITS
        found = has_changes(
            config.source.url,
            start=BinlogPosition(since - shift, resume_state.mark.base),
            until=BinlogPosition(point.position - shift, resume_state.mark.base),
            takes=Selection.parse(config.source.tables).takes,
            names=[table.name.name for table in tables()],
        )
        return "the binlog has changes that are not read yet" if found else ""


VERIFIER: Verifier = MySQLVerifier()


def _shift(config: Config) -> int:
    """Return how much larger file numbers are in our log than on the present server."""
    resume_state = stored_resume_state(config)
    return resume_state.mark.shift if resume_state is not None else 0


_NO_SUCH_TABLE = 1146
_DEFINITION_CHANGED = 1412  # the table is younger than the snapshot


class MySQLVerifyReader(VerifyReader):
    """Sessions in snapshots of one moment. sessions: all but the first read rows."""

    def __init__(
        self, url: str, sessions: Sequence[Connection], *, part_bytes: int = PART_BYTES
    ) -> None:
        """Keep the sessions, which the caller closes. url: of the same server, to end queries."""
        if len(sessions) < 2:
            raise ValueError(f"at least two sessions are needed, not {len(sessions)}")
        self._url = url
        self._part_bytes = part_bytes
        self._lead, *readers = sessions
        self._sessions = LentSessions(readers)
        self.executor = ThreadPoolExecutor(len(readers), thread_name_prefix="verify-read")
        self.dialect: Dialect = checksum

    def parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        """Return ranges of the key.

        The server blocks DDL on a table that a transaction has touched. Earlier DDL is noticed
        here, or when the rows are read.
        """
        definition = self._definition(table, side)
        self._touch(definition.name, side)
        row_bytes = definition.size_bytes / max(definition.row_estimate, 1)
        target = rows_per_chunk(definition, self._part_bytes)
        with self._convert_redefinition(table, side):
            chunks = plan_chunks(self._lead, definition, row_count_target=target)
        parts = tuple(
            Part(
                relation=definition.name,
                size_bytes=int(chunk.row_estimate * row_bytes),
                where=chunk.condition,
            )
            for chunk in chunks
        )
        return parts, definition.row_estimate

    def _touch(self, table: TableName, side: str) -> None:
        doing = f"looking at {table} in the {side}"
        try:
            rows(self._lead, f"select 1 from {quote(*table)} limit 0", doing=doing)
        except StatementFailed as error:
            if error.fields.get("errno") != _NO_SUCH_TABLE:
                raise
            # MySQL's catalogue is as old as the snapshot: the table has been dropped since.
            raise table_gone(table, side) from error

    def _definition(self, table: TableName, side: str) -> TableDefinition:
        doing = f"looking at {table} in the {side}"
        found = read_target_tables(self._lead, [table]).get(table)
        if found is not None:
            row = next(
                row
                for row in rows(self._lead, CANDIDATES, doing=doing)
                if (row["table_schema"], row["table_name"]) == tuple(found.name)
            )
            definitions = definitions_of(self._lead, {found.name: row})
            if found.name in definitions:
                return definitions[found.name]
        raise table_gone(table, side)

    def hashers(self) -> Mapping[Hasher, str]:
        return {Hasher.SHARED: ""}

    def column_types(self, table: TableName) -> dict[str, str]:
        """Return the types of the columns, whose names are in lower case."""
        found = read_target_tables(self._lead, [table])[table]
        return {column.name.lower(): column.type_text for column in found.columns}

    @contextmanager
    def _convert_redefinition(self, table: object, side: str = "") -> Iterator[None]:
        try:
            yield
        except StatementInterrupted as error:
            if error.fields.get("errno") != _DEFINITION_CHANGED:
                raise
            raise TableChangedMeanwhile(
                f"{table}{f' in the {side}' if side else ''} was altered or truncated while verify "
                "began",
                hint="Run `penstock verify` again.",
            ) from error

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        with (
            self._convert_redefinition(f"a table ({doing})"),
            self._sessions.lend() as connection,
            server_errors(doing),
            connection.cursor() as cursor,
        ):
            cursor.execute(query)
            return list(cursor.fetchall())

    def hashes(self, query: str, doing: str) -> Iterator[Hashes]:
        with self._sessions.lend() as connection, server_errors(doing):
            cursor = connection.cursor(SSCursor)
            try:
                cursor.execute(query)
                while found := cursor.fetchmany(ARRAY_ROWS):
                    yield np.array(found, dtype=np.int64)
            finally:
                with suppress(pymysql.Error):  # it was ended, and reports that once more
                    cursor.close()

    @contextmanager
    def row_reader(self) -> Iterator[MySQLBulkReader]:
        """Proxy the first session in this process, without a new connection."""
        place = MySQLUrl.parse(self._url).place
        with (
            SessionProxy.of([self._lead], place=place, snapshot_text=place) as proxy,
            open_proxied(proxy.snapshot_id, proxy.snapshot_text) as session,
        ):
            yield MySQLBulkReader(session)

    def cancel(self) -> None:
        """End the queries that run now or are about to begin."""
        if not self._sessions.refuse():
            return
        with closing(connect(self._url, application_name=APPLICATION_NAME)) as control:
            for session in self._sessions.iterate_lent():
                with suppress(StatementFailed):  # it has just ended
                    run(control, f"kill query {session.thread_id()}", doing="ending a query")

    def __enter__(self) -> Self:
        """Return itself; the exit ends running reads."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the threads; after an error, end their queries too."""
        self.executor.shutdown(wait=False, cancel_futures=True)
        if kind is not None:
            self.cancel()
        self.executor.shutdown(wait=True)
