"""Log that is served: its durable end, and its segments, shared by all readers.

A segment is found under the link that the server holds, or under the log's own name; the open one
is read up to its durable end.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.log.frames import FrameReader
from penstock.log.layout import SegmentFile, list_segments, load_state, open_name, segment_name
from penstock.log.segment import LogFollower, Segment, SegmentOpener, open_segment
from penstock.model import FlushPoint, PenstockError
from penstock.serve import numbers
from penstock.serve.chunks import Counted

_OPEN_MAX = 4  # closed segments that stay open between looks


class LogNotBegun(PenstockError):
    """There is no change log yet, and so no position to serve."""

    code = "SV02"
    retry = "backoff"


class SegmentGone(PenstockError):
    """A segment that a client needs is gone. Fields: segment."""

    code = "SV03"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Durable end of the log.

    Attributes:
        number: of the segment of the end, or of the next one.
        is_open: that segment exists, and may be read up to here.
    """

    log_id: str
    engine: str
    number: int
    end: FlushPoint
    is_open: bool

    def is_before(self, other: Head) -> bool:
        """Return whether the log was shorter than at another look."""
        return (self.end.trx, self.number) < (other.end.trx, other.number)

    @property
    def position(self) -> int:
        """LSN of the end."""
        return numbers.end_of(self.end.gsn, self.end.trx)


class SourceLog:
    """One log. Used by several threads, except `wait`, which is for one."""

    def __init__(
        self, directory: Path, links: Path, *, extension: str, files: Files = REAL_FILES
    ) -> None:
        """Set the directories; `links` has the server's own names of segments."""
        self.directory, self.links = directory, links
        self.extension, self.files = extension, files
        self._follower = LogFollower(directory, extension, files)
        self._waiter = LogFollower(directory, extension, files)
        self._opener = SegmentOpener(extension, files)
        self._lock = threading.Lock()
        self._head: Head | None = None
        self._state_read: tuple[str, str] | None = None
        self._kept: OrderedDict[int, _Shared] = OrderedDict()

    def head(self) -> Head:
        """Return the present durable end; it never goes back. Raises LogNotBegun."""
        with self._lock:
            durable = self._follower.durable()
            last = self._head
            if durable is not None and last is not None and durable.end.trx == last.end.trx:
                same = durable.number == last.number and durable.end.gsn == last.end.gsn
                # Closing the segment does not write the mark again.
                if same and last.is_open and self._is_open(last.number):
                    return last
            state = load_state(self.directory, self.files)
            if state is None:
                raise LogNotBegun(
                    f"there is no change log in {self.directory}",
                    hint="Begin it: penstock extract FILE, or penstock run FILE.",
                )
            is_open = durable is not None and durable.number >= state.number_next
            number, end = state.number_next, state.end
            if is_open and durable is not None:
                number, end = durable.number, durable.end
            engine = state.source.get("flavour") or state.source.get("engine", "")
            found = Head(
                log_id=state.log_id, engine=engine, number=number, end=end, is_open=is_open
            )
            if last is not None and found.is_before(last):
                return last  # the two files are not written at the same moment
            self._head = found
            return found

    def _is_open(self, number: int) -> bool:
        """Return whether a segment has the name that it has while it is written."""
        return self.files.exists(self.directory / open_name(number, self.extension))

    def wait(self, timeout_s: float) -> None:
        """Wait until more is durable in the log, at most this long. Used by one thread."""
        self._waiter.wait(timeout_s)

    @contextmanager
    def segment(self, number: int, head: Head) -> Iterator[Segment]:
        """Open a segment for reading; `head` was read before the request. Raises SegmentGone."""
        found = self._find_closed(number) or self._find_open(number) or self._find_closed(number)
        if found is None:  # it may have been closed between the first two looks
            raise self._make_gone(number, head)
        try:
            yield found.segment
        finally:
            self._give_back(found)

    def first_kept(self) -> int | None:
        """Return the lowest readable segment without a gap up to the last closed one."""
        found = {
            file.number
            for directory in (self.links, self.directory)
            for file in list_segments(directory, self.extension, self.files)
        }
        if not found:
            return None
        first = max(found)
        while first - 1 in found:
            first -= 1
        return first

    def close(self) -> None:
        """Close the files; there are no readers any more."""
        self._follower.close()
        self._waiter.close()
        for shared in self._kept.values():
            shared.segment.close()
        self._kept.clear()

    def _find_closed(self, number: int) -> _Shared | None:
        """Return a closed segment, counted with one more reader; None if it is not closed or does
        not exist.
        """
        with self._lock:
            shared = self._kept.get(number)
            if shared is None:
                for directory in (self.links, self.directory):
                    path = directory / segment_name(number, self.extension)
                    with suppress(FileMissing):
                        found = open_segment(path, extension=self.extension, files=self.files)
                        shared = self._kept[number] = _Shared(segment=found)
                        break
            if shared is None:
                return None
            self._kept.move_to_end(number)
            shared.readers += 1
            for other in [n for n, one in self._kept.items() if not one.readers]:
                if len(self._kept) <= _OPEN_MAX:
                    break
                self._kept.pop(other).segment.close()
            return shared

    def _give_back(self, shared: _Shared) -> None:
        with self._lock:
            shared.readers -= 1
            if not shared.segment.is_closed:
                shared.segment.close()

    def _find_open(self, number: int) -> _Shared | None:
        """Return the open segment up to its durable end; None if it is not the open one."""
        with self._lock:
            durable = self._follower.durable()
            if durable is None or durable.number != number:
                return None
            path = self.directory / open_name(number, self.extension)
            file = SegmentFile(number=number, path=path, is_open=True, durable=durable)
            try:
                return _Shared(segment=self._opener.open(file), readers=1)
            except FileMissing:
                return None

    def _make_gone(self, number: int, head: Head) -> SegmentGone:
        return SegmentGone(
            f"segment {number} of the log is not there any more; the log is at {head.number}",
            hint="A client that needs it must begin again: drop its slot, and let it copy again.",
            segment=number,
        )

    def start_of(self, number: int) -> int:
        """Return the LSN where a segment begins. Raises SegmentGone."""
        return self.counted_at(number).position

    def counted_at(self, number: int) -> Counted:
        """Return the counters where a closed segment, or the open one, begins. Raises
        SegmentGone.
        """
        names = (
            self.links / segment_name(number, self.extension),
            self.directory / segment_name(number, self.extension),
            self.directory / open_name(number, self.extension),
            self.directory / segment_name(number, self.extension),
        )
        for path in names:
            with suppress(FileMissing):
                file = self.files.open_read(path)
                try:
                    start = FrameReader(file).header.start
                finally:
                    file.close()
                return Counted(gsn=start.gsn, trx=start.trx)
        raise self._make_gone(number, self.head())


@dataclass(slots=True, kw_only=True)
class _Shared:
    """Closed segment and the number of its present readers."""

    segment: Segment
    readers: int = 0
