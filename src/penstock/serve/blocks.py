"""Encoded blocks, shared by all clients of the same bytes, and a client's place in the log.

Worker threads make the blocks; a block is kept while there is room.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.serve import numbers
from penstock.serve.chunks import Chunk, Counted, RowsReader, next_chunk
from penstock.serve.encode import Block, Unsaid, Views, encode
from penstock.serve.hybrid import HybridTimes
from penstock.serve.source_log import Head, SegmentGone, SourceLog

CACHE_BYTES = 64 << 20
LIVE_BYTES = 192 << 20  # of all blocks, kept or being sent; above this none is made ahead
WORKERS = 2
_ENTRY_BYTES, _BORDER_BYTES = 4096, 64  # of an entry, without its block; of each border


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a client: before an entry of a segment, or inside the chunk that begins there.

    Attributes:
        number: of the segment.
        entry: place in its index.
        counted: the log's counters at the entry.
        gsn: number of the last row of the parts that the client has; 0 for none.
        open_trx: see `Block`.
        unsaid: see `Block`.
    """

    number: int
    entry: int
    counted: Counted
    gsn: int = 0
    open_trx: int = 0
    unsaid: Unsaid = field(default=Unsaid(), compare=False)  # follows from the rest


class _Key(NamedTuple):
    """Everything that a block depends on."""

    views: int
    place: Place
    seen: tuple[int, int] | None
    borders: frozenset[int]
    passed: int
    numbering: int


class Made(NamedTuple):
    """Result at a place.

    Attributes:
        block: None if a client has it.
        behind: the place after it.
    """

    block: Block | None
    behind: Place


class Blocks:
    """Makes and keeps blocks. The event loop's thread uses it; other threads do the work."""

    def __init__(
        self,
        log: SourceLog,
        *,
        hybrid: HybridTimes | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Start the threads.

        Args:
            log: the log.
            hybrid: the numbers of forms whose LSNs are commit times.
            cache_bytes: size of kept blocks, besides those being sent.
        """
        self._log, self._hybrid, self._reader = log, hybrid, RowsReader()
        self._room = cache_bytes
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="encode")
        self._kept: OrderedDict[_Key, asyncio.Future[Made | None]] = OrderedDict()
        self._sizes: dict[_Key, int] = {}
        self.made_count, self.live_bytes = 0, 0
        self._counting = threading.RLock()  # a block may end while another one is counted
        self._numbering = 0

    async def next(
        self, place: Place, views: Views, head: Head, borders: frozenset[int], has: int
    ) -> Made | None:
        """Return the block after a place; None if nothing after it is durable.

        Raises Refused, SegmentGone, SegmentCorrupt.

        Args:
            place: the place.
            views: of the publications there.
            head: the end of the log.
            borders: see `next_chunk`.
            has: an LSN; whole chunks before it are skipped.
        """
        passed = has if has > place.counted.position else 0
        # The open segment has more each time; a closed one is the same for all clients.
        seen = (head.end.trx, head.end.gsn) if place.number >= head.number else None
        key = _Key(id(views), place, seen, borders, passed, self._numbering)
        found = self._kept.get(key)
        if found is None:
            loop = asyncio.get_running_loop()
            found = loop.run_in_executor(
                self._workers, self._make, place, views, head, borders, passed
            )
            self._kept[key] = found
            found.add_done_callback(lambda done: self._note_made(key, done))
        self._kept.move_to_end(key)
        return await asyncio.shield(found)

    @property
    def has_room(self) -> bool:
        """Return whether a block may be made before the client has read the previous one."""
        return self.live_bytes < LIVE_BYTES

    def _count(self, size_bytes: int) -> None:
        with self._counting:
            self.live_bytes += size_bytes

    def forget(self, views: Views) -> None:
        """Forget the blocks of views that are no longer used."""
        for key in [key for key in self._kept if key.views == id(views)]:
            self._drop(key)

    def renumber(self) -> None:
        """Start commit-time numbers again: blocks with the previous numbers are not returned."""
        self._numbering += 1

    def close(self) -> None:
        """End the threads."""
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _note_made(self, key: _Key, done: asyncio.Future[Made | None]) -> None:
        if key not in self._kept:
            return
        if done.cancelled() or done.exception() is not None or done.result() is None:
            self._drop(key)  # asked again, it may be there
            return
        made = done.result()
        size = _ENTRY_BYTES + len(key.borders) * _BORDER_BYTES
        size += made.block.size_bytes if made is not None and made.block is not None else 0
        self.made_count += 1
        self._sizes[key] = size
        self._room -= size
        while self._room < 0 and self._sizes:
            oldest = next(one for one in self._kept if one in self._sizes)
            self._drop(oldest)

    def _drop(self, key: _Key) -> None:
        self._kept.pop(key, None)
        self._room += self._sizes.pop(key, 0)

    def _make(
        self, place: Place, views: Views, head: Head, borders: frozenset[int], passed: int
    ) -> Made | None:
        try:
            with self._log.segment(place.number, head) as segment:
                chunk = next_chunk(
                    place.number, segment.entries, place.entry, place.counted, borders
                )
                if chunk is None:
                    if not segment.is_closed:
                        return None
                    return Made(None, _next_segment(place))
                if chunk.end.position <= passed:
                    return Made(None, _behind(chunk, place))
                times = None
                if views.form.hybrid:
                    assert self._hybrid is not None, "a slot of such numbers has been made"
                    times = self._hybrid.of(segment, head)
                block = encode(
                    segment,
                    chunk,
                    place.gsn or place.counted.gsn,
                    views,
                    reader=self._reader,
                    open_trx=place.open_trx,
                    unsaid=place.unsaid,
                    times=times,
                )
                size = block.size_bytes
                self._count(size)
                weakref.finalize(block, self._count, -size).atexit = False
        except SegmentGone:
            if place.number >= head.number and place.counted.position >= head.position:
                return None  # the next segment has not begun
            raise
        if not block.position:
            behind = replace(place, gsn=block.gsn, open_trx=block.open_trx, unsaid=block.unsaid)
            return Made(block, behind)
        return Made(block, _behind(chunk, place))


def _behind(chunk: Chunk, place: Place) -> Place:
    return Place(number=place.number, entry=chunk.last, counted=chunk.end)


def _next_segment(place: Place) -> Place:
    return Place(number=place.number + 1, entry=0, counted=place.counted)


def find_place(log: SourceLog, position: int) -> Place:
    """Return the start of a segment from which everything after an LSN can be read.

    Raises SegmentGone if that segment is gone.
    """
    head, position = log.head(), max(position, numbers.BEFORE_ALL)
    begin = Counted(gsn=head.end.gsn, trx=head.end.trx)
    if position >= head.position and not head.is_open:
        return Place(number=head.number, entry=0, counted=begin)
    first = log.first_kept()
    high = head.number if head.is_open else head.number - 1
    low = high if first is None else min(first, high)
    # Segments are consecutive: find the last one that begins at the position or before.
    if log.start_of(low) > position:
        raise SegmentGone(
            f"the log begins after the position: segment {low} is the oldest one",
            hint="Drop the slot, and let the client copy again.",
            segment=low,
        )
    while low < high:
        middle = (low + high + 1) // 2
        if log.start_of(middle) <= position:
            low = middle
        else:
            high = middle - 1
    return Place(number=low, entry=0, counted=log.counted_at(low))
