"""Columns of a cache that SQL tables declare, from `cache_data.dat`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.codec.ignite.cache_config import CacheConfig, QueryEntity, read_cache_config
from penstock.codec.ignite.kinds import find_declared
from penstock.engines.ignite.directory import NodeDirectory
from penstock.engines.ignite.source.shapes import (
    KEY,
    OF_KEY,
    OF_VALUE,
    VALUE,
    DeclaredColumn,
)

NOTHING: Sequence[DeclaredColumn] = ()


class Declared:
    """Declarations of a node's caches; a file is read again when it has changed."""

    def __init__(self, directory: NodeDirectory) -> None:
        self._directory = directory
        self._known: dict[str, tuple[int, Sequence[DeclaredColumn]]] = {}

    def of(self, cache: str) -> Sequence[DeclaredColumn]:
        """Return the columns of a cache, in order; the same object until they change.

        Returns an empty list for a cache without a table, and for one that is gone. Raises
        CacheConfigBroken, CacheConfigUnknown.
        """
        path = self._directory.config_path(cache)
        if path is None:
            return NOTHING
        stamp = path.stat().st_mtime_ns
        known = self._known.get(cache)
        if known is None or known[0] != stamp:
            config = read_cache_config(path.read_bytes(), str(path))
            known = self._known[cache] = stamp, tuple(columns_of(config))
        return known[1]


def columns_of(config: CacheConfig) -> list[DeclaredColumn]:
    """Return the columns that the tables of a cache declare: each once, under its first name."""
    found: dict[tuple[str, str], DeclaredColumn] = {}
    for entity in config.entities:
        for column in _columns(entity):
            found.setdefault((column.side, column.field), column)
    return list(found.values())


def _columns(entity: QueryEntity) -> Iterator[DeclaredColumn]:
    if entity.key_field is None and not entity.key_fields and entity.key_type:
        yield _column(KEY, OF_KEY, "", find_declared(entity.key_type))
    for name, java_class in entity.fields.items():
        if "." in name:
            continue  # a field inside a field
        kind = find_declared(java_class, entity.precision.get(name, -1), entity.scale.get(name, -1))
        shown = entity.aliases.get(name, name)
        if name == entity.key_field:
            yield _column(shown, OF_KEY, "", kind)
        elif name == entity.value_field:
            yield _column(shown, OF_VALUE, "", kind)
        else:
            yield _column(shown, OF_KEY if name in entity.key_fields else OF_VALUE, name, kind)
    if not entity.fields and entity.value_type:
        yield _column(VALUE, OF_VALUE, "", find_declared(entity.value_type))


def _column(name: str, side: str, field: str, kind: str | None) -> DeclaredColumn:
    return DeclaredColumn(name=name, side=side, field=field, kind=kind)
