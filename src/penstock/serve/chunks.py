"""Chunks: pieces of a segment that end at a flush point, where whole transactions end.

A chunk that is too large for the memory is encoded in parts (`parts.py`). Pure: works on entries
of a segment's index.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.codec.ckt import FrameEntry, FrameKind
from penstock.serve import numbers

ROWS_WANTED, BYTES_WANTED = 16_384, 2 << 20  # of one chunk, compressed


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Counters of the log: the last gsn and the last trx."""

    gsn: int
    trx: int

    @property
    def position(self) -> int:
        """END at this place, as an LSN."""
        return numbers.end_of(self.gsn, self.trx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Entries first to last - 1 of a segment.

    Attributes:
        start: the counters before it.
        end: the counters at its end.
        rows: the rows frames, by their first gsn.
    """

    number: int
    first: int
    last: int
    start: Counted
    end: Counted
    rows: tuple[FrameEntry, ...]
    markers: tuple[FrameEntry, ...]


def next_chunk(
    number: int,
    entries: Sequence[FrameEntry],
    first: int,
    start: Counted,
    borders: Collection[int] = (),
) -> Chunk | None:
    """Return the chunk that begins at an entry; None if nothing whole follows.

    Args:
        number: of the segment.
        entries: of the segment.
        first: the first entry.
        start: the counters before it.
        borders: LSNs of changed publications; the chunk ends there if that is a flush point.
    """
    rows: list[FrameEntry] = []
    markers: list[FrameEntry] = []
    whole_rows = whole_markers = row_count = size = 0
    counted, trx, last = start, start.trx, first
    for place in range(first, len(entries)):
        entry = entries[place]
        if entry.kind == FrameKind.ROWS:
            rows.append(entry)
            row_count += entry.row_count
            size += entry.length_bytes
        elif entry.kind == FrameKind.MARKER:
            markers.append(entry)
            size += entry.length_bytes
        elif entry.kind == FrameKind.TRANSACTIONS:
            trx = entry.trx_last
        elif entry.kind == FrameKind.FLUSH_POINT:
            whole_rows, whole_markers = len(rows), len(markers)
            counted, last = Counted(gsn=entry.gsn_last, trx=trx), place + 1
            is_enough = row_count >= ROWS_WANTED or size >= BYTES_WANTED
            if is_enough or counted.position in borders:
                break
    if last == first:
        return None
    return Chunk(
        number=number,
        first=first,
        last=last,
        start=start,
        end=counted,
        rows=tuple(sorted(rows[:whole_rows], key=lambda entry: entry.gsn_first)),
        markers=tuple(markers[:whole_markers]),
    )
