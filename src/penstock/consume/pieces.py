"""A segment cut into pieces where tables are emptied or dropped, and which frames belong together.

For events (`events.py`) and batches (`batches.py`) alike.
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

TOLD = (*EMPTYING, MarkerKind.DDL)  # kinds of markers that consumers hear of
SNAPSHOT_KEY = "snapshot"  # in the source of a segment's header
SNAPSHOT_SHIFT = 2**62

Takes = Callable[[TableName], bool]


class Reading(Protocol):
    """An iterator that knows how far it was read."""

    @property
    def gsn_read(self) -> int:
        """The last row change that was given out whole, or need not be."""
        ...

    @property
    def place_read(self) -> tuple[int, int]:
        """gsn_read, and how much of what follows was given out: gsn_after and entries_after."""
        ...

    @property
    def is_drained(self) -> bool:
        """Whether there is nothing more; may read on to find out."""
        ...


_Events = TypeVar("_Events", bound=Reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece(Generic[_Events]):
    """What lies between two places where a table is emptied or dropped.

    markers_before: TRUNCATE, RELOAD and DDL markers that come before the events, in order; of all
    tables. gsn_end: the row change up to which everything is read when the events are.
    """

    markers_before: tuple[Marker, ...]
    events: _Events
    gsn_end: int


def gsn_shift(segment: Segment) -> int:
    """By how much events have lower numbers: rows of a snapshot are older than every change."""
    return SNAPSHOT_SHIFT if SNAPSHOT_KEY in segment.header.source else 0


def told_markers(segment: Segment) -> list[Marker]:
    """The markers that consumers are told, in order: of all tables, so that counting needs no
    filter.
    """
    markers = sorted(segment.markers(), key=lambda marker: marker.gsn)
    return [marker for marker in markers if marker.kind in TOLD]


def reloaded(markers: Sequence[Marker], table: TableName) -> dict[int, int]:
    """The transactions that have a table anew, each with the gsn behind which its rows are."""
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
    """The pieces behind a place, at least one. make: of gsn_after, gsn_through, entries_after."""
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
        """entries: in any order."""
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

    def between(self, gsn_after: int, gsn_through: int) -> range:
        """The groups with rows behind the one and up to the other."""
        return range(bisect_right(self._lasts, gsn_after), bisect_right(self._firsts, gsn_through))
