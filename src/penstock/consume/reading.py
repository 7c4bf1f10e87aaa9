"""Delivery of a segment to a consumer: markers and events in turn, from a place on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from penstock.consume.api import CdcConsumer
from penstock.consume.batches import batches_of
from penstock.consume.events import events_of
from penstock.consume.pieces import Piece
from penstock.consume.position import ConsumerOfOtherLog, Position
from penstock.log.segment import Segment
from penstock.model import Marker, TableName

ON_EVENTS, ON_BATCHES = "on_events", "on_batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Piece of a segment.

    Attributes:
        markers: those before it, each with the position after it.
        callback: of the consumer, which gets `items`.
        is_last: it is the last one of its segment.
    """

    markers: tuple[tuple[Position, Marker], ...]
    callback: str
    items: Any
    is_last: bool

    @property
    def is_empty(self) -> bool:
        """Return whether it has nothing for the consumer."""
        return bool(self.items.is_drained)

    @property
    def is_read(self) -> bool:
        """Return whether all of it was delivered."""
        return bool(self.items.is_drained)

    def place(self, before: Position) -> Position:
        """Return the consumer's place, given the one before."""
        gsn, entries = self.items.place_read
        if (gsn, entries) == (before.gsn, before.entries):
            return before
        markers = before.markers if gsn == before.gsn else 0
        unit = self.callback if entries else ""
        return replace(before, gsn=gsn, entries=entries, unit=unit, markers=markers)


def is_of_batches(consumer: CdcConsumer) -> bool:
    """Return whether a consumer wants Arrow batches instead of events."""
    return type(consumer).on_batches is not CdcConsumer.on_batches


def deliveries_of(
    consumer: CdcConsumer,
    segment: Segment,
    place: Position,
    *,
    takes: Callable[[TableName], bool],
    keep_binary: bool,
) -> Iterator[Delivery]:
    """Yield the pieces of a segment after a place in it; at least one. Raises SegmentCorrupt."""
    found: Iterator[Piece[Any]]
    callback = ON_BATCHES if is_of_batches(consumer) else ON_EVENTS
    # A class was rewritten from one to the other: a half-read part is delivered again.
    after, skip = place.gsn, place.entries if place.unit == callback else 0
    if callback == ON_BATCHES:
        found = batches_of(segment, takes=takes, gsn_after=after, entries_after=skip)
    else:
        found = events_of(
            segment, takes=takes, gsn_after=after, entries_after=skip, keep_binary=keep_binary
        )
    for piece in found:
        markers = []
        for count, marker in enumerate(piece.markers_before, 1):
            behind = Position(
                segment=segment.number, gsn=marker.gsn, markers=count, log_id=place.log_id
            )
            if not _is_done(behind, place):
                markers.append((behind, marker))
        yield Delivery(
            markers=tuple(markers),
            callback=callback,
            items=piece.events,
            is_last=piece.gsn_end == segment.end.gsn,
        )


def _is_done(behind: Position, place: Position) -> bool:
    return behind.gsn < place.gsn or (
        behind.gsn == place.gsn and (behind.markers <= place.markers or place.entries > 0)
    )


def check_log(place: Position, segment: Segment) -> None:
    """Check that a position may belong to this segment's log. Raises ConsumerOfOtherLog."""
    actual = segment.header.log_id
    other = bool(place.log_id) and place.log_id != actual
    if place.segment == segment.number:
        other = other or place.gsn < segment.start.gsn
        other = other or (segment.is_closed and place.gsn > segment.end.gsn)
    if other:
        raise ConsumerOfOtherLog(
            f"the saved state {place} is of another log: {place.log_id or 'unknown'}; "
            f"{segment.path} belongs to {actual} and has gsn {segment.start.gsn} to "
            f"{segment.end.gsn}",
            hint="The log was created again, or the state is from another pipeline. Let the "
            "consumer begin again: penstock consumers remove FILE NAME --yes, then penstock "
            "consumers add FILE NAME.",
            expected=place.log_id,
            actual=actual,
        )
