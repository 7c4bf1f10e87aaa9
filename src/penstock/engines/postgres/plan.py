"""Plan for PostgreSQL servers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.codec.types import Engine, Server
from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.source.catalog import Exclusion, open_catalog, survey
from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.tables import PLAN_APPLICATION, SourceFacts


def read_source(config: Config, *, dropped: Collection[TableName]) -> SourceFacts:
    """Return the source and its captured tables. Raises the errors of connecting and of the
    catalogue.
    """
    with (
        open_catalog(config.source.url, application_name=PLAN_APPLICATION) as connection,
        server_errors("reading the source's catalogue"),
    ):
        found = survey(connection, config.source.tables, dropped=dropped)
        out = [one for one in found.excluded if one.reason is not Exclusion.PATTERN]
        return SourceFacts(
            server=_server(connection.info.server_version),
            tables=found.tables,
            left_out=tuple(map(str, out)),
            problems=(
                *(f"no table {name} in the source" for name in found.unmatched),
                *(f"{one}, and [source] tables names it" for one in out if one.is_named),
            ),
        )


def read_target(config: Config) -> tuple[Server, int]:
    """Return the target. Raises the errors of connecting."""
    with connect(config.target.url, application_name=PLAN_APPLICATION) as connection:
        return _server(connection.info.server_version), 0


def problems_between(
    config: Config,  # noqa: ARG001 - the port's
    tables: Sequence[TableDefinition],  # noqa: ARG001 - the port's
    *,
    planned: Collection[TableName],  # noqa: ARG001 - the port's
) -> list[str]:
    """Return nothing: PostgreSQL computes generated columns to the same values again."""
    return []


def _server(number: int) -> Server:
    return Server(engine=Engine.POSTGRESQL, version=(number // 10_000,))
