"""The servers of random histories."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Protocol

from harness.faults.kills import make_server
from harness.pipelines.ddl_types import POSTGRES, SQLSERVER
from harness.servers.sqlserver_embedded import EmbeddedSQLServer
from plugins.mysql import MySQLServer


class AnyServers(Protocol):
    """Running servers by kind: PostgreSQL with `url`, or `plugins.mysql`'s. Oracle has none."""

    def get(self, kind: str) -> Any:
        """Return the server of this kind."""
        ...


class Servers:
    """One running server of each requested kind."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._servers: dict[str, Any] = {}

    def get(self, kind: str) -> Any:
        """Return the server of this kind: embedded PostgreSQL 15, or that of `plugins`."""
        if kind not in self._servers:
            if kind == POSTGRES:
                settings = {"max_connections": "250", "max_wal_senders": "20"}
                made = make_server(kind, major=15, settings=settings)
                self._servers[kind] = self._stack.enter_context(made)
            elif kind == SQLSERVER:
                self._servers[kind] = self._stack.enter_context(EmbeddedSQLServer()).sim
            else:
                made = make_server(kind, settings={"max_connections": "250"})
                self._servers[kind] = MySQLServer(self._stack.enter_context(made))  # type: ignore[arg-type]
        return self._servers[kind]

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
