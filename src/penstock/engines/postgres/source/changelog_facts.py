"""Facts about a PostgreSQL source in FlexCDC's state tables; see `ports.changelog`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, server_errors
from penstock.engines.postgres.connect import connect as connect_to
from penstock.engines.postgres.source.catalog import open_catalog, survey
from penstock.model import TableDefinition, TableName
from penstock.model.patterns import as_pattern
from penstock.ports.changelog import Origin

APPLICATION_NAME = "penstock flexcdc"
KNOWS_RENAMES = False

__all__ = [
    "KNOWS_RENAMES",
    "connect",
    "definition",
    "end",
    "files",
    "origin",
    "place",
    "server_id",
]


def connect(url: str) -> psycopg.Connection:
    """Return a connection of the driver, for plugins."""
    return connect_to(url, application_name=APPLICATION_NAME, options=EXACT_TEXT_SETTINGS)


def origin(url: str) -> Origin:
    """Return the fields of Debezium's connector for PostgreSQL."""
    with connect(url) as connection:
        database = connection.info.dbname

    def fields(
        table: TableName,
        /,
        *,
        unit: int,
        where: tuple[str, int],
        row: int,  # noqa: ARG001 - the port's
    ) -> Mapping[str, Any]:
        lsn = where[1]
        return {
            "connector": "postgresql",
            "db": database,
            # The last LSN committed before, and this one, as texts.
            "sequence": json.dumps([None, str(lsn)], separators=(",", ":")),
            "schema": table.schema,
            "txId": unit,
            "lsn": lsn,
            "xmin": None,
        }

    return fields


def server_id(url: str) -> int:  # noqa: ARG001 - the port's
    """Return 0: servers of PostgreSQL have no number."""
    return 0


def place(position: str) -> tuple[str, int]:
    """Return the LSN as it is printed, and as a number."""
    return position, Lsn.parse(position).ordinal


def files(url: str) -> Sequence[tuple[str, int]]:  # noqa: ARG001 - the port's
    """Return nothing: the server names no files of its log to its clients."""
    return ()


def end(url: str) -> str:
    """Return the present end of the server's log, as positions are printed."""
    with connect(url) as connection, server_errors("asking where the log ends"):
        row = connection.execute("select pg_current_wal_lsn()::text").fetchone()
    return str(row[0]) if row is not None else ""


def definition(url: str, table: TableName) -> TableDefinition | None:
    """Return a table's present definition, or None if it does not exist."""
    with open_catalog(url, application_name=APPLICATION_NAME) as connection:
        found = survey(connection, [as_pattern(table)]).tables
    return next(iter(found), None)
