"""What the consumers' application needs of a log that is read where its node leaves it.

An engine whose nodes write their log into a directory for consumers has this as its part `direct`:
a function from the source's URL to a DirectLog. Nothing is extracted then, and there is no change
log: a consumer reads the directory alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import structlog

from penstock.host.clock import Clock
from penstock.host.files import Lock
from penstock.model import PenstockError
from penstock.model.segment_order import MISSED, SegmentOrder, already_processed

logger = structlog.get_logger(__name__)


class LogPlace(NamedTuple):
    """A place in the log: a segment, the offset of a record in it, an entry of the record."""

    segment: int
    offset: int
    entry: int


class Told(NamedTuple):
    """Something that a consumer is told of. stamp: another one when it has changed.

    read: makes what the consumer gets.
    """

    key: str
    stamp: Any
    read: Callable[[], Any]


class DirectWalk(Protocol):
    """The events of one segment, in order; see `codec/<engine>`.

    count: entries read so far. time_ms: when the node wrote the next one, or the last. unreadable:
    records so far with changes that cannot be read, as encrypted ones.
    """

    count: int
    unreadable: int
    time_ms: int

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...

    def skip(self, count: int) -> int:
        """Pass over so many entries; how many there were."""
        ...

    @property
    def is_drained(self) -> bool:
        """Whether every entry was read."""
        ...

    @property
    def place(self) -> Any:
        """Of the next entry, to be saved; at the end, behind the last one. None: nowhere."""
        ...


class DirectLog(Protocol):
    """The directory of one node. directory: where its segments for consumers are.

    hole_hint: how to go on where segments are missing. not_alive, stopping: what is logged when a
    consumer is not alive any more, and when it is stopped.
    """

    directory: Path
    hole_hint: str
    not_alive: str
    stopping: str

    def lock(
        self, timeout_ms: int | None, *, stop: Callable[[], bool], clock: Clock
    ) -> Lock | None:
        """Take the directory's lock; None when asked to stop. timeout_ms: None waits for ever."""
        ...

    def load_place(self) -> LogPlace | None:
        """The saved place."""
        ...

    def save_place(self, place: LogPlace) -> None:
        """Replace the saved place, durably."""
        ...

    def is_active(self) -> bool:
        """Whether consumers give events; else the node does, and they keep up with its state."""
        ...

    def save_active(self) -> None:
        """From now on consumers do."""
        ...

    def segments(self) -> list[int]:
        """The numbers of the segments that are there, in order."""
        ...

    def check_read(self, segments: Sequence[Path]) -> None:
        """Check that segments that the saved place is past were read. Raises what is wrong."""
        ...

    def remove(self, segment: int) -> None:
        """Remove a segment that is done with."""
        ...

    def path(self, segment: int) -> Path:
        """Of a segment."""
        ...

    def walk(self, segment: int, begin: int) -> DirectWalk:
        """The events of a segment from an offset on. Raises what reading it does."""
        ...

    def node_states(self, segment: int, begin: int) -> Iterator[LogPlace | None]:
        """The places that the node saved in a segment while it was active; None: it has stopped."""
        ...

    def mappings(self) -> list[Told]:
        """Ids of classes."""
        ...

    def types(self) -> list[Told]:
        """Types of objects."""
        ...

    def caches(self) -> list[Told]:
        """Tables, by their id."""
        ...

    def know_tables(self, names: Sequence[str]) -> None:
        """Recognize changes of these tables also if they were dropped before they were read."""
        ...

    def give_plain(self) -> None:
        """Give dates and times as Python's own from now on, where these hold them."""
        ...

    def load_told(self, name: str) -> dict[str, Any]:
        """What a consumer was told of, by key: its stamp. name: mappings, types or caches."""
        ...

    def save_told(self, name: str, told: dict[str, Any]) -> None:
        """Replace it, durably."""
        ...


class DirectListing:
    """Which segments of a directory are read next, as document 002's utility finds them.

    pending: the saved place, until a segment was read from it. is_active: whether the segments'
    events are ours to give; before, the node gives them.
    """

    def __init__(
        self,
        log: DirectLog,
        missed: Callable[[str, int, int], PenstockError],
        *,
        check_past: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        """Remember the directory, and what to call.

        Args:
            log: the directory.
            missed: makes the error for a gap, from its text and the segments around it.
            check_past: raises unless these segments, which the saved place is past, were read.
        """
        self._log = log
        self._missed = missed
        self._given: set[int] = set()
        self._processed: set[int] = set()
        self.pending: LogPlace | None = None
        self.is_active = False
        self._order = SegmentOrder(
            numbers=self._numbers, check_past=check_past, remove=self._remove, missed=missed
        )

    def load(self) -> None:
        """Read the saved state."""
        self.pending = self._log.load_place()
        self.is_active = self._log.is_active()

    @property
    def is_new(self) -> bool:
        """Whether no segment was ever there."""
        return self._order.last is None

    def new(self) -> list[int]:
        """Return the segments not returned before, once the whole listing is checked.

        Segments that the saved place is past are removed then. Raises what `missed` and
        `check_past` say.
        """
        saved = self.pending
        if saved is None:
            new = self._order.next(None)
        else:
            new = self._order.next(saved.segment, tuple(saved))
        self._given.update(new)
        return new

    def _numbers(self) -> list[int]:
        """List the directory. A number that appears late belongs to another life of the node."""
        there = self._log.segments()
        self._given.intersection_update(there)
        last = self._order.last
        late = [one for one in there if last is not None and one <= last]
        late = [one for one in late if one not in self._given]
        if last is not None and late:
            text = f"{MISSED}[lastSegment={last}, nextSegment={late[0]}]"
            raise self._missed(text, last, late[0])
        return there

    def _remove(self, segment: int) -> None:
        logger.info(already_processed(segment, self.pending and self.pending.segment))
        self._log.remove(segment)

    def begin_again(self) -> None:
        """The node has stopped to be active: everything is read again from the saved place on."""
        self._order.begin_again()
        self._given.clear()
        self.pending = self._log.load_place()

    def follow_node(self, segment: int, save: Callable[[LogPlace], None]) -> bool:
        """Save what the node saved in a segment; False when it says that it has stopped."""
        begin = self.pending.offset if self.pending is not None else 0
        for place in self._log.node_states(segment, begin):
            if place is None:
                self._log.save_active()
                self.is_active = True
                logger.info("CDC mode switched [mode=CDC_UTILITY_ACTIVE]")
                return False
            save(place)
        return True

    def processed(self, segment: int) -> None:
        """A segment was read to its end."""
        self._processed.add(segment)

    def remove_before(self, place: LogPlace) -> None:
        """The place is saved: remove the segments before it that were read."""
        for segment in sorted(one for one in self._processed if one < place.segment):
            self._log.remove(segment)
            self._processed.remove(segment)
