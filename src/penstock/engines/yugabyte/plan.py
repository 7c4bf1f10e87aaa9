"""Plan for YugabyteDB, which is only a source."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

from penstock.engines.yugabyte.catalog import connect_catalog, tables_of
from penstock.engines.yugabyte.tables import server_of
from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.registry import PartMissing
from penstock.ports.tables import PLAN_APPLICATION, SourceFacts


def read_source(config: Config, *, dropped: Collection[TableName]) -> SourceFacts:
    """Return the facts of the source."""
    with connect_catalog(config.source.url, application_name=PLAN_APPLICATION) as connection:
        tables = tables_of(connection, config.source.tables, dropped=dropped)
    return SourceFacts(
        server=server_of(config.source.url), tables=tuple(tables), left_out=(), problems=()
    )


def read_target(config: Config) -> NoReturn:
    """Return the target, and its lower_case_table_names, 0 if names keep their case."""
    raise PartMissing(
        "YugabyteDB cannot be a target",
        hint="Name a database of another engine in [target] url.",
        url=config.path.name,
    )


def problems_between(
    config: Config,  # noqa: ARG001 - the port's
    tables: Sequence[TableDefinition],  # noqa: ARG001 - the port's
    *,
    planned: Collection[TableName],  # noqa: ARG001 - the port's
) -> list[str]:
    """Return what a target of the same engine would refuse of the source, one sentence each."""
    return []
