"""Base class of consumers of the change log.

Names and meaning are those of Ignite's CDC; docstrings mark our own additions with "(ours)".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.model import PenstockError, Relation

if TYPE_CHECKING:
    from penstock.consume.events import CdcEvent
    from penstock.consume.metrics import MetricRegistry


class TruncateNotHandled(PenstockError):
    """A table was emptied, and the consumer does not say what to do then. Fields: table, gsn."""

    code = "CN01"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcType:
    """One version of a table's shape, passed before the first segment that uses it.

    Attributes:
        cache_id: the table's stable id.
        table: `schema.table`.
        version: counts up per table.
        relation: columns, their types, and the key.
    """

    cache_id: int
    table: str
    version: int
    relation: Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcMapping:
    """Table of an id and a version: `type_name` is `schema.table`."""

    type_id: int
    version: int
    type_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcCache:
    """Table that appeared, or changed its name or shape.

    Attributes:
        columns: names, in order.
        key: names, in order.
    """

    cache_id: int
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    relation: Relation


class CdcConsumer:
    """Base class: derive from it, write `on_events` (or `on_batches`), and name it in the pipeline
    file.

    All calls are made from one thread. Any exception ends the consumer: nothing is saved, `stop`
    is called, and the next start continues after the saved state. So every event is delivered at
    least once, always in order; after a crash events may be delivered again. A consumer that needs
    each effect exactly once stores `event.gsn` together with its data and skips events whose gsn
    is not greater.
    """

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Check the options of the pipeline file before anything runs (ours): `penstock doctor`
        does. Raises PenstockError.

        Args:
            options: Arguments of the class.
        """

    def start(self, metrics: MetricRegistry) -> None:
        """Prepare the consumer. Called once, before anything else.

        Args:
            metrics: registry for the consumer's own metrics.
        """

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        """Process events, as many as wanted, and return whether to save the state.

        It is called again while events remain, and at least once per segment, perhaps without any
        event.

        Args:
            events: The next events, in commit order; those that are not read come in the next call.

        Returns:
            True saves the position after the last event read. False saves nothing: the events are
            delivered again after a restart, but not before.

        Raises:
            Exception: Any exception ends the consumer; nothing is saved.
        """
        raise NotImplementedError

    def on_batches(self, batches: Iterator[Any]) -> bool:
        """Process changes like `on_events`, as one Arrow record batch per table and run (ours).

        A consumer has either this or `on_events`.

        Args:
            batches: The next CdcBatch objects, in the order of runs.

        Returns:
            Whether to save the position after the last batch read.
        """
        raise NotImplementedError

    def on_mappings(self, mappings: Iterator[CdcMapping]) -> None:
        """Process new ids of tables and versions. The iterator must be read to its end."""
        _drain(mappings)

    def on_types(self, types: Iterator[CdcType]) -> None:
        """Process new versions of tables' shapes. The iterator must be read to its end."""
        _drain(types)

    def on_cache_change(self, caches: Iterator[CdcCache]) -> None:
        """Process tables that appeared or changed. The iterator must be read to its end."""
        _drain(caches)

    def on_cache_destroy(self, caches: Iterator[int], gsn: int) -> None:  # noqa: ARG002
        """Process ids of tables that are no longer captured. The iterator must be read
        to its end.

        Args:
            caches: Ids of the tables. A table created again with the same name may have the same
                id.
            gsn: as in `on_truncate` (ours); a class may leave it out, too. 0 if the source has
                no gsn.
        """
        _drain(caches)

    def on_truncate(self, table: str, gsn: int) -> None:
        """Process that a table was emptied, at this place between the events (ours).

        It may be called again after a crash: a consumer that stores `event.gsn` with its data
        skips the call if the stored value is greater. A class may leave the argument gsn out:
        `on_truncate(self, table)`. By default this raises TruncateNotHandled, so that no row stays
        by mistake: override it.

        Args:
            table: Name of the table, `schema.table`.
            gsn: Number of the last change before it, of any table.

        Raises:
            TruncateNotHandled: By default.
        """
        raise TruncateNotHandled(
            f"{table} was emptied by TRUNCATE, and {type(self).__qualname__} has no on_truncate",
            hint="Write on_truncate(self, table, gsn) into the class: remove the table's rows, or "
            "`pass` if that is not wanted; then start the consumer again: penstock "
            "consume FILE NAME.",
            table=table,
            gsn=gsn,
        )

    def on_reload(self, table: str, gsn: int) -> None:
        """Prepare for all rows of a table: the next events of it, `resent`, were read again
        (ours).

        Args:
            table: `schema.table`.
            gsn: as in `on_truncate`; a class may leave it out, too.
        """

    def stop(self) -> None:
        """Release everything. Called once at the end, after an error, too."""

    def alive(self) -> bool:
        """Return whether to continue; called before each look for new segments."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcLog:
    """Log that a consumer reads.

    Attributes:
        consumer: name of the consumer.
        log_id: of the log; empty while it has none.
        source: texts that identify the captured database, as in a segment's header.
    """

    consumer: str
    log_id: str
    source: Mapping[str, str]


class PlaceKeeper(CdcConsumer):
    """Base class of consumers that store their place together with their data (ours).

    Each effect happens exactly once if `store_place` commits the place and the data as one
    transaction, because the consumer then continues at the stored place. The saved state of the
    consumer's directory is written after it. A place that belongs to another log, or that is lost,
    ends the consumer.
    """

    def load_place(self, log: CdcLog) -> str | None:
        """Return the place that was stored last, or None if none was stored. Called once, after
        `start`.
        """
        raise NotImplementedError

    def store_place(self, place: str) -> None:
        """Commit everything delivered so far, and this place, as one transaction.

        It is called after `on_events` or `on_batches` returned True, and after the last durable
        change of a segment, where transactions are whole.

        Args:
            place: Text of less than 400 ASCII characters.
        """
        raise NotImplementedError


def _drain(items: Iterator[Any]) -> None:
    for _ in items:
        pass
