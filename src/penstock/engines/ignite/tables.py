"""Caches of a node as tables, and the plan for them; see `ports.tables`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from penstock.codec.ignite.kinds import holds
from penstock.codec.types import Engine, Server
from penstock.engines.ignite.directory import open_any
from penstock.engines.ignite.source.captures import (
    FOLLOWED_FILE,
    FollowedCaches,
    is_asked_for,
)
from penstock.engines.ignite.source.scan import check_address, known_relations, taken_caches
from penstock.engines.ignite.source.shapes import table_of
from penstock.host.state_file import StateFile
from penstock.model import Column, ColumnDefinition, Relation, TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.tables import Followed, Present, SourceFacts
from penstock.sql.schema_translation import SchemaDescription
from penstock.sql.shape_changes import TypeRules

TYPE_RULES = TypeRules(holds=holds, same=lambda left, right: left == right)


SERVER = Server(engine=Engine.IGNITE, version=(2,))


def server_of(url: str) -> Server:
    """Return the server of a directory; its release is not known. Raises CdcDirectoryMissing."""
    open_any(url)
    return SERVER


def read_captured(config: Config, *, dropped: Collection[TableName]) -> list[TableDefinition]:
    """Return the caches whose columns are known, from their table or from their entries."""
    del dropped
    return [definition_of(one) for one in known_relations(config)]


def definition_of(relation: Relation) -> TableDefinition:
    """Return a cache as a target's table definition."""
    key = tuple(relation.columns[at].name for at in relation.key)
    return TableDefinition(
        name=TableName(relation.schema, relation.name),
        source_id=relation.source_id,
        columns=tuple(
            ColumnDefinition(
                name=one.name,
                type_text=one.source_type,
                type_oid=0,
                typmod=-1,
                not_null=not one.nullable,
                missing=one.missing,
                base_type=one.base_type,
                neutral=one.neutral,
            )
            for one in relation.columns
        ),
        primary_key=key,
        identity_columns=key,
        widens=True,
    )


def relation_of(definition: TableDefinition) -> Relation:
    """Return a table's shape in the log."""
    names = [one.name for one in definition.columns]
    key = tuple(names.index(name) for name in definition.primary_key)
    return Relation(
        schema=definition.name.schema,
        name=definition.name.name,
        columns=tuple(
            Column(
                name=one.name,
                source_type=one.type_text,
                neutral=one.neutral,
                base_type=one.base_type,
                nullable=not one.not_null,
                missing=one.missing,
            )
            for one in definition.columns
        ),
        key=key,
        before=key,
        source_id=definition.source_id,
    )


def describe(_definition: TableDefinition) -> SchemaDescription:
    """Return nothing extra: a cache has columns and a key; SQL's additions are not copied."""
    return SchemaDescription(defaults={})


def read_followed(config: Config, *, added: Iterable[TableName]) -> Followed | None:
    """Return the caches that the change log follows.

    Returns None also if only the patterns decide; see `source/captures.py`.
    """
    if not is_asked_for(config):
        return None
    kept = StateFile(config.layout.state / FOLLOWED_FILE, FollowedCaches).load()
    if kept is None:
        return None
    return Followed(names=frozenset([*map(table_of, kept.names), *added]))


def present(config: Config, patterns: Sequence[str], known: Followed) -> Present:
    """Return the present caches.

    A cache is new once its columns are known, from its table or its first row.
    """
    asked = replace(config, source=replace(config.source, tables=tuple(patterns)))
    found = {table_of(one.name) for one in known_relations(asked)}
    there = taken_caches(asked, open_any(config.source.url))
    return Present(
        names=frozenset(table_of(one.name) for one in there),
        new=frozenset(name for name in found if not known.has(name)),
    )


def everything(_url: str) -> str:
    """Return a pattern for all tables of a source; empty if its URL does not say enough."""
    return "*"


def namespace(_url: str, _schema: str, *, is_same: bool) -> str:
    """Return an empty name: a cluster cannot be a target."""
    del is_same
    return ""


def shift(_config: Config) -> int:
    """Return 0: positions do not change."""
    return 0


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
