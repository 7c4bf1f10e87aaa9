"""The caches of a node as tables; see `ports.tables.Tables`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from penstock.codec.types import Engine, Server
from penstock.engines.ignite.directory import Cache, NodeDirectory, open_any
from penstock.engines.ignite.source.declared import Declared
from penstock.engines.ignite.source.shapes import Shapes, table_of
from penstock.host import checkpoint
from penstock.model import ColumnDefinition, Relation, TableDefinition, TableName
from penstock.model.patterns import Selection
from penstock.ports.config import Config
from penstock.ports.tables import Followed, Present
from penstock.sql.schema_translation import SchemaDescription

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
    shapes = Shapes(files=_Kept(config), declared=Declared(directory).of)
    shapes.load()
    caches = taken_caches(config, directory)
    found = [shapes.known(one.name, one.cache_id) for one in caches]
    return [one for one in found if one is not None]


def taken_caches(config: Config, directory: NodeDirectory) -> list[Cache]:
    """The caches of a node that the configuration takes in, by name."""
    takes = Selection.parse(config.source.tables).takes
    found: list[Cache] = [told.read() for told in directory.caches()]
    return sorted((one for one in found if takes(table_of(one.name))), key=lambda one: one.name)


class _Kept:
    """See StateFiles: what an extraction has kept; nothing is written."""

    def __init__(self, config: Config) -> None:
        self._directory = config.layout.state

    def load(self, name: str, kind: Any) -> Any:
        return checkpoint.load(self._directory / name, kind)

    def save(self, name: str, state: Any) -> None:
        """See StateFiles: whoever extracts keeps it."""


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
