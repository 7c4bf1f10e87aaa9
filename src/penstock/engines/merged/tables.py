"""The tables of a merge, which are those of its logs, and the plan for them; see `ports.tables`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from penstock.codec.types import Server
from penstock.model import TableDefinition, TableName
from penstock.model.sections import MERGED
from penstock.ports.config import Config
from penstock.ports.tables import Followed, Present, SourceFacts, planned_at, tables_at


def server_of(url: str) -> Server:
    """Return the server of the first log's source."""
    inner = url.removeprefix(f"{MERGED}-")
    return tables_at(inner).server_of(inner)


def read_captured(config: Config, *, dropped: Collection[TableName]) -> list[TableDefinition]:
    """Return the definitions. A table of several logs has that of the first one."""
    found: dict[TableName, TableDefinition] = {}
    for one in config.inputs:
        for table in tables_at(one.source.url).read_captured(one, dropped=dropped):
            found.setdefault(table.name, table)
    return [found[name] for name in sorted(found)]


def read_followed(config: Config, *, added: Iterable[TableName]) -> Followed | None:  # noqa: ARG001
    """Return None: the logs' own pipelines follow their tables."""
    return None


def present(config: Config, patterns: Sequence[str], known: Followed) -> Present | None:  # noqa: ARG001
    """Return None: the logs' own pipelines add new tables."""
    return None


def everything(url: str) -> str:  # noqa: ARG001 - the port's
    """Return a pattern for all tables of a source; empty if its URL does not say enough."""
    return "*.*"


def namespace(url: str, schema: str, *, is_same: bool) -> str:
    """Return the name that the first log's source gives."""
    return tables_at(url.removeprefix(f"{MERGED}-")).namespace(url, schema, is_same=is_same)


def shift(config: Config) -> int:  # noqa: ARG001 - the port's
    """Return the offset that the log adds to the positions of a server that took over."""
    return 0


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
