"""How far each of several nodes is read, as one position that never falls.

A node is known by the name of its folder, which has its consistent id. The log's position is the
sum of all nodes' places; the places themselves are kept with the versions (`versions.py`), flush
point by flush point. Not here: reading (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.engines.ignite.source.common_lives import CacheLives, CommonLives
from penstock.engines.ignite.source.versions import SLACK_MS


class NodePlace(msgspec.Struct, frozen=True):
    """Up to where a node is read: segment << 32 | offset, and the time of the newest record.

    since_ms: what it wrote before is left out; 0: nothing is.
    """

    position: int = 0
    time_ms: int = 0
    since_ms: int = 0


class Saved(msgspec.Struct, frozen=True):
    """What is kept at a flush point. listed: the nodes that were read then."""

    places: dict[str, NodePlace]
    listed: list[str]
    floor_ms: int
    lives: dict[str, CacheLives]


class Nodes:
    """The places of the nodes that are read, and of those that were.

    A node that joins while the others are read begins with what all versions are known of: which
    of two changes is the newer one, nobody knows of those before.
    """

    def __init__(self, listed: Iterable[str], saved: bytes = b"") -> None:
        """listed: the nodes that are read now. saved: of the flush point to go on from."""
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
        """Up to where a node is read."""
        return self._places.get(name, NodePlace())

    def read(self, name: str, position: int, time_ms: int) -> None:
        """A node is read up to here. time_ms: of the newest record there."""
        before = self[name]
        assert position >= before.position, f"{name} goes back to {position}"
        self.position += position - before.position
        newest_ms = max(time_ms, before.time_ms)
        self._places[name] = NodePlace(position, newest_ms, before.since_ms)
        least_ms = min(self[one].time_ms for one in self.listed)
        self.floor_ms = max(self.floor_ms, least_ms - SLACK_MS)

    def begin_anew(self, name: str) -> None:
        """A node's log begins with another first segment: its disk was replaced."""
        place = self._places.pop(name, None)
        if place is not None:
            count = sum(one.startswith(f"{name}#") for one in self._places)
            self._places[f"{name}#{count + 1}"] = place
        self.lives.forget(name)

    def takes(self, name: str, time_ms: int) -> bool:
        """Whether a record of a node is given at all: one from before it joined is not."""
        place = self[name]
        if not place.since_ms:
            return True
        if time_ms < place.since_ms:
            return False
        self._places[name] = NodePlace(place.position, place.time_ms)
        return True

    def saved(self) -> bytes:
        """To be kept with a flush point here."""
        return msgspec.json.encode(Saved(self._places, self.listed, self.floor_ms, self.lives.kept))
