"""What the consumers' application needs of a log that is read where its node leaves it.

An engine whose nodes write their log into a directory for consumers has this as its part `direct`:
a function from the source's URL to a DirectLog. Nothing is extracted then, and there is no change
log: a consumer reads the directory alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock.host.clock import Clock
from penstock.host.files import Lock


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

    hole_hint: how to go on where segments are missing.
    """

    directory: Path
    hole_hint: str

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

    def load_told(self, name: str) -> dict[str, Any]:
        """What a consumer was told of, by key: its stamp. name: mappings, types or caches."""
        ...

    def save_told(self, name: str, told: dict[str, Any]) -> None:
        """Replace it, durably."""
        ...
