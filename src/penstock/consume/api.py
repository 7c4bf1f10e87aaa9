"""What a consumer of the change log is: the class that users derive theirs from.

Names and meaning are those of document 002; what is ours is said in each docstring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.model import PenstockError, Relation

if TYPE_CHECKING:
    from penstock.consume.events import CdcEvent
    from penstock.consume.metrics import MetricRegistry


class TruncateNotHandled(PenstockError):
    """A table was emptied, and the consumer does not say what it does then. fields: table, gsn."""

    code = "CN01"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcType:
    """One version of a table's shape, told before the first segment that uses it.

    cache_id: the table's stable id. table: `schema.table`. version: counts up per table.
    relation: columns, their types, and the key.
    """

    cache_id: int
    table: str
    version: int
    relation: Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcMapping:
    """Which table an id and a version stand for: `type_name` is `schema.table`."""

    type_id: int
    version: int
    type_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcCache:
    """A table that appeared or changed its name or shape. columns, key: names, in order."""

    cache_id: int
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    relation: Relation


class CdcConsumer:
    """Derive from it, write `on_events` (or `on_batches`), and name the class in the pipeline file.

    All calls come from one thread. Any exception ends the consumer: nothing is saved, `stop` is
    called, and the next start goes on behind the saved state. So every event comes at least once;
    events may come again after a crash, always in order. A consumer that wants each effect exactly
    once keeps `event.gsn` together with its data and passes over what is not greater.
    """

    def start(self, metrics: MetricRegistry) -> None:
        """Called once, before anything else. metrics: to export the consumer's own."""

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        """Take events, as many as wanted; True saves the state: the position behind the last one
        read. False saves nothing: they come again after a restart, but not before.

        Called again while events remain; at least once per segment, perhaps without any event.
        """
        raise NotImplementedError

    def on_batches(self, batches: Iterator[Any]) -> bool:
        """As `on_events`, with one Arrow record batch per table and run (ours).

        A consumer has either this or `on_events`.
        """
        raise NotImplementedError

    def on_mappings(self, mappings: Iterator[CdcMapping]) -> None:
        """New ids of tables and versions. The iterator must be read to its end."""
        _drain(mappings)

    def on_types(self, types: Iterator[CdcType]) -> None:
        """New versions of tables' shapes. The iterator must be read to its end."""
        _drain(types)

    def on_cache_change(self, caches: Iterator[CdcCache]) -> None:
        """Tables that appeared, or changed. The iterator must be read to its end."""
        _drain(caches)

    def on_cache_destroy(self, caches: Iterator[int]) -> None:
        """Ids of tables that are not captured any more. The iterator must be read to its end."""
        _drain(caches)

    def on_truncate(self, table: str, gsn: int) -> None:
        """A table was emptied, at this place between the events (ours).

        gsn: of the last change before it, of any table. It may come again after a crash: who keeps
        `event.gsn` with the data passes over it where that is greater. A class may leave the
        argument out: `on_truncate(self, table)`. Raises TruncateNotHandled, so that no row stays
        by mistake: override it.
        """
        raise TruncateNotHandled(
            f"{table} was emptied by TRUNCATE, and {type(self).__qualname__} has no on_truncate",
            hint="Write on_truncate(self, table, gsn) into the class: remove what it has of the "
            "table, or `pass` where that is not wanted; then start the consumer again: penstock "
            "consume FILE NAME.",
            table=table,
            gsn=gsn,
        )

    def on_reload(self, table: str, gsn: int) -> None:
        """The events of this table that follow, `resent`, are all of its rows, read anew (ours).

        gsn: as in `on_truncate`, and may be left out as there.
        """

    def stop(self) -> None:
        """Called once at the end, however it ends."""

    def alive(self) -> bool:
        """Whether to go on; asked before each look for new segments."""
        return True


def _drain(items: Iterator[Any]) -> None:
    for _ in items:
        pass
