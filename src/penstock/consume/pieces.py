"""Pieces of a segment, cut where tables are emptied or dropped, and groups of frames.

Events (`events.py`) and batches (`batches.py`) share this module.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from penstock.codec.ckt import FrameEntry
from penstock.log.change_tables import EMPTYING
from penstock.log.segment import Segment
from penstock.model import Marker, MarkerKind, TableName

TOLD = (*EMPTYING, MarkerKind.DDL)  # kinds of markers that consumers get
SNAPSHOT_KEY = "snapshot"  # in the source of a segment's header
SNAPSHOT_SHIFT = 2**62

Takes = Callable[[TableName], bool]


class Reading(Protocol):
    """Iterator that knows how far it was read."""

    @property
    def gsn_read(self) -> int:
        """Last row change that was returned whole, or need not be."""
        ...

    @property
    def place_read(self) -> tuple[int, int]:
        """gsn_read, and how much of the rest was returned: gsn_after and entries_after."""
        ...

    @property
    def is_drained(self) -> bool:
        """Return whether there is nothing more; may read ahead to find out."""
        ...


_Events = TypeVar("_Events", bound=Reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece(Generic[_Events]):
    """Part of a segment between two places where a table is emptied or dropped.

    Attributes:
        markers_before: TRUNCATE, RELOAD and DDL markers before the events, in order; of all
            tables.
        gsn_end: the row change up to which everything is read once the events are read.
    """

    markers_before: tuple[Marker, ...]
    events: _Events
    gsn_end: int


def gsn_shift(segment: Segment) -> int:
    """Return how much lower the events' numbers are: rows of a snapshot are older than every
    change.
    """
    return SNAPSHOT_SHIFT if SNAPSHOT_KEY in segment.header.source else 0


def told_markers(segment: Segment) -> list[Marker]:
    """Return the markers for consumers, in order. They are those of all tables, so counting needs
    no filter.
    """
    markers = sorted(segment.markers(), key=lambda marker: marker.gsn)
    return [marker for marker in markers if marker.kind in TOLD]


def find_reloaded(markers: Sequence[Marker], table: TableName) -> dict[int, int]:
    """Return the transactions that send a table again, each with the gsn before its rows."""
    return {
        marker.trx: marker.gsn
        for marker in markers
        if marker.kind is MarkerKind.RELOAD and tuple(table) in marker.tables
    }


def pieces_of(
    segment: Segment,
    markers: Sequence[Marker],
    make: Callable[[int, int, int], _Events],
    *,
    gsn_after: int,
    entries_after: int,
) -> Iterator[Piece[_Events]]:
    """Yield the pieces after a place, at least one.

    Args:
        segment: the segment.
        markers: of the segment.
        make: makes the iterator from gsn_after, gsn_through, entries_after.
        gsn_after: the place.
        entries_after: the place.
    """
    after = max(gsn_after, segment.start.gsn)
    left = [marker for marker in markers if marker.gsn >= after]
    while True:
        here = tuple(marker for marker in left if marker.gsn == after)
        left = left[len(here) :]
        end = left[0].gsn if left else segment.end.gsn
        events = make(after, end, entries_after)
        yield Piece(markers_before=here, events=events, gsn_end=end)
        if not left:
            return
        after, entries_after = end, 0


class FrameGroups:
    """Rows frames by rising gsn, in groups that do not overlap."""

    def __init__(self, entries: Sequence[FrameEntry]) -> None:
        """Group the frames.

        Args:
            entries: in any order.
        """
        self.groups: list[list[FrameEntry]] = []
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for entry in sorted(entries, key=lambda entry: entry.gsn_first):
            if self.groups and entry.gsn_first <= self._lasts[-1]:
                self.groups[-1].append(entry)
                self._lasts[-1] = max(self._lasts[-1], entry.gsn_last)
            else:
                self.groups.append([entry])
                self._firsts.append(entry.gsn_first)
                self._lasts.append(entry.gsn_last)

    def gsn_last(self, group: int) -> int:
        """Return the gsn of a group's last row."""
        return self._lasts[group]

    def between(self, gsn_after: int, gsn_through: int) -> range:
        """Return the groups with rows after gsn_after and up to gsn_through."""
        return range(bisect_right(self._lasts, gsn_after), bisect_right(self._firsts, gsn_through))
