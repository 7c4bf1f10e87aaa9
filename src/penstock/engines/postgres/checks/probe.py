"""Input of the checks of a PostgreSQL server, and the lists of these checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.source.catalog import Survey
from penstock.model import TableDefinition
from penstock.ports.checks import DOING, Checks, Examined, Side
from penstock.ports.config import Config

SOURCE_CHECKS = Checks(Side.SOURCE)
TARGET_CHECKS = Checks(Side.TARGET)


@dataclass(slots=True, kw_only=True)
class Probe:
    """Input of the checks of one database: its connection and the facts that were read from it
    once.
    """

    examined: Examined
    connection: psycopg.Connection
    version: int
    tables: tuple[TableDefinition, ...] = ()
    survey: Survey = field(default_factory=lambda: Survey(tables=()))
    database: tuple[str, ...] = ()
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """The pipeline's configuration."""
        return self.examined.config

    def rows(self, query: LiteralString, **parameters: object) -> list[dict[str, Any]]:
        """Run a query; rows as dicts. Raises the typed errors of `server_errors`."""
        with server_errors(DOING), self.connection.cursor(row_factory=dict_row) as c:
            c.execute(query, parameters)
            return c.fetchall()

    def value(self, query: LiteralString, **parameters: object) -> Any:
        """Return the first column of the first row; None when there is no row."""
        found = self.rows(query, **parameters)
        return next(iter(found[0].values())) if found else None

    def setting(self, name: str) -> str | None:
        """Return a server setting as text, None where this server has no such."""
        text = self.value("select current_setting(%(name)s, true)", name=name)
        return None if text is None else str(text)

    @property
    def table_ids(self) -> list[int]:
        """Oids of the wanted tables, their partitions' storage included (source side)."""
        return [oid for table in self.tables for oid in (table.source_id, *table.partition_leaves)]

    @property
    def user(self) -> str:
        """The role we are on this server."""
        return self.connection.info.user
