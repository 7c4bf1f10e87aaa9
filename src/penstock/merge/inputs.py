"""One log as an input of a merge: its transactions as they arrive, its rows on demand.

It is read as a consumer reads it: hard links keep its segments until the merged log has them, the
open one is read as far as it is durable. Commit times and markers of pending transactions are in
memory; the rows stay in their files. Not here: the order of transactions (`order.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.held import Holder
from penstock.codec.ckt import FrameEntry, FrameKind
from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.host.state_of_log import StateOfOtherLog
from penstock.log import links
from penstock.log.layout import (
    DONE_NAME,
    EXTENSION_DEFAULT,
    SegmentFile,
    SegmentMissing,
    list_segments,
    load_state,
    missing,
    segment_name,
)
from penstock.log.listing import Listing, ReaderErrors, SavedSegment
from penstock.log.segment import Segment, SegmentOpener
from penstock.merge.order import Global, Ints
from penstock.model import Marker, MarkerKind, Relation, Rows, TableName
from penstock.model.change import is_global_prefix
from penstock.model.segment_order import GREATER
from penstock.model.whole_number import parse_whole

PARTS_MAX = 1000  # of a global transaction: more sources do not exist

MARKER_WEIGHT = 0.1  # of a marker that is not a heartbeat


BEGIN_ANEW = (
    "It was created again, or its links were removed. Put the old log back; or give the new one's "
    "pipeline another name, so that it joins as another log."
)


class InputReplaced(StateOfOtherLog):
    """A log to merge is another one than before, or has lost changes that were not merged yet.

    Fields: place, expected, actual.
    """

    code = "MG02"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPlace:
    """Place of a log.

    Attributes:
        name: of its pipeline.
        links: the directory of our links to its segments.
        holder: holds states of its base, if the base is wanted.
        followed: returns its tables.
    """

    name: str
    log: Path
    links: Path
    extension: str = EXTENSION_DEFAULT
    files: Files = REAL_FILES
    holder: Holder | None = None
    followed: Callable[[], Collection[TableName]] = tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Transactions that were read, after the earlier ones.

    Attributes:
        first: the number of the first.
        weights: approximate row count of each.
    """

    first: int
    times_us: Ints
    weights: npt.NDArray[np.float64]
    globals: dict[int, Global]


@dataclass(slots=True, kw_only=True)
class Piece:
    """Rows of some transactions.

    Attributes:
        gsn: by the input's own numbers, one for each row.
        trx: by the input's own numbers, one for each row.
    """

    rows: Rows
    gsn: Ints
    trx: Ints


@dataclass
class _Held:
    """Segment with pending transactions or shapes.

    Attributes:
        entry_count: frames whose markers were taken.
    """

    number: int
    first: int
    segment: Segment | None = None
    is_closed: bool = False
    size_bytes: int = 0
    last: int = 0
    entry_count: int = 0
    shapes: list[tuple[int, Relation]] = field(default_factory=list)

    def is_needed(self, trx: int) -> bool:
        """Return whether it has a later transaction, or only a shape that was not returned."""
        return self.last > trx or (self.first > self.last and bool(self.shapes))


def _errors_of(place: InputPlace) -> ReaderErrors:
    """Return the errors of a merge that cannot continue in a log."""

    def make_missed(text: str, last: int, following: int) -> SegmentMissing:
        is_first = text.startswith(GREATER)  # then last is the missing one
        after = last - 1 if is_first else last
        return missing(place.links, after, following, extension=place.extension)

    return ReaderErrors(
        missed=make_missed,
        other_log=InputReplaced,
        state=f"what is merged of {place.name}",
        begin_anew=BEGIN_ANEW,
    )


class MergeInput:
    """One input. Used by one thread.

    Attributes:
        read_trx: the last transaction that was read.
        skew_us: how far the source's clock was ahead of its extractor's, by the last heartbeats;
            None before any.
    """

    def __init__(self, place: InputPlace, *, trx: int, number: int, log_id: str) -> None:
        """Continue after a transaction.

        Args:
            place: of the log.
            trx: the last merged transaction.
            number: of the segment that has the next one; -1: any.
            log_id: the log.
        """
        self.place = place
        self.name = place.name
        self.read_trx = trx
        self.log_id = log_id
        self.skew_us: int | None = None
        self._number = number
        self._is_pending = True
        self._found: deque[SegmentFile] = deque()
        self._held: deque[_Held] = deque()
        self._markers: deque[Marker] = deque()
        self._frames: dict[tuple[int, int], Piece] = {}
        self._listing = Listing(
            place.links,
            place.log,
            errors=_errors_of(place),
            extension=place.extension,
            reads_log=True,
            removes=False,  # transactions that were read are not merged yet: see release()
            files=place.files,
        )
        self._opener = SegmentOpener(place.extension, place.files)

    # -- reading -----------------------------------------------------------------------------

    def read(self) -> Chunk | None:
        """Return one segment's transactions after the last read one; None if there are none now.

        Raises InputReplaced, SegmentMissing and the errors of opening a segment.
        """
        if self._number < 0 and not self._begin():
            return None
        while file := self._next():
            held = self._open(file)
            self._found.popleft()
            end = held.segment.end.trx if held.segment is not None else 0
            if end > self.read_trx:
                return self._chunk(held, end)
            self._take_shapes(held)
        return None

    def _begin(self) -> bool:
        """Find the first segment: the oldest link, or the one that is written now.

        Links are listed last: a segment that is closed meanwhile has a link then.
        """
        durable = self._listing.durable()
        state = load_state(self.place.log, self.place.files)
        found = list_segments(self.place.links, self.place.extension, self.place.files)
        if found:
            self._number = found[0].number
        elif state is not None:
            self._number = max(state.number_next, durable.number if durable is not None else 0)
        return self._number >= 0

    def _next(self) -> SegmentFile | None:
        """Return the segment to read next; None if there is nothing new.

        Raises InputReplaced, SegmentMissing.
        """
        if not self._found:
            saved = SavedSegment(segment=self._number, log_id=self.log_id)
            self._found.extend(self._listing.look(saved, is_pending=self._is_pending))
            self._is_pending = self._is_pending and not self._found
        return self._found[0] if self._found else None

    def _open(self, file: SegmentFile) -> _Held:
        """Return the segment as it is now; an older view of it is closed."""
        held = self._held[-1] if self._held else None
        if held is None or held.number != file.number:
            if held is not None and held.segment is not None and len(self._held) > 1:
                held.segment.close()  # opened again for its rows
                held.segment = None
            held = _Held(number=file.number, first=self.read_trx + 1)
            self._held.append(held)
        size = file.durable.size_bytes if file.durable is not None else 0
        if held.segment is not None and held.is_closed:
            return held
        if held.segment is not None and file.is_open and held.size_bytes == size:
            return held
        try:
            segment = self._opener.open(file)
        except FileMissing:
            # It was closed and its name removed meanwhile: its link exists now.
            path = self.place.links / segment_name(file.number, self.place.extension)
            segment = self._opener.open(SegmentFile(number=file.number, path=path))
        try:
            self._check(segment)
        except InputReplaced:
            segment.close()
            raise
        if held.segment is not None:
            held.segment.close()
        held.segment, held.is_closed, held.size_bytes = segment, segment.is_closed, size
        return held

    def _check(self, segment: Segment) -> None:
        found = segment.header.log_id
        if self.log_id not in ("", found) or segment.start.trx > self.read_trx > 0:
            raise InputReplaced(
                f"the log of {self.name} is {found} and goes on behind transaction "
                f"{segment.start.trx}; merged are {self.read_trx} of log {self.log_id}",
                hint=BEGIN_ANEW,
                place=self.name,
                expected=self.log_id,
                actual=found,
            )
        self.log_id = found
        if not self.read_trx and segment.start.trx:
            self.read_trx = segment.start.trx
            self._held[-1].first = self.read_trx + 1

    def _chunk(self, held: _Held, end: int) -> Chunk:
        assert held.segment is not None, "it was opened"
        first = self.read_trx + 1
        batch = held.segment.transactions.between(first, end)
        weights = np.zeros(end - first + 1, np.float64)
        globals_: dict[int, Global] = {}
        for entry in held.segment.entries[held.entry_count :]:
            if entry.kind == FrameKind.ROWS:
                low, high = max(entry.trx_first, first), min(entry.trx_last, end)
                if low > high:
                    continue
                share = entry.row_count / (entry.trx_last - entry.trx_first + 1)
                weights[low - first : high - first + 1] += share
            elif entry.kind == FrameKind.MARKER:
                marker = held.segment.read_marker(entry)
                if marker.trx >= first:
                    self._take_marker(marker, weights, first, globals_)
            elif entry.kind == FrameKind.RELATION:
                held.shapes.append((entry.gsn_last, held.segment.relation(entry.relation_id)))
        held.entry_count = len(held.segment.entries)
        held.last, self.read_trx = end, end
        times = batch.column(2).view(pa.int64()).to_numpy().copy()
        return Chunk(first=first, times_us=times, weights=weights, globals=globals_)

    def _take_shapes(self, held: _Held) -> None:
        """Take the shapes of a segment that has no new transactions."""
        if held.segment is None:
            return
        for entry in held.segment.entries[held.entry_count :]:
            if entry.kind == FrameKind.RELATION:
                held.shapes.append((entry.gsn_last, held.segment.relation(entry.relation_id)))
        held.entry_count = len(held.segment.entries)
        held.last = max(held.last, self.read_trx)

    def _take_marker(
        self,
        marker: Marker,
        weights: npt.NDArray[np.float64],
        first: int,
        found: dict[int, Global],
    ) -> None:
        self._markers.append(marker)
        if marker.kind is MarkerKind.HEARTBEAT:
            ahead = marker.commit_time_us - int(marker.data.get("sent_us", 0))
            # The time to commit is never negative, so the smallest value is nearest.
            self.skew_us = ahead if self.skew_us is None else min(ahead, self.skew_us + 1000)
            return
        weights[marker.trx - first] += MARKER_WEIGHT
        prefix = str(marker.data.get("prefix", ""))
        if marker.kind is MarkerKind.MESSAGE and is_global_prefix(prefix):
            name = marker.data.get("content", marker.data.get("content_base64", ""))
            parts = prefix.rpartition("/")[2]
            found[marker.trx] = Global(
                id=str(name), parts=parse_whole(parts, PARTS_MAX, otherwise=0)
            )

    # -- results -----------------------------------------------------------------------------

    def source_ids(self, low: int, high: int) -> npt.NDArray[np.uint64]:
        """Return the source's own ids of transactions low to high; 0 if they are texts."""
        found = []
        for held, first, last in self._over(low, high):
            ids = self._segment(held).transactions.between(first, last).column(3)
            is_number = pa.types.is_integer(ids.type)
            found.append(ids.to_numpy() if is_number else np.zeros(len(ids), np.uint64))
        return np.concatenate(found)

    def gsn_end(self, trx: int) -> int:
        """Return the number of the last row of a held transaction; if it has none, of the row
        before it.
        """
        held = next(one for one in self._held if one.last > trx or one is self._held[-1])
        segment = self._segment(held)
        end = segment.start.gsn
        for entry in segment.row_frames():
            if entry.trx_last <= trx:
                end = max(end, entry.gsn_last)
            elif entry.trx_first <= trx:
                piece = self._piece(held, entry)
                count = int(np.searchsorted(piece.trx, trx, "right"))
                end = max(end, int(piece.gsn[count - 1]))
        return end

    def pieces(self, low: int, high: int) -> Iterator[list[Piece]]:
        """Yield the rows of transactions low to high, by segment and then by overlapping frames."""
        for held, first, last in self._over(low, high):
            group: list[FrameEntry] = []
            reach = 0
            entries = [
                entry
                for entry in self._segment(held).row_frames()
                if entry.trx_first <= last and entry.trx_last >= first
            ]
            for entry in sorted(entries, key=lambda entry: entry.gsn_first):
                if group and entry.gsn_first > reach:
                    yield [self._cut(held, one, first, last) for one in group]
                    group = []
                group.append(entry)
                reach = max(reach, entry.gsn_last)
            if group:
                yield [self._cut(held, one, first, last) for one in group]

    def markers(self, high: int) -> list[Marker]:
        """Return the markers up to this transaction that were not returned before."""
        found = []
        while self._markers and self._markers[0].trx <= high:
            found.append(self._markers.popleft())
        return found

    def shapes(self, gsn: int) -> list[Relation]:
        """Return shapes that were current at row gsn and were not returned before."""
        found = []
        for held in self._held:
            while held.shapes and held.shapes[0][0] <= gsn:
                found.append(held.shapes.pop(0)[1])
        return found

    def forget(self, trx: int) -> None:
        """Forget everything up to a transaction, which was passed on."""
        while len(self._held) > 1 and not self._held[0].is_needed(trx):
            held = self._held.popleft()
            if held.segment is not None:
                held.segment.close()
        numbers = {held.number for held in self._held}
        self._frames = {
            key: piece
            for key, piece in self._frames.items()
            if key[0] in numbers and int(piece.trx[-1]) > trx
        }

    def drop_frames(self) -> None:
        """Drop rows that were read of a transaction that does not fit in memory."""
        self._frames.clear()

    def number_of(self, trx: int) -> int:
        """Return the segment that has the transaction after this one, or will have it."""
        held = next((one for one in self._held if one.is_needed(trx)), None)
        if held is not None:
            return held.number
        return self._held[-1].number + self._held[-1].is_closed if self._held else self._number

    def release(self, number: int) -> None:
        """Remove links before this segment: the merged log has their changes, durably."""
        links.release(
            self.place.links,
            through=number - 1,
            log_id=self.log_id,
            extension=self.place.extension,
            files=self.place.files,
        )

    def _over(self, low: int, high: int) -> Iterator[tuple[_Held, int, int]]:
        """Yield the segments that have these transactions, each with its first and last."""
        for held in tuple(self._held):
            first, last = max(low, held.first), min(high, held.last)
            if first <= last:
                yield held, first, last

    def _segment(self, held: _Held) -> Segment:
        if held.segment is None:
            path = self.place.links / segment_name(held.number, self.place.extension)
            held.segment = self._opener.open(SegmentFile(number=held.number, path=path))
            held.is_closed = True
        return held.segment

    def _piece(self, held: _Held, entry: FrameEntry) -> Piece:
        key = (held.number, entry.offset_bytes)
        found = self._frames.get(key)
        if found is None:
            rows = self._segment(held).read_rows(entry)
            found = self._frames[key] = Piece(
                rows=rows,
                gsn=rows.batch.column(0).to_numpy(),
                trx=rows.batch.column(1).to_numpy(),
            )
        return found

    def _cut(self, held: _Held, entry: FrameEntry, first: int, last: int) -> Piece:
        """Return a frame's rows of these transactions."""
        whole = self._piece(held, entry)
        low = int(np.searchsorted(whole.trx, first, "left"))
        high = int(np.searchsorted(whole.trx, last, "right"))
        batch = whole.rows.batch.slice(low, high - low)
        return Piece(
            rows=Rows(relation=whole.rows.relation, batch=batch),
            gsn=whole.gsn[low:high],
            trx=whole.trx[low:high],
        )

    # -- its state ---------------------------------------------------------------------------

    def durable_trx(self) -> int:
        """Return how far the log is durable, as far as that is known without reading it."""
        state = load_state(self.place.log, self.place.files)
        durable = self._listing.durable()
        return max(
            durable.end.trx if durable is not None else 0,
            state.end.trx if state is not None else 0,
        )

    def is_done(self) -> bool:
        """Return whether the log's extraction has ended and everything was read."""
        done = self.place.files.exists(self.place.log / DONE_NAME)
        return done and self.durable_trx() <= self.read_trx

    def wait(self, timeout_s: float) -> None:
        """Wait until more is durable, at most this long."""
        self._listing.wait(timeout_s)

    def close(self) -> None:
        """Close the files."""
        self._listing.close()
        for held in self._held:
            if held.segment is not None:
                held.segment.close()
        self._held.clear()
        self._frames.clear()
