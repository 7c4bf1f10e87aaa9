"""Input of the checks of a PostgreSQL server, the lists of the checks, and errors they find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.source.catalog import Survey
from penstock.model import TableDefinition
from penstock.ports.checks import DOING, ITSELF, Checks, Examined, Side
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


CHECKS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("PG42", "PG43"), (ITSELF, "PK06")),
        "CT10": ("PG07",),
        "CT11": ("PG07",),
        "CT30": ("PG35",),
        "CT31": ("PG08", "PG35"),
        "CT33": ("PG11",),
        "HS28": ("PG21", "PK10"),
        "LD46": ("PG33", "PG34"),
        "PG47": ("PG15",),
        "PG48": ("PG13", "PG17"),
        "PG50": ("PG10",),
        "PG51": ("PG10",),
        "PG52": ("PG09",),
        "PG53": ("PG10",),
        "PG54": ("PG10",),
        "PG55": ("PG07",),
        "PG56": ("PG07",),
        "PG57": ("PG07",),
        "PG58": ("PG31",),
        "PG59": ("PG11",),
        "PG61": ("PG01",),
        "PG63": ("PG12",),
        "PG64": ("PG12",),
        "PG65": ("PK06",),
        "PG67": ("PG13",),
        "PG74": ("PG09",),
        "PG75": ("PG09",),
        "TG01": ("PK14",),
        "TG02": ("PK08",),
        "TG10": ("PK12",),
        "TG11": ("PK13",),
        "TG12": ("PK13",),
        "TG13": ("PK09",),
        "TG34": ("PG33",),
    }
)
"""Codes of the checks that find an error, by the error's code."""

NOT_FOUND_BEFORE: Mapping[str, str] = MappingProxyType(
    {
        "PG60": "the pipeline file: the name of a slot, which is read before doctor's checks",
        "PG44": "of a server at the moment that it is asked for something",
        "PG46 PG66 PG71 PG72": "while changes are followed",
    }
)
"""Reasons why no check finds the other errors before, by their codes."""
