"""The caches of a node as tables; see `ports.tables.Tables`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import structlog

from penstock.codec.types import Engine, Server
from penstock.engines.ignite.directory import Cache, NodeDirectory, open_any
from penstock.engines.ignite.source.scanned import (
    SAMPLE_ENTRIES,
    keep_scanned,
    known_shapes,
    scanned_shapes,
)
from penstock.engines.ignite.source.shapes import KeptShape, table_of
from penstock.engines.ignite.url import thin_url
from penstock.host.errors import ConnectFailed, ConnectionLost
from penstock.model import Column, ColumnDefinition, Relation, TableDefinition, TableName
from penstock.model.patterns import Selection
from penstock.ports.config import Config, Mode
from penstock.ports.handover import read_handover
from penstock.ports.tables import Followed, Present
from penstock.sql.schema_translation import SchemaDescription

logger = structlog.get_logger(__name__)
SERVER = Server(engine=Engine.IGNITE, version=(2,))


def server_of(url: str) -> Server:
    """See Tables: the release is not known. Raises CdcDirectoryMissing."""
    open_any(url)
    return SERVER


def captured(config: Config, *, dropped: Collection[TableName]) -> list[TableDefinition]:
    """See Tables: caches whose columns are known, by their table or by what was put into them."""
    del dropped
    return [definition_of(one) for one in known_relations(config)]


def known_relations(config: Config) -> list[Relation]:
    """The shapes of caches that are taken, by name, as far as they are known."""
    directory = open_any(config.source.url)
    shapes = known_shapes(config, directory)
    caches = taken_caches(config, directory)
    unknown = [one for one in caches if shapes.known(one.name, one.cache_id) is None]
    if unknown and thin_url(config.source.url).addresses:
        shapes.take({**shapes.kept(), **_looked_at(config, directory, unknown)})
    found = [shapes.known(one.name, one.cache_id) for one in caches]
    return [one for one in found if one is not None]


def _looked_at(
    config: Config, directory: NodeDirectory, caches: Sequence[Cache]
) -> Mapping[str, KeptShape]:
    """What rows show of caches that nothing is known of; of a node that is away, nothing."""
    mode = config.pipeline.mode
    state = read_handover(config)
    try:
        if mode is Mode.DATA_CHANGE and (state is None or not state.position):
            # The handover will look at all of them.
            return scanned_shapes(config, directory, caches, entries_max=SAMPLE_ENTRIES)
        found = scanned_shapes(config, directory, caches)
    except (ConnectFailed, ConnectionLost) as error:
        if mode.has_data:
            raise
        logger.warning("columns are known with the first change", reason=error.message)
        return {}
    keep_scanned(config, found)
    return found


def taken_caches(config: Config, directory: NodeDirectory) -> list[Cache]:
    """The caches of a node that the configuration takes in, by name."""
    takes = Selection.parse(config.source.tables).takes
    found: list[Cache] = [told.read() for told in directory.caches()]
    return sorted((one for one in found if takes(table_of(one.name))), key=lambda one: one.name)


def definition_of(relation: Relation) -> TableDefinition:
    """A cache as a target has to make it."""
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
    )


def relation_of(definition: TableDefinition) -> Relation:
    """A table's shape as the log has it."""
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
    """See SchemaSource: a cache has columns and a key, and what SQL adds is not carried."""
    return SchemaDescription(defaults={})


def followed(_config: Config, *, added: Iterable[TableName]) -> Followed | None:
    """See Tables: what the patterns take in is followed, whenever it was made."""
    del added
    return None


def present(_config: Config, _patterns: Sequence[str], _known: Followed) -> Present | None:
    """See Tables: so there are no new tables."""
    return None


def everything(_url: str) -> str:
    """See Tables."""
    return "*"


def namespace(_url: str, _schema: str, *, is_same: bool) -> str:
    """See Tables: it is no target."""
    del is_same
    return ""


def shift(_config: Config) -> int:
    """See Tables: positions stay what they are."""
    return 0
