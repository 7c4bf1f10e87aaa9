"""Metadata of tables for a consumer, passed before the events that need it.

The order is: mappings, types, tables that appeared or changed, tables that are gone. The state is
saved after each callback, so each is called once; after a crash perhaps again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock.consume.api import CdcCache, CdcConsumer, CdcMapping, CdcType
from penstock.consume.classes import call, call_at
from penstock.consume.position import CACHES_FILE, MAPPINGS_FILE, TYPES_FILE, ConsumerState, Known
from penstock.model import PenstockError, Relation, TableName

GONE = "gone"  # after version and name, in the file of tables
Takes = Callable[[TableName], bool]


class MetadataNotDrained(PenstockError):
    """A metadata callback returned before it had read its iterator to the end."""

    code = "CN04"
    retry = "never"


class Metadata:
    """Passes metadata of tables to one consumer, and remembers it."""

    def __init__(self, consumer: CdcConsumer, state: ConsumerState, takes: Takes) -> None:
        """Load the files. Raises ConsumerStateCorrupt.

        Args:
            consumer: the consumer.
            state: its state.
            takes: returns whether the consumer wants a table.
        """
        self._consumer = consumer
        self._state = state
        self._takes = takes
        self._types: dict[str, int] = state.load_known(TYPES_FILE).told
        self._mappings: dict[str, list[Any]] = state.load_known(MAPPINGS_FILE).told
        self._caches: dict[str, list[Any]] = state.load_known(CACHES_FILE).told

    def tell(self, relations: Iterable[Relation], gone: Iterable[str] = (), gsn: int = 0) -> bool:
        """Pass on news among these shapes; return whether there was any.

        Raises MetadataNotDrained, ConsumerFailed.

        Args:
            relations: the shapes.
            gone: names, `schema.table`, of tables that are no longer captured.
            gsn: of the last change before this place.
        """
        wanted = [one for one in relations if self._takes(TableName(one.schema, one.name))]
        told = self._tell_mappings(wanted)
        told |= self._tell_types(wanted)
        told |= self._tell_caches(wanted)
        return self._tell_gone(frozenset(gone), gsn) or told

    def tell_dropped(self, names: Iterable[str], made_again: Iterable[Relation], gsn: int) -> bool:
        """Pass on that tables were dropped after this gsn, and the tables that were created again
        with their names.
        """
        told = self._tell_gone(frozenset(names), gsn)
        for one in made_again:
            self._caches.pop(str(one.source_id), None)  # even if it has the previous shape
        return self.tell(made_again) or told

    def _tell_mappings(self, relations: list[Relation]) -> bool:
        new = [
            one
            for one in relations
            if self._mappings.get(str(one.source_id), (0, ""))[0] < one.version
            or self._mappings[str(one.source_id)][1] != one.full_name
        ]
        items = [
            CdcMapping(type_id=one.source_id, version=one.version, type_name=one.full_name)
            for one in new
        ]
        self._mappings |= {str(one.source_id): [one.version, one.full_name] for one in new}
        return self._tell_items("on_mappings", items, MAPPINGS_FILE, self._mappings)

    def _tell_types(self, relations: list[Relation]) -> bool:
        new = [one for one in relations if self._types.get(str(one.source_id), 0) < one.version]
        items = [
            CdcType(cache_id=one.source_id, table=one.full_name, version=one.version, relation=one)
            for one in new
        ]
        self._types |= {str(one.source_id): one.version for one in new}
        return self._tell_items("on_types", items, TYPES_FILE, self._types)

    def _tell_caches(self, relations: list[Relation]) -> bool:
        new = {}
        for one in relations:  # the last version of each
            known = [one.version, one.full_name]
            if self._caches.get(str(one.source_id), [])[:2] != known:
                new[str(one.source_id)] = (known, one)
        items = [_cache(one) for _, one in new.values()]
        self._caches |= {number: known for number, (known, _) in new.items()}
        return self._tell_items("on_cache_change", items, CACHES_FILE, self._caches)

    def _tell_gone(self, names: frozenset[str], gsn: int) -> bool:
        known = self._caches.items()
        numbers = [n for n, told in known if told[1] in names and told[-1] != GONE]
        for number in numbers:
            self._caches[number].append(GONE)  # its last shape is not passed on as a new one
        items = [int(number) for number in numbers]
        return self._tell_items("on_cache_destroy", items, CACHES_FILE, self._caches, gsn)

    def _tell_items(
        self,
        callback: str,
        items: list[Any],
        file: str,
        told: Mapping[str, Any],
        gsn: int | None = None,
    ) -> bool:
        if not items:
            return False
        rest: Iterator[Any] = iter(items)
        if gsn is None:
            call(self._consumer, callback, rest)
        else:
            call_at(self._consumer, callback, rest, gsn)
        if next(rest, None) is not None:
            raise not_drained(self._consumer, callback)
        self._state.save_known(file, Known(told=dict(told)))
        return True


_NOT_DRAINED = {
    "on_mappings": "Consumer should handle all changed mappings",
    "on_types": "Consumer should handle all changed types",
    "on_cache_change": "Consumer should handle all cache change events",
    "on_cache_destroy": "Consumer should handle all cache destroy events",
}


def not_drained(consumer: CdcConsumer, callback: str) -> MetadataNotDrained:
    """Return the error for a callback that has not read its iterator to the end."""
    return MetadataNotDrained(
        _NOT_DRAINED[callback],
        hint=f"Read the iterator of {type(consumer).__qualname__}.{callback} to its end, including "
        "items that are not needed; then start the consumer again: penstock consume FILE NAME.",
        callback=callback,
    )


def _cache(relation: Relation) -> CdcCache:
    names = tuple(column.name for column in relation.columns)
    return CdcCache(
        cache_id=relation.source_id,
        table=relation.full_name,
        columns=names,
        key=tuple(names[at] for at in relation.key),
        relation=relation,
    )
