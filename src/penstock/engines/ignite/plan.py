"""Plan for a node as source; see `ports.tables.Planned`. It cannot be a target."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.engines.ignite.directory import open_any
from penstock.engines.ignite.source.scanned import check_address, taken_caches
from penstock.engines.ignite.source.shapes import table_of
from penstock.engines.ignite.tables import SERVER, read_captured
from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.tables import SourceFacts


def read_source(config: Config, *, dropped: Collection[TableName]) -> SourceFacts:
    """Return the facts of the node. Raises CdcDirectoryMissing, AddressMissing."""
    if config.pipeline.mode.has_data:
        check_address(config)
    tables = read_captured(config, dropped=dropped)
    known = {one.name for one in tables}
    caches = taken_caches(config, open_any(config.source.url))
    unknown = [one.name for one in caches if table_of(one.name) not in known]
    return SourceFacts(
        server=SERVER,
        tables=tuple(tables),
        left_out=tuple(f"{name}: its columns are known with its first change" for name in unknown),
    )


def problems_between(
    _config: Config, _tables: Sequence[TableDefinition], *, planned: Collection[TableName]
) -> list[str]:
    """Return what a target of the same engine would refuse of the source, one sentence each."""
    del planned
    return []
