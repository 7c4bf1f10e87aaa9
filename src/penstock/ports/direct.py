"""Port of the consumers' application to a log that is read where its node writes it.

An engine whose nodes write their log into a directory for consumers has this as its part `direct`:
a function from the source's URL to a DirectLog. Then penstock extracts nothing and writes no change
log: a consumer reads only the directory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import structlog

from penstock.host.clock import Clock
from penstock.host.files import Lock
from penstock.model import PenstockError
from penstock.model.segment_order import MISSED, SegmentOrder, already_processed
from penstock.ports.registry import PartName

logger = structlog.get_logger(__name__)


class LogPlace(NamedTuple):
    """Place in the log: a segment, the offset of a record in it, an entry of the record."""

    segment: int
    offset: int
    entry: int


class Told(NamedTuple):
    """Fact that a consumer is told of.

    Attributes:
        stamp: Differs if the fact has changed.
        read: Returns the value for the consumer.
    """

    key: str
    stamp: Any
    read: Callable[[], Any]


class DirectWalk(Protocol):
    """Events of one segment, in order; see `codec/<engine>`.

    Attributes:
        count: Entries read so far.
        unreadable: Records so far with changes that cannot be read, such as encrypted ones.
        time_ms: When the node wrote the next entry, or the last.
    """

    count: int
    unreadable: int
    time_ms: int

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...

    def skip(self, count: int) -> int:
        """Skip so many entries; return how many there were."""
        ...

    @property
    def is_drained(self) -> bool:
        """Return whether every entry was read."""
        ...

    @property
    def place(self) -> Any:
        """Place of the next entry, to be saved; at the end, after the last one. None: nowhere."""
        ...


class DirectLog(Protocol):
    """Directory of one node.

    Attributes:
        directory: The folder of its segments for consumers.
        hole_hint: How to continue if segments are missing.
        not_alive: The log line for a consumer that is no longer alive.
        stopping: The log line for a consumer that is stopped.
    """

    directory: Path
    hole_hint: str
    not_alive: str
    stopping: str

    @abstractmethod
    def lock(
        self, timeout_ms: int | None, *, stop: Callable[[], bool], clock: Clock
    ) -> Lock | None:
        """Take the directory's lock; return None if asked to stop. timeout_ms: None: no limit."""
        ...

    @abstractmethod
    def load_place(self) -> LogPlace | None:
        """Return the saved place."""
        ...

    @abstractmethod
    def save_place(self, place: LogPlace) -> None:
        """Replace the saved place, durably."""
        ...

    @abstractmethod
    def is_active(self) -> bool:
        """Return whether consumers emit events; else the node does, and they follow its state."""
        ...

    @abstractmethod
    def save_active(self) -> None:
        """Save that consumers emit events from now on."""
        ...

    @abstractmethod
    def segments(self) -> list[int]:
        """Return the numbers of the existing segments, in order."""
        ...

    @abstractmethod
    def check_read(self, segments: Sequence[Path]) -> None:
        """Check that segments before the saved place were read. Raises an error for a gap."""
        ...

    @abstractmethod
    def remove(self, segment: int) -> None:
        """Remove a segment that is no longer needed."""
        ...

    @abstractmethod
    def path(self, segment: int) -> Path:
        """Return the path of a segment."""
        ...

    @abstractmethod
    def walk(self, segment: int, begin: int) -> DirectWalk:
        """Return the events of a segment from an offset on. Raises the errors of reading it."""
        ...

    @abstractmethod
    def node_states(self, segment: int, begin: int) -> Iterator[LogPlace | None]:
        """Yield the places that the active node saved in a segment; None: it has stopped."""
        ...

    @abstractmethod
    def mappings(self) -> list[Told]:
        """Return the ids of classes."""
        ...

    @abstractmethod
    def types(self) -> list[Told]:
        """Return the types of objects."""
        ...

    @abstractmethod
    def caches(self) -> list[Told]:
        """Return the tables, by their id."""
        ...

    @abstractmethod
    def know_tables(self, names: Sequence[str]) -> None:
        """Recognize changes of these tables even if a table was dropped before its changes were
        read.
        """
        ...

    @abstractmethod
    def give_plain(self) -> None:
        """Emit dates and times as Python's own from now on, if these can hold them."""
        ...

    @abstractmethod
    def load_told(self, name: str) -> dict[str, Any]:
        """Return the stamps of the facts that a consumer knows. name: mappings, types or caches."""
        ...

    @abstractmethod
    def save_told(self, name: str, told: dict[str, Any]) -> None:
        """Replace these facts, durably."""
        ...


DIRECT_PART: PartName[Callable[[str], DirectLog]] = PartName("direct")


class DirectListing:
    """Listing of a directory that finds the next segments, as Ignite's utility does.

    Attributes:
        pending: The saved place, until a segment was read from it.
        is_active: Whether penstock emits the segments' events; before, the node emits them.
    """

    def __init__(
        self,
        log: DirectLog,
        missed: Callable[[str, int, int], PenstockError],
        *,
        check_past: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        """Remember the directory, and the callbacks.

        Args:
            log: The directory.
            missed: Makes the error for a gap, from its text and the segments around it.
            check_past: Raises unless these segments, which the saved place is past, were read.
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
        """Return whether there never was a segment."""
        return self._order.last is None

    def new(self) -> list[int]:
        """Return the segments not returned before, once the whole listing is checked.

        Segments before the saved place are then removed. Raises the errors of `missed` and
        `check_past`.
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
        """Read everything again from the saved place on: the node is no longer active."""
        self._order.begin_again()
        self._given.clear()
        self.pending = self._log.load_place()

    def follow_node(self, segment: int, save: Callable[[LogPlace], None]) -> bool:
        """Save the places that the node saved in a segment; return False if it has stopped."""
        begin = self.pending.offset if self.pending is not None else 0
        for place in self._log.node_states(segment, begin):
            if place is None:
                self._log.save_active()
                self.is_active = True
                logger.info("CDC mode switched [mode=CDC_UTILITY_ACTIVE]")
                return False
            save(place)
        return True

    def note_processed(self, segment: int) -> None:
        """Note that a segment was read to its end."""
        self._processed.add(segment)

    def remove_before(self, place: LogPlace) -> None:
        """Remove the segments before a saved place that were read."""
        for segment in sorted(one for one in self._processed if one < place.segment):
            self._log.remove(segment)
            self._processed.remove(segment)
