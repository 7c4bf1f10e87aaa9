"""The extended query protocol of one client: prepared statements, portals, errors up to Sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from penstock.codec.postgres import pgwire_extended as wire
from penstock.codec.postgres.pgwire_server import (
    EMPTY_QUERY,
    Refused,
    command_complete,
    ready,
)
from penstock.model import TableName
from penstock.serve.asked import Prepared
from penstock.serve.catalog.answers import Answer, AnswerColumn, Cells
from penstock.serve.catalog.tables import TableRead
from penstock.serve.sending import Cursor
from penstock.serve.table_statement import TableStatement, table_statement
from penstock.serve.wire import Incoming

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession

STATEMENTS_MAX = 1000
_KINDS = (b"P", b"B", b"D", b"E", b"C", b"H", b"S")
logger = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Portal:
    """A statement with its parameters. answer: once it was begun; row: the next one of it."""

    prepared: Prepared | TableStatement
    parameters: Sequence[str | None]
    formats: Sequence[int]
    answer: Answer | None = None
    row: int = 0
    cursor: Cursor | None = None


class Extended:
    """The state of one connection. skips: an error has come, all up to Sync is passed over."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._statements: dict[str, Prepared | TableStatement] = {}
        self._portals: dict[str, Portal] = {}
        self.skips = False

    async def take(self, incoming: Incoming) -> bool:
        """Answer one message; False for one that is not of this protocol. Raises Gone."""
        if incoming.kind not in _KINDS:
            return False
        if incoming.kind == b"S":
            self.skips = False
            if self._session.session.transaction == "I":
                await self.close()
            self._session.write(ready(self._session.session.transaction))
            return True
        if self.skips or incoming.kind == b"H":  # what is written is never kept back
            return True
        try:
            if self._session.is_replication:
                raise Refused(
                    "08P01", "extended query protocol not supported in a replication connection"
                )
            await self._taken(incoming)
        except Refused as refused:
            if refused.sqlstate == "0A000":
                logger.warning("not answered", reason=refused.message)
            self.skips = True
            self._session.refuse(refused)
        return True

    async def _taken(self, incoming: Incoming) -> None:
        if incoming.kind == b"P":
            await self._parse(wire.parse(incoming.body))
        elif incoming.kind == b"B":
            asked = wire.bind(incoming.body)
            if not asked.portal:
                await self._drop("")
            self._bind(asked)
        elif incoming.kind == b"D":
            self._describe(*wire.target(incoming.body))
        elif incoming.kind == b"E":
            await self._execute(*wire.execute(incoming.body))
        else:
            kind, name = wire.target(incoming.body)
            if kind == "S":
                self._statements.pop(name, None)
            else:
                await self._drop(name)
            self._session.write(wire.CLOSE_COMPLETE)

    async def _parse(self, asked: wire.Parse) -> None:
        if asked.name and asked.name in self._statements:
            raise Refused("42P05", f'prepared statement "{asked.name}" already exists')
        if len(self._statements) >= STATEMENTS_MAX:
            raise Refused("53400", "too many prepared statements")
        session = self._session
        session.note_query(asked.sql)
        try:
            found: Prepared | TableStatement = await session.ask(
                session.answers.prepare, asked.sql, asked.types, session.session
            )
        except TableRead as read:
            table = TableName(read.schema, read.name)
            found = await session.ask(table_statement, session, table, asked.sql, asked.types)
        self._statements[asked.name] = found
        session.write(wire.PARSE_COMPLETE)

    def _bind(self, asked: wire.Bind) -> None:
        prepared = self._statement(asked.statement)
        if asked.portal and asked.portal in self._portals:
            raise Refused("42P03", f'cursor "{asked.portal}" already exists')
        if len(self._portals) >= STATEMENTS_MAX:
            raise Refused("53400", "too many portals")
        types = prepared.parameters
        if len(types) != len(asked.values):
            raise Refused(
                "08P01",
                f"bind message supplies {len(asked.values)} parameters, but prepared statement "
                f'"{asked.statement}" requires {len(types)}',
            )
        codes = wire.per_value(asked.formats, len(asked.values))
        values = [
            None if value is None else wire.parameter_text(value, code, oid)
            for value, code, oid in zip(asked.values, codes, types, strict=True)
        ]
        columns: tuple[AnswerColumn, ...] = prepared.columns or ()
        formats = wire.per_value(asked.results, len(columns)) if columns else []
        self._portals[asked.portal] = Portal(prepared=prepared, parameters=values, formats=formats)
        self._session.write(wire.BIND_COMPLETE)

    async def _drop(self, name: str) -> None:
        portal = self._portals.pop(name, None)
        if portal is not None and portal.cursor is not None:
            await portal.cursor.close()

    async def close(self) -> None:
        """Give all portals up."""
        for name in list(self._portals):
            await self._drop(name)

    async def _execute_table(self, portal: Portal, of: TableStatement, count: int) -> None:
        session = self._session
        if portal.cursor is None:
            portal.cursor = await of.opened(session, portal.parameters, portal.formats)
        if await portal.cursor.send(count):
            session.write(command_complete(portal.cursor.tag))
        else:
            session.write(wire.PORTAL_SUSPENDED)

    def forget(self, name: str) -> None:
        """A statement that SQL has deallocated; `*`: all. Raises Refused: 26000."""
        if name == "*":
            self._statements.clear()
        elif name:
            self._statement(name)
            del self._statements[name]

    def _statement(self, name: str) -> Prepared | TableStatement:
        found = self._statements.get(name)
        if found is None:
            shown = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise Refused("26000", f"{shown} does not exist")
        return found

    def _portal(self, name: str) -> Portal:
        found = self._portals.get(name)
        if found is None:
            raise Refused("34000", f'portal "{name}" does not exist')
        return found

    def _describe(self, kind: str, name: str) -> None:
        write = self._session.write
        if kind == "S":
            prepared = self._statement(name)
            write(wire.parameter_description(prepared.parameters))
            columns = prepared.columns
            write(wire.NO_DATA if columns is None else wire.row_description(columns))
            return
        portal = self._portal(name)
        columns = portal.prepared.columns
        write(wire.NO_DATA if columns is None else wire.row_description(columns, portal.formats))

    async def _execute(self, name: str, count: int) -> None:
        portal, session = self._portal(name), self._session
        if isinstance(portal.prepared, TableStatement):
            await self._execute_table(portal, portal.prepared, count)
            return
        if portal.answer is None:
            portal.answer = await session.ask(
                portal.prepared.run, portal.parameters, session.session
            )
            await session.snapshots.statement_ends()
            session.tell(portal.answer)
            self.forget(portal.answer.forgets)
        answer = portal.answer
        if answer.columns is None:
            session.write(command_complete(answer.tag) if answer.tag else EMPTY_QUERY)
            return
        end = len(answer.rows) if not count else min(portal.row + count, len(answer.rows))
        rows: Sequence[Cells] = answer.rows[portal.row : end]
        for row in rows:
            session.write(wire.data_row(row, answer.columns, portal.formats))
        portal.row = end
        if count and end < len(answer.rows):
            session.write(wire.PORTAL_SUSPENDED)
        else:
            session.write(command_complete(answer.tag))
