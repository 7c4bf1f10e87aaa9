"""Pieces of a segment that are encoded and sent as one: whole transactions, or parts of a huge one.

A chunk ends at a flush point, where whole transactions end. What lies between two flush points and
is too much for the memory, a huge transaction, is a chunk in parts. Pure: entries of a segment in.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.codec.ckt import FrameEntry, FrameKind
from penstock.serve import numbers

ROWS_WANTED, BYTES_WANTED = 16_384, 2 << 20  # of one chunk: enough for a kernel to be worth it
ROWS_MAX, BYTES_MAX = 65_536, 8 << 20  # of one that is not divided


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How many numbers the log has given: the last gsn and the last trx."""

    gsn: int
    trx: int

    @property
    def position(self) -> int:
        """The END that is here, as an LSN."""
        return numbers.end_of(self.gsn, self.trx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Entries first to last - 1 of a segment. start, end: what was given before and up to its end.

    parts: where each part's rows frames begin, as places in `rows`, the chunk's rows frames by
    gsn; one part for a chunk that is not divided.
    """

    number: int
    first: int
    last: int
    start: Counted
    end: Counted
    rows: tuple[FrameEntry, ...]
    markers: tuple[FrameEntry, ...]
    parts: tuple[int, ...] = (0,)

    def rows_of(self, part: int) -> Sequence[FrameEntry]:
        """The rows frames of a part."""
        stop = self.parts[part + 1] if part + 1 < len(self.parts) else len(self.rows)
        return self.rows[self.parts[part] : stop]


def next_chunk(
    number: int,
    entries: Sequence[FrameEntry],
    first: int,
    start: Counted,
    borders: Collection[int] = (),
) -> Chunk | None:
    """The chunk that begins at an entry; None where nothing whole is behind it.

    start: what was given before. borders: LSNs that it does not go beyond where one is a flush
    point's, because publications changed there.
    """
    rows: list[FrameEntry] = []
    markers: list[FrameEntry] = []
    unit_rows: list[FrameEntry] = []
    unit_markers: list[FrameEntry] = []
    counted, trx, last = start, start.trx, first
    for place in range(first, len(entries)):
        entry = entries[place]
        if entry.kind == FrameKind.ROWS:
            unit_rows.append(entry)
        elif entry.kind == FrameKind.MARKER:
            unit_markers.append(entry)
        elif entry.kind == FrameKind.TRANSACTIONS:
            trx = entry.trx_last
        elif entry.kind == FrameKind.FLUSH_POINT:
            if rows and _is_more(rows + unit_rows, ROWS_MAX, BYTES_MAX):
                break
            rows, markers = rows + unit_rows, markers + unit_markers
            unit_rows, unit_markers = [], []
            counted, last = Counted(gsn=entry.gsn_last, trx=trx), place + 1
            if _is_more(rows, ROWS_WANTED, BYTES_WANTED) or counted.position in borders:
                break
    if last == first:
        return None
    ordered = tuple(sorted(rows, key=lambda entry: entry.gsn_first))
    return Chunk(
        number=number,
        first=first,
        last=last,
        start=start,
        end=counted,
        rows=ordered,
        markers=tuple(markers),
        parts=_parts(ordered) if _is_more(ordered, ROWS_MAX, BYTES_MAX) else (0,),
    )


def _is_more(entries: Sequence[FrameEntry], rows: int, size: int) -> bool:
    return sum(e.row_count for e in entries) >= rows or sum(e.length_bytes for e in entries) >= size


def _parts(rows: Sequence[FrameEntry]) -> tuple[int, ...]:
    """Cut where no later frame has a gsn of an earlier one."""
    found, begin, last = [0], 0, 0
    for place, entry in enumerate(rows):
        enough = _is_more(rows[begin:place], ROWS_WANTED, BYTES_WANTED)
        if enough and entry.gsn_first > last:
            found.append(place)
            begin = place
        last = max(last, entry.gsn_last)
    return tuple(found)
