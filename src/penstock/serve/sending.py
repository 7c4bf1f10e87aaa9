"""Sends the rows of a table to a client: read in threads, written as the client takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.codec.postgres import pgwire_extended as extended
from penstock.codec.postgres.pgwire_server import Refused, command_complete, message
from penstock.model import PenstockError, TableName
from penstock.serve.catalog.answers import AnswerColumn
from penstock.serve.catalog.grammar import Statement, split
from penstock.serve.snapshots import Snapshot
from penstock.serve.table_query import TableQuery
from penstock.serve.table_rows import Shown, TableRows

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession


def lookup(query: TableQuery) -> Statement:
    """A query that finds the table as the catalogue finds tables."""
    names = [name for name in (query.schema, query.name) if name]
    quoted = ".".join('"' + name.replace('"', '""') + '"' for name in names)
    (found,) = split(f"SELECT 1 FROM {quoted}")
    return found


async def send_rows(session: ClientSession, table: TableName, query: TableQuery) -> None:
    """Answer a question for a table's rows, at the session's snapshot. Raises Refused, Gone."""
    snapshot = await session.snapshots.reading(session.serving.look)
    try:
        await _send(session, snapshot, table, query)
    except PenstockError as error:
        if isinstance(error, Refused):
            raise
        raise Refused("55000", error.message, hint=error.hint) from error
    finally:
        await session.snapshots.release(snapshot)


async def _send(
    session: ClientSession, snapshot: Snapshot, table: TableName, query: TableQuery
) -> None:
    serving = session.serving
    rows: TableRows = await serving.in_thread(
        TableRows, snapshot.state, table, query, serving.head.engine, serving.settings.choices
    )
    try:
        with session.working():
            session.write(_head(rows.columns, query))
            blocks = rows.answered().blocks
            count = 0
            while (found := await serving.in_thread(next, blocks, None)) is not None:
                session.check_cancelled()
                session.write(found[0])
                count += found[1]
                await session.drain()
    finally:
        await serving.in_thread(rows.close)
    if query.is_copy:
        session.write(message(b"c", b"") + command_complete(f"COPY {count}"))
    else:
        session.write(command_complete(f"SELECT {count}"))


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
