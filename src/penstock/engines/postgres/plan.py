"""What a plan asks of PostgreSQL servers."""

from __future__ import annotations

from penstock.codec.types import Engine, Server
from penstock.control.followed import followed_names
from penstock.control.plan_facts import APPLICATION_NAME, SourceFacts
from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.source.catalog import Exclusion, open_catalog, survey
from penstock.ports.config import Config


def read_source(config: Config) -> SourceFacts:
    """The source and its captured tables. Raises what connecting and the catalogue do."""
    with (
        open_catalog(config.source.url, application_name=APPLICATION_NAME) as connection,
        server_errors("reading the source's catalogue"),
    ):
        found = survey(connection, config.source.tables, dropped=followed_names(config))
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


def read_target(config: Config) -> Server:
    """The target. Raises the errors of connecting."""
    with connect(config.target.url, application_name=APPLICATION_NAME) as connection:
        return _server(connection.info.server_version)


def _server(number: int) -> Server:
    return Server(engine=Engine.POSTGRESQL, version=(number // 10_000,))
