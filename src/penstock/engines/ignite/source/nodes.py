"""Progress of several nodes, as one position that never falls.

A node is known by the name of its folder, which has its consistent id. The log's position is the
sum of all nodes' places; the places themselves are stored with the versions (`versions.py`),
flush point by flush point. Not here: reading (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.engines.ignite.source.common_lives import CacheLives, CommonLives
from penstock.engines.ignite.source.versions import SLACK_MS


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
