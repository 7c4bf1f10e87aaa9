"""Chunks: pieces of a segment that end at a flush point, where whole transactions end.

A chunk that is too large for the memory is encoded in parts: as many rows as fit into memory,
counted as they are once decompressed. The index of a segment has only compressed sizes, and similar
rows compress 200 to 1. So a part is cut after its rows were read, even inside a frame. A frame that
is read in several parts is kept while there is room, because it is decompressed whole.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.codec.ckt import FrameEntry, FrameKind
from penstock.log.segment import Segment
from penstock.model import Rows
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


PART_ROWS_WANTED, PART_BYTES_WANTED = 65_536, 6 << 20  # of one part
FRAMES_KEPT_BYTES = 64 << 20
_VALUE_BYTES = 16  # overhead of a value in a message
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows of a chunk that are encoded together.

    Attributes:
        rows: batches that rise by their first gsn; all rows up to `gsn` that no earlier part has.
        gsns: their numbers, sorted.
        trxs: their transactions, which rise with the numbers.
        gsn: number of the last row; without rows the end of the previous part.
        later: frames with rows of later parts, by gsn; some may be in this part as well.
        trx_next: transaction of the first later row; 0 if there is none.
    """

    rows: tuple[Rows, ...]
    gsns: Ints
    trxs: Ints
    gsn: int
    later: tuple[FrameEntry, ...]
    trx_next: int


class RowsReader:
    """Reads rows frames, and keeps those that have more rows to give. Used by several threads."""

    def __init__(self, kept_bytes: int = FRAMES_KEPT_BYTES) -> None:
        """Set the limit for the decompressed size of all kept frames."""
        self._room = kept_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], Rows] = OrderedDict()

    def read(self, segment: Segment, entry: FrameEntry) -> Rows:
        """Return the rows of a frame. Raises SegmentCorrupt."""
        key = (segment.header.file_id, entry.offset_bytes)
        with self._lock:
            rows = self._kept.get(key)
            if rows is not None:
                self._kept.move_to_end(key)
                return rows
        return segment.read_rows(entry)

    def keep(self, segment: Segment, entry: FrameEntry, rows: Rows) -> None:
        """Keep a frame whose rows the next part needs; drop the least recently used ones."""
        key = (segment.header.file_id, entry.offset_bytes)
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = rows
            self._room -= rows.batch.nbytes
            while self._room < 0:
                _, oldest = self._kept.popitem(last=False)
                self._room += oldest.batch.nbytes


@dataclass(slots=True, kw_only=True)
class _Read:
    """Frame that was read: its rows after the previous part, and the weight of each."""

    entry: FrameEntry
    whole: Rows
    gsns: Ints
    trxs: Ints
    first: int
    row_bytes: float

    def place_of(self, gsn: int) -> int:
        """Return the place of the first row after a number."""
        return int(np.searchsorted(self.gsns, gsn, "right"))


def read_part(
    segment: Segment, rows: Sequence[FrameEntry], gsn_after: int, reader: RowsReader
) -> Part:
    """Read the part of a chunk after a number.

    Args:
        segment: segment of the frames.
        rows: the chunk's rows frames, by their first gsn.
        gsn_after: number of the last row that is not read again.
        reader: reads them.

    Raises:
        SegmentCorrupt: a frame does not match its checksum.
    """
    wanted = [entry for entry in rows if entry.gsn_last > gsn_after]
    found: list[_Read] = []
    end = gsn_after
    for count, entry in enumerate(wanted, 1):
        found.append(_read(segment, entry, gsn_after, reader))
        is_last = count == len(wanted)
        # Frames that were not read have rows from the next one's first number on.
        gsns, sizes = _weigh(found, None if is_last else wanted[count].gsn_first - 1)
        fits = min(int(np.searchsorted(sizes, PART_BYTES_WANTED, "right")), PART_ROWS_WANTED)
        if len(gsns) and (is_last or fits < len(gsns) or fits == PART_ROWS_WANTED):
            end = int(gsns[max(fits, 1) - 1])
            break
    later = tuple(entry for entry in wanted if entry.gsn_last > end)
    for one in found:
        if one.entry.gsn_last > end:
            reader.keep(segment, one.entry, one.whole)
    return _part(found, end, later)


def _read(segment: Segment, entry: FrameEntry, gsn_after: int, reader: RowsReader) -> _Read:
    whole = reader.read(segment, entry)
    batch = whole.batch
    gsns = batch.column("gsn").to_numpy()
    values = (len(whole.relation.columns) + 1) * _VALUE_BYTES
    return _Read(
        entry=entry,
        whole=whole,
        gsns=gsns,
        trxs=batch.column("trx").to_numpy(),
        first=int(np.searchsorted(gsns, gsn_after, "right")),
        row_bytes=batch.nbytes / batch.num_rows + values,
    )


def _weigh(found: Sequence[_Read], whole: int | None) -> tuple[Ints, np.ndarray[Any, Any]]:
    """Return the numbers of rows up to `whole`, sorted, and the bytes up to each."""
    numbers, sizes = [], []
    for one in found:
        some = one.gsns[one.first : None if whole is None else one.place_of(whole)]
        numbers.append(some)
        sizes.append(np.full(len(some), one.row_bytes))
    gsns = np.concatenate(numbers)
    order = np.argsort(gsns, kind="stable")
    return gsns[order], np.cumsum(np.concatenate(sizes)[order])


def _part(found: Sequence[_Read], end: int, later: tuple[FrameEntry, ...]) -> Part:
    rows, gsns, trxs = [], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    following = [(entry.gsn_first, entry.trx_first) for entry in later]
    for one in found:
        stop = one.place_of(end)
        if stop < len(one.gsns):
            following.append((int(one.gsns[stop]), int(one.trxs[stop])))
            following.remove((one.entry.gsn_first, one.entry.trx_first))
        if stop > one.first:
            batch = one.whole.batch.slice(one.first, stop - one.first)
            rows.append(replace(one.whole, batch=batch))
            gsns.append(one.gsns[one.first : stop])
            trxs.append(one.trxs[one.first : stop])
    return Part(
        rows=tuple(rows),
        gsns=np.sort(np.concatenate(gsns)),
        trxs=np.sort(np.concatenate(trxs)),
        gsn=end,
        later=later,
        trx_next=min(following)[1] if following else 0,
    )
