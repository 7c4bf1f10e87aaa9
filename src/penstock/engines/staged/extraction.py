"""Part `extraction`: a group's engine, with its tables from the target's catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from penstock.engines.staged.stream import StagedEngine
from penstock.model import TableDefinition, TableName
from penstock.model.patterns import as_pattern
from penstock.ports.config import Config, Pipeline, SourceSection
from penstock.ports.identity import SourceIdentity
from penstock.ports.source import ExtractOptions
from penstock.ports.staging import Group, StagedTable, group_at, group_name, staging_at
from penstock.ports.tables import tables_at


def identity(config: Config) -> SourceIdentity:
    """Ask the source for its identity."""
    group = group_name(group_at(config.source.url))
    return SourceIdentity(
        pipeline=config.pipeline.name,
        engine="staged",
        system_id=group,
        timeline=0,
        database=group,
        database_id=0,
        slot="",
        publication="",
    )


def has_begun(pipeline: Pipeline) -> bool:
    """Return whether the log has a position, from which it continues in any case."""
    return bool(pipeline.log_position())


@contextmanager
def open_engine(
    pipeline: Pipeline,
    options: ExtractOptions,
    *,
    tables: Callable[[], list[TableDefinition]],
    stop: Callable[[], bool],
) -> Iterator[StagedEngine]:
    """Return the engine. The tables are those of the target."""
    del options, tables, stop
    config = pipeline.config
    assert config.staging is not None, "a file with [stage] has it"
    assert config.stage is not None
    url = config.source.url
    group = group_at(url)
    yield StagedEngine(
        database=staging_at(config.staging.url),
        group=group,
        url=url,
        definitions=lambda: definitions_of(config, group),
        splits=config.stage.split_windows and not config.consumers,
        with_applied=bool(config.consumers),
        name=group_name(group),
    )


def definitions_of(config: Config, group: Group) -> Mapping[StagedTable, TableDefinition]:
    """Read the tables of a target schema from its catalogue. Raises the errors of reading it."""
    url, schema = config.target.url, group[-1]
    pattern = as_pattern(TableName(schema, "x")).removesuffix("x") + "*"
    asked = replace(config, source=SourceSection(url=url, tables=(pattern,)))
    found = tables_at(url).read_captured(asked, dropped=())
    return {StagedTable(group, one.name.name): one for one in found if one.name.schema == schema}
