"""What a source is asked again and again: its position, what we lack, and what it keeps.

Not here: what follows from the answers (`penstock.control.lag`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.model import FlushPoint
from penstock.ports.config import Config
from penstock.ports.registry import part

NOTHING = FlushPoint(position=0)
LOOKS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """How far the log goes.

    end: the newest durable flush point that is known. number_next: of the segment that is open or
    opened next. segments: closed ones on disk; size_bytes: all segments' files. done: CHANGE.DONE
    is there. has_writer: a process extracts into it now. watermark_us: that of an extractor of this
    log, as noted before the rest of this was read; see `Watermark`.
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
    """What a source says of its log behind ours. commit_us: of its first transaction, or None."""

    commit_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """Where the source is. Positions are 0 where there is none; bytes behind the slot with them.

    counts_bytes: whether positions tell how much lies between them, or that nothing does.
    now_us: the source's clock when it was asked, microseconds since 1970 UTC: commit times are of
    it. A server without slots does not know this pipeline: there slot_exists says that there is a
    log, slot_active that an extractor runs, confirmed is the log's end; and unread is set.
    bytes_between: of the source's log between two positions; also called after the reader is
    closed.
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
        """What the source has written behind the slot's confirmed position."""
        return self.bytes_behind(self.confirmed) if self.slot_exists else 0

    def bytes_behind(self, position: int) -> int:
        """What the source has written behind a position."""
        return max(self.bytes_between(position, self.position), 0)


class Watermark:
    """A moment of the source's clock before which every commit is in the log.

    Derived from looks at the source: once the log has reached the position that the source had at a
    moment, it has everything that was committed until then. For one thread.
    """

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._us = 0
        self._looks: deque[tuple[int, int]] = deque()

    def look(self, position: int, now_us: int) -> None:
        """The source was at a position. now_us: its clock, read before the position."""
        while self._looks and self._looks[-1][0] >= position:
            self._looks.pop()  # later at the same place; or another server's positions
        self._looks.append((position, now_us))
        if len(self._looks) > LOOKS_MAX:
            self._looks = deque(list(self._looks)[::2])  # far behind, it may be coarse

    def reached(self, position: int) -> int:
        """The log has everything before position: the watermark, 0 where it is not known."""
        while self._looks and self._looks[0][0] <= position:
            self._us = max(self._us, self._looks.popleft()[1])
        return self._us


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What the source keeps because this pipeline has not confirmed it yet.

    size_bytes: of its log. age_s: since the oldest file of it was last written; None where the
    role may not ask. left_bytes: what may still be written before the source throws it away; None
    where it never does. state: the server's own term (reserved, extended, unreserved, lost).
    Servers of MySQL's family keep nothing for us: there it is all that they keep, and expires_s is
    the age at which they delete a file; None where they never do.
    """

    size_bytes: int
    age_s: float | None
    left_bytes: int | None
    state: str
    expires_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """As the web interface's JSON has it."""
        return {
            "size_bytes": self.size_bytes,
            "age_seconds": None if self.age_s is None else round(self.age_s, 1),
            "left_bytes": self.left_bytes,
            "state": self.state,
            "expires_seconds": self.expires_s,
        }


class SourceReader(Protocol):
    """Who asks the source. Used by one thread; every error comes out typed."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        ...

    def state(self, log: LogEnd) -> SourceState:
        """The source's position, and what it has written behind our log."""
        ...

    def retention(self) -> Retention | None:
        """What the source keeps of its log; None where it keeps nothing for us."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_source(config: Config, *, application_name: str) -> SourceReader:
    """Connect to a pipeline's source, whichever engine its URL names."""
    opened: Callable[[Config, str], SourceReader] = part(config.source.url, "lag")
    return opened(config, application_name)
