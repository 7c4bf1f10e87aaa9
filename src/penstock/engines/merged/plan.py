"""Plan of a merge: the tables of its logs; see `ports.tables.Planned`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.codec.types import Server
from penstock.engines.merged.tables import server_of
from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.tables import SourceFacts, planned_at


def read_source(config: Config, *, dropped: Collection[TableName]) -> SourceFacts:
    """Return the facts of the merge. A table of several logs has the definition of the first
    one.
    """
    tables: dict[TableName, TableDefinition] = {}
    left_out: list[str] = []
    problems: list[str] = []
    for one in config.inputs:
        found = planned_at(one.source.url).read_source(one, dropped=dropped)
        for table in found.tables:
            tables.setdefault(table.name, table)
        left_out += [f"{one.pipeline.name}: {reason}" for reason in found.left_out]
        problems += [f"{one.pipeline.name}: {reason}" for reason in found.problems]
    return SourceFacts(
        server=server_of(config.source.url),
        tables=tuple(tables[name] for name in sorted(tables)),
        left_out=tuple(left_out),
        problems=tuple(problems),
    )


def read_target(config: Config) -> tuple[Server, int]:
    """Raise NotImplementedError: a merge cannot be a target."""
    raise NotImplementedError


def problems_between(
    config: Config,  # noqa: ARG001 - the port's
    tables: Sequence[TableDefinition],  # noqa: ARG001
    *,
    planned: Collection[TableName],  # noqa: ARG001
) -> list[str]:
    """Return nothing: there is no bulk load."""
    return []
