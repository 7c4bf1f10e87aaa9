"""What FlexCDC's state tables hold of a PostgreSQL source; see `ports.changelog`."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, server_errors
from penstock.engines.postgres.connect import connect as connect_to
from penstock.engines.postgres.source.catalog import open_catalog, survey
from penstock.model import TableDefinition, TableName
from penstock.model.patterns import as_pattern

APPLICATION_NAME = "penstock flexcdc"
KNOWS_RENAMES = False

__all__ = ["KNOWS_RENAMES", "connect", "definition", "end", "files", "place", "server_id"]


def connect(url: str) -> psycopg.Connection:
    """See ChangelogSource."""
    return connect_to(url, application_name=APPLICATION_NAME, options=EXACT_TEXT_SETTINGS)


def server_id(url: str) -> int:  # noqa: ARG001 - the port's
    """See ChangelogSource: servers of PostgreSQL have no number."""
    return 0


def place(position: str) -> tuple[str, int]:
    """See ChangelogSource: the LSN as it is printed, and as a number."""
    return position, Lsn.parse(position).ordinal


def files(url: str) -> Sequence[tuple[str, int]]:  # noqa: ARG001 - the port's
    """See ChangelogSource: the server names no files of its log to its clients."""
    return ()


def end(url: str) -> str:
    """See ChangelogSource."""
    with connect(url) as connection, server_errors("asking where the log ends"):
        row = connection.execute("select pg_current_wal_lsn()::text").fetchone()
    return str(row[0]) if row is not None else ""


def definition(url: str, table: TableName) -> TableDefinition | None:
    """See ChangelogSource."""
    with open_catalog(url, application_name=APPLICATION_NAME) as connection:
        found = survey(connection, [as_pattern(table)]).tables
    return next(iter(found), None)
