"""Extended query protocol of one client: prepared statements, portals, errors up to Sync."""

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
from penstock.serve.catalog.answers import AnswerColumn
from penstock.serve.running import Rows, Runnable
from penstock.serve.wire import Incoming

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession

_PORTALS_MAX = 1000
_KINDS = (b"P", b"B", b"D", b"E", b"C", b"H", b"S")
logger = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Portal:
    """Statement with its parameters; rows is set once it was begun."""

    statement: Runnable
    values: Sequence[str | None]
    formats: Sequence[int]
    rows: Rows | None = None


class Extended:
    """State of one connection. After an error it skips everything up to Sync."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._portals: dict[str, Portal] = {}
        self.skips = False

    async def take(self, incoming: Incoming) -> bool:
        """Answer one message; return False if it is not of this protocol. Raises Gone."""
        if incoming.kind not in _KINDS:
            return False
        if incoming.kind == b"S":
            self.skips = False
            if self._session.session.transaction == "I":
                await self.close()
            self._session.write(ready(self._session.session.transaction))
            return True
        if self.skips or incoming.kind == b"H":  # answers are never kept back
            return True
        try:
            if self._session.is_replication:
                raise Refused(
                    "08P01", "extended query protocol not supported in a replication connection"
                )
            await self._take(incoming)
        except Refused as refused:
            self._session.check_terminated()
            if refused.sqlstate == "0A000":
                logger.warning("not answered", reason=refused.message)
            self.skips = True
            self._session.refuse(refused)
        return True

    async def _take(self, incoming: Incoming) -> None:
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
                self._session.statements.close(name)
            else:
                await self._drop(name)
            self._session.write(wire.CLOSE_COMPLETE)

    async def _parse(self, asked: wire.Parse) -> None:
        session = self._session
        session.statements.check_new(asked.name)
        session.note_query(asked.sql)
        session.statements.add(asked.name, await session.prepare(asked.sql, asked.types))
        session.write(wire.PARSE_COMPLETE)

    def _bind(self, asked: wire.Bind) -> None:
        prepared = self._session.statements.get(asked.statement)
        if asked.portal and asked.portal in self._portals:
            raise Refused("42P03", f'cursor "{asked.portal}" already exists')
        if len(self._portals) >= _PORTALS_MAX:
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
        self._portals[asked.portal] = Portal(statement=prepared, values=values, formats=formats)
        self._session.write(wire.BIND_COMPLETE)

    async def _drop(self, name: str) -> None:
        portal = self._portals.pop(name, None)
        if portal is not None and portal.rows is not None:
            await portal.rows.close()

    async def close(self) -> None:
        """Close all portals."""
        for name in list(self._portals):
            await self._drop(name)

    def _describe(self, kind: str, name: str) -> None:
        write, session = self._session.write, self._session
        formats: Sequence[int] = ()
        if kind == "S":
            statement = session.statements.get(name)
            write(wire.parameter_description(statement.parameters))
            columns = statement.columns
        elif name not in self._portals and session.cursors.has(name):
            cursor = session.cursors.get(name)  # drivers ask for cursors of DECLARE
            columns = cursor.rows.columns
            formats = [wire.BINARY] * len(columns or ()) if cursor.is_binary else ()
        else:
            portal = self._portal(name)
            columns, formats = portal.statement.columns, portal.formats
        write(wire.NO_DATA if columns is None else wire.row_description(columns, formats))

    def _portal(self, name: str) -> Portal:
        found = self._portals.get(name)
        if found is None:
            raise Refused("34000", f'portal "{name}" does not exist')
        return found

    async def _execute(self, name: str, count: int) -> None:
        portal, session = self._portal(name), self._session
        rows = portal.rows
        if rows is None:
            rows = portal.rows = await portal.statement.open(session, portal.values)
            if portal.formats:
                rows.set_formats(portal.formats)
        sent = await rows.send(count)
        if rows.columns is not None and count and sent == count:
            session.write(wire.PORTAL_SUSPENDED)
        else:
            session.write(command_complete(rows.tag) if rows.tag else EMPTY_QUERY)
