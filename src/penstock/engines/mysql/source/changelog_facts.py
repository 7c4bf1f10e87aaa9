"""Facts of a MySQL or MariaDB source for FlexCDC's state tables; see `ports.changelog`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.engines.mysql.connect import Connection
from penstock.engines.mysql.connect import connect as connect_to
from penstock.engines.mysql.source.catalog import open_catalog, survey
from penstock.engines.mysql.source.status import binlog_files, read_identity, read_status
from penstock.model import TableDefinition, TableName
from penstock.model.patterns import as_pattern
from penstock.ports.changelog import Origin

APPLICATION_NAME = "penstock flexcdc"
KNOWS_RENAMES = True

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


def connect(url: str) -> Connection:
    """Return a connection of the driver, for plugins."""
    return connect_to(url, application_name=APPLICATION_NAME)


def origin(url: str) -> Origin:
    """Return the fields of Debezium's connectors for MySQL and MariaDB."""
    with open_catalog(url, application_name=APPLICATION_NAME) as connection:
        server = read_identity(connection)

    def fields(
        table: TableName,
        /,
        *,
        unit: int,  # noqa: ARG001 - the port's
        where: tuple[str, int],
        row: int,
    ) -> Mapping[str, Any]:
        file, offset = where
        return {
            "connector": "mariadb" if server.version.is_mariadb else "mysql",
            "db": table.schema,
            "sequence": None,
            "server_id": server.server_id,
            "gtid": None,
            "file": file,
            "pos": offset,
            "row": row,
            "thread": None,
            "query": None,
        }

    return fields


def server_id(url: str) -> int:
    """Return the server's number; 0 if it has none."""
    with open_catalog(url, application_name=APPLICATION_NAME) as connection:
        return read_identity(connection).server_id


def place(position: str) -> tuple[str, int]:
    """Return the binlog file, and the offset in it."""
    file, _, offset = position.rpartition(":")
    return file, int(offset)


def files(url: str) -> Sequence[tuple[str, int]]:
    """Return the files of the server's log, with sizes, oldest first; empty if unknown."""
    with open_catalog(url, application_name=APPLICATION_NAME) as connection:
        return [(file.name, file.size_bytes) for file in binlog_files(connection)]


def end(url: str) -> str:
    """Return the present end of the server's log, as positions are printed."""
    with open_catalog(url, application_name=APPLICATION_NAME) as connection:
        return str(read_status(connection).position)


def definition(url: str, table: TableName) -> TableDefinition | None:
    """Return a table's present definition, or None if it does not exist."""
    with open_catalog(url, application_name=APPLICATION_NAME) as connection:
        found = survey(connection, [as_pattern(table)]).tables
    return next(iter(found), None)
