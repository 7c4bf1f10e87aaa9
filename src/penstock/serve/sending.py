"""Sends the rows of a table to a client: read in threads, written as the client takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.codec.postgres.pgwire_server import Refused, message
from penstock.codec.postgres.row_messages import COPY_HEADER, COPY_TRAILER
from penstock.model import PenstockError, TableName
from penstock.serve.catalog.answers import AnswerColumn
from penstock.serve.catalog.grammar import Statement, split
from penstock.serve.running import Rows
from penstock.serve.snapshots import Snapshot
from penstock.serve.table_query import TableQuery
from penstock.serve.table_rows import Shown, TableRows
from penstock.serve.wire import Gone

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession

ROWS_PER_BLOCK = 4096


def lookup(query: TableQuery) -> Statement:
    """Return a query that finds the table as the catalogue finds tables."""
    names = [name for name in (query.schema, query.name) if name]
    quoted = ".".join('"' + name.replace('"', '""') + '"' for name in names)
    (found,) = split(f"SELECT 1 FROM {quoted}")
    return found


class Cursor(Rows):
    """Rows of one table, sent piece by piece; for a COPY with its header and end."""

    def __init__(
        self, session: ClientSession, snapshot: Snapshot, rows: TableRows, query: TableQuery
    ) -> None:
        """Not for callers: use open()."""
        self._session, self._snapshot, self._rows, self._query = session, snapshot, rows, query
        self._count = 0
        self._is_begun = self._is_closed = False

    @classmethod
    async def open(cls, session: ClientSession, table: TableName, query: TableQuery) -> Cursor:
        """Begin to read a table at the session's snapshot. Raises Refused."""
        session.check_not_failed()
        serving = session.serving
        snapshot = await session.snapshots.reading(serving.look)
        try:
            with tell_errors():
                rows = await serving.in_thread(
                    TableRows,
                    snapshot.state,
                    table,
                    query,
                    serving.head.engine,
                    serving.settings.choices,
                )
        except BaseException:
            await session.snapshots.release(snapshot)
            raise
        return cls(session, snapshot, rows, query)

    @property
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        """Return the columns; None for a COPY, which describes itself."""
        if self._query.copy is not None:
            return None
        return tuple(map(answer_column, self._rows.columns))

    @property
    def tag(self) -> str:
        """Text of CommandComplete, with the number of sent rows."""
        return f"{'SELECT' if self._query.copy is None else 'COPY'} {self._count}"

    def set_formats(self, formats: Sequence[int]) -> None:
        """Send from now on in these formats; by default as text."""
        if self._query.copy is None:
            self._rows.set_formats(formats)

    async def send(self, count: int, *, is_silent: bool = False) -> int:
        """Send `count` rows, 0: all; return their number. Raises Refused, Gone."""
        session, done = self._session, 0
        if self._query.copy is not None:
            count = 0  # a COPY is sent at once
        with session.working(), tell_errors():
            self._begin()
            while not count or done < count:
                wanted = min(count - done, ROWS_PER_BLOCK) if count else ROWS_PER_BLOCK
                data, sent = await session.serving.in_thread(self._rows.block, wanted)
                session.check_cancelled()
                if not sent:
                    self._end()
                    break
                if not is_silent:
                    session.write(data)
                done += sent
                await session.drain()
        self._count += done
        return done

    def _begin(self) -> None:
        copy = self._query.copy
        if self._is_begun or copy is None:
            return
        self._is_begun = True
        form = int(copy.is_binary)
        count = len(self._rows.columns)
        body = bytes([form]) + count.to_bytes(2, "big") + form.to_bytes(2, "big") * count
        self._session.write(message(b"H", body))
        head = message(b"d", COPY_HEADER) if copy.is_binary else self._rows.header()
        if head:
            self._session.write(head)

    def _end(self) -> None:
        copy = self._query.copy
        if copy is None:
            return
        if copy.is_binary:
            self._session.write(message(b"d", COPY_TRAILER))
        self._session.write(message(b"c", b""))

    async def close(self) -> None:
        """Release the snapshot."""
        if not self._is_closed:
            self._is_closed = True
            await self._session.serving.in_thread(self._rows.close)
            await self._session.snapshots.release(self._snapshot)


@contextmanager
def tell_errors() -> Iterator[None]:
    """Turn errors of the base and the log into refusals for the client."""
    try:
        yield
    except (Refused, Gone):
        raise
    except PenstockError as error:
        raise Refused("55000", error.message, hint=error.hint) from error


def answer_column(one: Shown) -> AnswerColumn:
    """Return a column as in RowDescription."""
    return AnswerColumn(name=one.name, type_oid=one.type_oid, typmod=one.typmod, number=one.number)
