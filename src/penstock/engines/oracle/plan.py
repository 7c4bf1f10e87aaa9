"""Questions of a plan to Oracle."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.codec.types import Server
from penstock.engines.oracle.connect import connect
from penstock.engines.oracle.reading.catalog import Exclusion, read_server, server_at, survey
from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.tables import SourceFacts


def read_source(config: Config, *, dropped: Collection[TableName]) -> SourceFacts:
    """Return the source and its captured tables.

    Raises the errors of connecting and of the catalogue.
    """
    with connect(config.source.url) as connection:
        found = survey(connection, config.source.tables, dropped=dropped)
        out = [one for one in found.excluded if one.reason is not Exclusion.PATTERN]
        return SourceFacts(
            server=read_server(connection),
            tables=found.tables,
            left_out=tuple(map(str, out)),
            problems=(
                *(f"no table {name} in the source" for name in found.unmatched),
                *(f"{one}, and [source] tables names it" for one in out if one.is_named),
            ),
        )


def read_target(config: Config) -> tuple[Server, int]:
    """Return the target; names keep their case."""
    return server_at(config.target.url), 0


def problems_between(
    config: Config, tables: Sequence[TableDefinition], *, planned: Collection[TableName]
) -> list[str]:
    """Return nothing: Oracle computes virtual columns to the same values again."""
    del config, tables, planned
    return []
