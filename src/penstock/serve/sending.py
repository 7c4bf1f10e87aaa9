"""Sends the rows of a table to a client: read in threads, written as the client takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.codec.postgres import pgwire_extended as extended
from penstock.codec.postgres.pgwire_server import Refused, command_complete, message
from penstock.codec.postgres.row_messages import COPY_HEADER, COPY_TRAILER
from penstock.model import PenstockError, TableName
from penstock.serve.catalog.answers import AnswerColumn
from penstock.serve.catalog.grammar import Statement, split
from penstock.serve.snapshots import Snapshot
from penstock.serve.table_query import TableQuery
from penstock.serve.table_rows import Shown, TableRows
from penstock.serve.wire import Gone

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession

ROWS_PER_BLOCK = 4096


def lookup(query: TableQuery) -> Statement:
    """A query that finds the table as the catalogue finds tables."""
    names = [name for name in (query.schema, query.name) if name]
    quoted = ".".join('"' + name.replace('"', '""') + '"' for name in names)
    (found,) = split(f"SELECT 1 FROM {quoted}")
    return found


async def send_rows(session: ClientSession, table: TableName, query: TableQuery) -> None:
    """Answer a question for a table's rows, at the session's snapshot. Raises Refused, Gone."""
    cursor = await Cursor.opened(session, table, query)
    try:
        is_binary = query.is_copy and query.binary
        session.write(_head(cursor.columns, query))
        if is_binary:
            session.write(message(b"d", COPY_HEADER))
        await cursor.send(0)
        if is_binary:
            session.write(message(b"d", COPY_TRAILER))
        if query.is_copy:
            session.write(message(b"c", b""))
        session.write(command_complete(cursor.tag))
    finally:
        await cursor.close()


class Cursor:
    """The rows of one answer, sent piece by piece. tag: of CommandComplete, at the end."""

    def __init__(
        self, session: ClientSession, snapshot: Snapshot, rows: TableRows, *, is_copy: bool
    ) -> None:
        """See opened()."""
        self._session, self._snapshot, self._rows = session, snapshot, rows
        self._word = "COPY" if is_copy else "SELECT"
        self._count = 0
        self._is_closed = False

    @classmethod
    async def opened(
        cls,
        session: ClientSession,
        table: TableName,
        query: TableQuery,
        formats: Sequence[int] = (),
    ) -> Cursor:
        """Begin to read a table at the session's snapshot. Raises Refused."""
        serving = session.serving
        snapshot = await session.snapshots.reading(serving.look)
        try:
            with told():
                rows = await serving.in_thread(
                    TableRows,
                    snapshot.state,
                    table,
                    query,
                    serving.head.engine,
                    serving.settings.choices,
                    formats,
                )
        except BaseException:
            await session.snapshots.release(snapshot)
            raise
        return cls(session, snapshot, rows, is_copy=query.is_copy)

    @property
    def columns(self) -> tuple[Shown, ...]:
        """Of the answer."""
        return self._rows.columns

    @property
    def tag(self) -> str:
        """How many rows were sent."""
        return f"{self._word} {self._count}"

    async def send(self, count: int) -> bool:
        """Send so many rows, 0: all; whether the end was reached. Raises Refused, Gone."""
        session, left = self._session, count
        with session.working(), told():
            while not count or left:
                wanted = min(left, ROWS_PER_BLOCK) if count else ROWS_PER_BLOCK
                data, sent = await session.serving.in_thread(self._rows.block, wanted)
                session.check_cancelled()
                if not sent:
                    return True
                session.write(data)
                self._count += sent
                left -= sent
                await session.drain()
        return False

    async def close(self) -> None:
        """Let the snapshot go."""
        if not self._is_closed:
            self._is_closed = True
            await self._session.serving.in_thread(self._rows.close)
            await self._session.snapshots.release(self._snapshot)


@contextmanager
def told() -> Iterator[None]:
    """Errors of the base and the log as the client is told of them."""
    try:
        yield
    except (Refused, Gone):
        raise
    except PenstockError as error:
        raise Refused("55000", error.message, hint=error.hint) from error


def _head(columns: tuple[Shown, ...], query: TableQuery) -> bytes:
    if query.is_copy:
        form = 1 if query.binary else 0
        count = len(columns)
        body = bytes([form]) + count.to_bytes(2, "big") + form.to_bytes(2, "big") * count
        return message(b"H", body)
    return extended.row_description([answer_column(one) for one in columns])


def answer_column(one: Shown) -> AnswerColumn:
    """A column as RowDescription says it."""
    return AnswerColumn(name=one.name, type_oid=one.type_oid, typmod=one.typmod, number=one.number)
