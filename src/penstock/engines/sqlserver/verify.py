"""Comparison by `penstock verify`: `Verifier`, `VerifyReader` of `ports/verify.py`.

Sessions read under SNAPSHOT isolation. They see one moment because the captured tables are locked
against writers while their transactions begin, and until the server has captured everything before:
then its newest commit is the position. Not here: images and checksums (`checksum.py`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from types import ModuleType
from typing import Any, cast

import pyarrow as pa

from penstock.codec.image_cells import ImageCell
from penstock.codec.row_images import add_up, hash_batches, name_chosen, take_buckets
from penstock.codec.sqlserver.columns import SourceColumn, select_expression
from penstock.codec.sqlserver.lsn import SqlServerLsn
from penstock.codec.sqlserver.row_images import image_batch
from penstock.engines.sqlserver import checksum
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.reading import statements
from penstock.engines.sqlserver.reading.bulk_reader import (
    BATCH_ROWS,
    SQLServerReader,
    has_snapshots,
)
from penstock.engines.sqlserver.reading.catalog import read_definitions, read_tables
from penstock.engines.sqlserver.reading.chunks import plan_chunks
from penstock.engines.sqlserver.source.caught_up import LOCKED_S, wait_captured
from penstock.engines.sqlserver.source.reader import read_commits
from penstock.host.errors import PrivilegeMissing, StatementFailed, StatementInterrupted
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.bulk import rows_per_chunk
from penstock.ports.config import Config
from penstock.ports.lent_sessions import LentSessions
from penstock.ports.verify import (
    KEY_TEXT_LENGTH_MAX,
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

_ALTERED = 3961  # the table was redefined after the snapshot began: the server refuses to read it


class NoSnapshots(PenstockError):
    """The database does not allow SNAPSHOT isolation, so tables are not seen at one moment."""

    code = "MS42"
    retry = "operator"


class SQLServerVerifyReader(VerifyReader):
    """Sessions in snapshots of one moment. sessions: all but the first read rows."""

    def __init__(
        self,
        control: Connection,
        sessions: Sequence[Connection],
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """Keep the connections, which the caller closes.

        control: ends the other sessions. It is open from the beginning, because a server that is
        busy may admit no further one.
        """
        if len(sessions) < 2:
            raise ValueError(f"at least two sessions are needed, not {len(sessions)}")
        self._control = control
        self._controls = threading.Lock()
        self._ended: set[int] = set()  # whose numbers the server may give to other clients
        self._lead, *readers = sessions
        self._numbers = {id(one): int(one.execute(statements.SESSION)[0][0]) for one in readers}
        self._part_bytes = part_bytes
        self._sessions = LentSessions(readers)
        self._tables: dict[TableName, TableDefinition] = {}
        self.executor = ThreadPoolExecutor(len(readers), thread_name_prefix="verify-read")
        dialect: ModuleType = checksum
        self.dialect = cast(Dialect, dialect)

    def hashers(self) -> Mapping[Hasher, str]:
        return {Hasher.SHARED: ""}

    def parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        """Return ranges of the key."""
        with _altered_is_typed():
            return self._parts(table, side)

    def _parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        found = self._define(table)
        if found is None:
            raise table_gone(table, side)
        row_bytes = found.size_bytes / max(found.row_estimate, 1)
        target = rows_per_chunk(found, self._part_bytes)
        parts = tuple(
            Part(
                relation=found.name,
                size_bytes=int(chunk.row_estimate * row_bytes),
                where=chunk.condition,
            )
            for chunk in plan_chunks(self._lead, found, row_count_target=target)
        )
        return parts, found.row_estimate

    def column_types(self, table: TableName) -> dict[str, str]:
        """Return the types of the columns, whose names are in lower case."""
        found = self._tables.get(table) or self._define(table)
        return {one.name.lower(): one.type_text for one in found.columns} if found else {}

    def _define(self, table: TableName) -> TableDefinition | None:
        """Look a table up in the catalogue, and keep it; None if it does not exist."""
        found = read_definitions(self._lead, [table]).get(table)
        if found is not None:
            self._tables[found.name] = self._tables[table] = found
        return found

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        del doing
        if not query.startswith("{"):
            with self._session() as session:
                return session.execute(query)
        asked = json.loads(query)
        if asked["what"] == "names":
            key, numbers = _cells(asked["key"]), asked["numbers"]
            return list(name_chosen(self._rows(asked), key, numbers, KEY_TEXT_LENGTH_MAX))
        return list(add_up(self._hashes(asked), asked["buckets"]))

    def hashes(self, query: str, doing: str) -> Iterator[Hashes]:
        del doing
        asked = json.loads(query)
        found = take_buckets(self._hashes(asked), asked["buckets"], asked["numbers"])
        if len(found):
            yield found

    def _hashes(self, asked: Mapping[str, Any]) -> Hashes:
        return hash_batches(self._rows(asked), _cells(asked["key"]), _cells(asked["row"]))

    def _rows(self, asked: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """Yield the compared columns of the rows of some parts."""
        cells = [ImageCell(*one) for one in (*asked["key"], *asked["row"])]
        wanted = {cell.name.lower() for cell in cells}
        for schema, name, where in asked["parts"]:
            table = TableName(schema, name)
            columns = [
                SourceColumn.from_column(one)
                for one in self._tables[table].columns
                if one.name.lower() in wanted
            ]
            sql = statements.rows(table, [select_expression(one) for one in columns], where)
            named = {cell.name.lower(): cell.name for cell in cells}
            renamed = [one.with_name(named[one.name.lower()]) for one in columns]
            with self._session() as session:
                for batch in session.arrow(sql, rows=BATCH_ROWS):
                    self._sessions.check()
                    yield image_batch(batch, renamed, cells)

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """Lend a session for one query; wait until one is free."""
        with self._sessions.lend() as session, _altered_is_typed():
            yield session

    @contextmanager
    def row_reader(self) -> Iterator[SQLServerReader]:
        """Return a reader over the first session, which has the same snapshot."""
        yield SQLServerReader(self._lead)

    def cancel(self) -> None:
        """End running reads with their next rows, and their sessions if the account may do so.

        A session whose query has not begun yet is ended, too: the query then fails.
        """
        lent = self._sessions.refuse()
        with self._controls:
            for number in {self._numbers[id(session)] for session in lent} - self._ended:
                self._ended.add(number)
                # It has ended already, or the account lacks ALTER ANY CONNECTION.
                with suppress(StatementFailed, PrivilegeMissing):
                    self._control.run(statements.end_session(number))


@contextmanager
def _altered_is_typed() -> Iterator[None]:
    """Raise TableChangedMeanwhile where the server refuses to read a table that was redefined."""
    try:
        yield
    except StatementInterrupted as error:
        if error.fields.get("errno") != _ALTERED:
            raise
        raise TableChangedMeanwhile(
            f"a table was altered or truncated while verify read it: {error.message}",
            hint="Run `penstock verify` again.",
        ) from error


def _cells(listed: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return cells as `codec.row_images` has them."""
    return [one[:5] for one in listed]


class SQLServerVerifier(Verifier):
    """Comparison of SQL Server's tables."""

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
        """Return the source at its newest captured commit.

        Raises NoSnapshots, and the errors of connecting.
        """
        url, names = config.source.url, [table.name for table in tables()]
        with ExitStack() as stack:
            with closing(connect(url)) as control:
                tell(
                    "writers to the captured tables wait until the server has captured all changes"
                )
                control.begin()
                for name in sorted(names):
                    control.execute(statements.lock(name))
                opened = _open_snapshots(stack, url, names[:1], count=sessions + 1)
                position = wait_captured(control, limit_s=LOCKED_S, who_waits="writers")
            with _reader(url, opened, part_bytes) as reader:
                yield reader, SourcePoint(position=position, text=str(SqlServerLsn(position)))

    @contextmanager
    def open_target(
        self, url: str, *, sessions: int, part_bytes: int = PART_BYTES
    ) -> Iterator[VerifyReader]:
        """Open sessions that see the same rows, because no writer is active at the beginning."""
        with ExitStack() as stack:
            with closing(connect(url)) as control:
                names = list(read_tables(control))
            opened = _open_snapshots(stack, url, names[:1], count=sessions + 1)
            with _reader(url, opened, part_bytes) as reader:
                yield reader

    def nudge(self, url: str) -> None:
        """Do nothing: the position is that of a captured commit."""

    def unread(
        self,
        config: Config,
        point: SourcePoint,
        tables: Callable[[], Sequence[TableDefinition]],
        /,
        *,
        since: int,
    ) -> str:
        del tables
        if not since or since >= point.position:
            return ""
        with closing(connect(config.source.url)) as session:
            found = read_commits(session, since, point.position, count=1, zone_us=0)
        return "the server has captured changes that are not read yet" if found else ""


VERIFIER: Verifier = SQLServerVerifier()


@contextmanager
def _reader(
    url: str, opened: Sequence[Connection], part_bytes: int
) -> Iterator[SQLServerVerifyReader]:
    with closing(connect(url)) as control:
        reader = SQLServerVerifyReader(control, opened, part_bytes=part_bytes)
        try:
            yield reader
        except BaseException:
            reader.cancel()
            raise
        finally:
            reader.executor.shutdown(wait=True, cancel_futures=True)


def _open_snapshots(
    stack: ExitStack, url: str, touched: Sequence[TableName], *, count: int
) -> list[Connection]:
    """Open sessions and let their snapshots begin: with the first rows that they read."""
    opened = [stack.enter_context(closing(connect(url))) for _ in range(count)]
    if not has_snapshots(opened[0]):
        raise NoSnapshots(
            "the database does not allow SNAPSHOT isolation, so its tables cannot be compared at "
            "one moment",
            hint="Run in it: ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON;",
        )
    for session in opened:
        session.run(statements.SNAPSHOT_ISOLATION)
        session.begin()
        for name in touched:
            session.execute(statements.touch(name))
    return opened
