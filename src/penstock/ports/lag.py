"""Questions that a source is asked repeatedly: its position, what we lack, and what it keeps.

Not here: the conclusions (`penstock.control.status.lag`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.model import FlushPoint
from penstock.ports.config import Config
from penstock.ports.registry import PartName, part

NOTHING = FlushPoint(position=0)

LOOKS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """End of the log.

    Attributes:
        end: the newest known durable flush point.
        number_next: number of the open segment, or of the next one.
        segments: number of closed segments on disk.
        size_bytes: size of all segments' files.
        done: whether CHANGE.DONE exists.
        has_writer: whether a process extracts into it now.
        watermark_us: watermark of the log's extractor, read before the other fields; see
            `Watermark`.
    """

    log_id: str = ""
    end: FlushPoint = NOTHING
    number_next: int = 0
    segments: int = 0
    size_bytes: int = 0
    done: bool = False
    has_writer: bool = False
    watermark_us: int = 0


def _difference(first: int, last: int) -> int:
    return last - first


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Log of the source that we lack. commit_us: of its first transaction, or None."""

    commit_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """State of the source.

    Attributes:
        position: Its position; 0 if there is none.
        now_us: The source's clock when it was asked, microseconds since 1970 UTC: commit times are
            its times too.
        slot_exists: Whether there is a slot. A server without slots does not know this pipeline:
            then it says that there is a log, slot_active that an extractor runs, confirmed is the
            log's end; and unread is set.
        confirmed: The slot's confirmed position; 0 if there is none.
        counts_bytes: Whether positions say how many bytes lie between them, or that none do.
        bytes_between: Returns bytes of the source's log between two positions; also called after
            the reader is closed.
    """

    position: int
    now_us: int
    slot_exists: bool
    slot_active: bool
    confirmed: int
    unread: Unread | None = None
    counts_bytes: bool = True
    bytes_between: Callable[[int, int], int] = _difference

    @property
    def slot_lag_bytes(self) -> int:
        """Bytes that the source has written after the slot's confirmed position."""
        return self.bytes_behind(self.confirmed) if self.slot_exists else 0

    def bytes_behind(self, position: int) -> int:
        """Return the bytes that the source has written after a position."""
        return max(self.bytes_between(position, self.position), 0)


class Watermark:
    """Time on the source's clock before which every commit is in the log.

    Derived from looks at the source: once the log has reached the position that the source had at a
    time, it has everything that was committed until then. Used by one thread.
    """

    def __init__(self) -> None:
        """Begin without knowledge."""
        self._us = 0
        self._looks: deque[tuple[int, int]] = deque()

    def look(self, position: int, now_us: int) -> None:
        """Note the source's position. now_us: its clock, read before the position."""
        while self._looks and self._looks[-1][0] >= position:
            self._looks.pop()  # a later time at the same position; or another server's positions
        self._looks.append((position, now_us))
        if len(self._looks) > LOOKS_MAX:
            self._looks = deque(list(self._looks)[::2])  # far behind, coarse looks will do

    def note_reached(self, position: int) -> int:
        """Note that the log has everything before position; return the watermark, or 0."""
        while self._looks and self._looks[0][0] <= position:
            self._us = max(self._us, self._looks.popleft()[1])
        return self._us


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Log that the source keeps because this pipeline has not confirmed it yet.

    Servers of MySQL's family keep no log for us: there it is all that they keep.

    Attributes:
        size_bytes: Its size.
        age_s: Seconds since its oldest file was last written; None if the role may not ask.
        left_bytes: Bytes that may still be written before the source deletes it; None if it never
            does.
        state: The server's own term (reserved, extended, unreserved, lost).
        expires_s: The age at which a server of MySQL's family deletes a file; None if it never
            does.
    """

    size_bytes: int
    age_s: float | None
    left_bytes: int | None
    state: str
    expires_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the object as the JSON of the web interface has it."""
        return {
            "size_bytes": self.size_bytes,
            "age_seconds": None if self.age_s is None else round(self.age_s, 1),
            "left_bytes": self.left_bytes,
            "state": self.state,
            "expires_seconds": self.expires_s,
        }


class SourceReader(Protocol):
    """Reader of the source. Used by one thread; every error is typed."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Return whether the connection is closed or lost."""
        ...

    @abstractmethod
    def state(self, log: LogEnd) -> SourceState:
        """Return the source's position, and what it has written after the end of our log."""
        ...

    @abstractmethod
    def retention(self) -> Retention | None:
        """Return the log that the source keeps; None if it keeps none for us."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""
        ...


LAG_PART: PartName[Callable[[Config, str], SourceReader]] = PartName("lag")


def open_source(config: Config, *, application_name: str) -> SourceReader:
    """Connect to a pipeline's source of any engine, by its URL."""
    return part(config.source.url, LAG_PART)(config, application_name)
