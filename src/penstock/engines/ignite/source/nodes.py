"""Progress of several nodes, as one position that never falls, and caches that they recreated.

A node is known by the name of its folder, which has its consistent id. The log's position is the
sum of all nodes' places; the places themselves are stored with the versions (`versions.py`),
flush point by flush point.

Each node creates its files of a new cache, and so does a node that gets its first partition of
an old one. A life begins with the first node that creates files of a cache of which it had
changes; the files that the others create then belong to the same life. Not here: reading
(`stream.py`), detecting that a node's files are new (`node.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import structlog

from penstock.engines.ignite.source.versions import SLACK_MS

AFTER_MS = 1000  # clocks that differ by less do not turn a change into a later one

logger = structlog.get_logger(__name__)


class CacheLives(msgspec.Struct):
    """Lives of one cache.

    Attributes:
        began_ms: begins of its lives, in order.
        nodes: the life of each node's last files.
        newest_ms: time of each node's newest change.
    """

    began_ms: list[int] = []
    nodes: dict[str, int] = {}
    newest_ms: dict[str, int] = {}


class CommonLives:
    """Lives of all caches, by name."""

    def __init__(self, kept: dict[str, CacheLives] | None = None) -> None:
        """Continue from the lives of a flush point."""
        self.kept = {} if kept is None else kept

    def saw(self, cache: str, node: str, time_ms: int) -> None:
        """Note that a node has changes of a cache up to this time."""
        one = self._of(cache)
        one.nodes.setdefault(node, len(one.began_ms))
        one.newest_ms[node] = max(time_ms, one.newest_ms.get(node, 0))

    def ended_ms(self, cache: str, node: str) -> int:
        """Return the end of the earlier life, in ms: a node's changes before belong to it; 0:
        none do.
        """
        one = self.kept.get(cache)
        is_behind = one is not None and one.nodes.get(node, len(one.began_ms)) < len(one.began_ms)
        return one.began_ms[-1] if one is not None and is_behind else 0

    def forget(self, node: str) -> None:
        """Forget the files of a node that starts again: those that it creates are not new."""
        for one in self.kept.values():
            one.nodes.pop(node, None)

    def begins(self, cache: str, node: str, time_ms: int) -> bool:
        """Note new files of a node; return whether the cache begins a life and existing rows are
        deleted.
        """
        one = self._of(cache)
        is_first = not one.nodes
        if not is_first and node not in one.nodes:
            one.nodes[node] = len(one.began_ms)  # it joins
            return False
        made = one.nodes.get(node, 0)
        for life in range(made, len(one.began_ms)):
            if abs(one.began_ms[life] - time_ms) <= SLACK_MS:
                one.nodes[node] = life + 1
                return False
        if made < len(one.began_ms):
            one.nodes[node] = len(one.began_ms)  # it was unreachable when the others created theirs
            return False
        one.began_ms.append(time_ms)
        one.nodes[node] = len(one.began_ms)
        others = [ms for name, ms in one.newest_ms.items() if name != node]
        if max(others, default=0) > time_ms + AFTER_MS:
            logger.warning(
                "a cache was made again, and later changes arrived first: existing rows stay",
                cache=cache,
                node=node,
            )
            return False
        return True

    def _of(self, cache: str) -> CacheLives:
        return self.kept.setdefault(cache, CacheLives())


class NodePlace(msgspec.Struct, frozen=True):
    """Place up to which a node is read: segment << 32 | offset, and the time of the newest
    record.

    since_ms: earlier records are left out; 0: none are.
    """

    position: int = 0
    time_ms: int = 0
    since_ms: int = 0


class Saved(msgspec.Struct, frozen=True):
    """Stored state of a flush point. listed: the nodes that were read then."""

    places: dict[str, NodePlace]
    listed: list[str]
    floor_ms: int
    lives: dict[str, CacheLives]


class Nodes:
    """Places of the nodes that are or were read.

    A node that joins while the others are read begins at the time from which all versions are
    known: before it, the newer of two changes cannot be determined.
    """

    def __init__(self, listed: Iterable[str], saved: bytes = b"") -> None:
        """Take the nodes to read, and the state of the flush point from which to continue."""
        self.listed = list(listed)
        self._places: dict[str, NodePlace] = {}
        self.floor_ms = 0
        self.lives = CommonLives()
        if saved:
            found = msgspec.json.decode(saved, type=Saved)
            self.lives = CommonLives(found.lives)
            self._places = found.places
            self.floor_ms = found.floor_ms
            if self.floor_ms:
                self._join(set(self.listed).difference(found.listed))
        self.position = sum(place.position for place in self._places.values())

    def _join(self, names: Iterable[str]) -> None:
        for name in names:
            place = self[name]
            since_ms = self.floor_ms + SLACK_MS
            self._places[name] = NodePlace(place.position, place.time_ms, since_ms)

    def __getitem__(self, name: str) -> NodePlace:
        """Return the place up to which a node is read."""
        return self._places.get(name, NodePlace())

    def read(self, name: str, position: int, time_ms: int) -> None:
        """Note that a node is read up to here. time_ms: of the newest record there."""
        before = self[name]
        assert position >= before.position, f"{name} goes back to {position}"
        self.position += position - before.position
        newest_ms = max(time_ms, before.time_ms)
        self._places[name] = NodePlace(position, newest_ms, before.since_ms)
        least_ms = min(self[one].time_ms for one in self.listed)
        self.floor_ms = max(self.floor_ms, least_ms - SLACK_MS)

    def begin_anew(self, name: str) -> None:
        """Note that a node's log begins with another first segment: its disk was replaced."""
        place = self._places.pop(name, None)
        if place is not None:
            count = sum(one.startswith(f"{name}#") for one in self._places)
            self._places[f"{name}#{count + 1}"] = place
        self.lives.forget(name)

    def takes(self, name: str, time_ms: int) -> bool:
        """Return whether a record of a node is delivered: one from before it joined is not."""
        place = self[name]
        if not place.since_ms:
            return True
        if time_ms < place.since_ms:
            return False
        self._places[name] = NodePlace(place.position, place.time_ms)
        return True

    def dump(self) -> bytes:
        """Return the state to be stored with a flush point here."""
        return msgspec.json.encode(Saved(self._places, self.listed, self.floor_ms, self.lives.kept))
