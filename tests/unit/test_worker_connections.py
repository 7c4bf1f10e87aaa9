"""Connections that Spark's workers keep."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.host.worker_connections import IDLE_S, WorkerConnections


@dataclass
class Line:
    """Connection that records whether it was closed."""

    url: str
    is_closed: bool = False

    def close(self) -> None:
        """Record the call."""
        self.is_closed = True


@dataclass
class Place:
    """Server that counts connections, and a clock."""

    opened: list[Line] = field(default_factory=list)
    now_s: float = 0.0

    def open(self, url: str) -> Line:
        """Return a new connection."""
        self.opened.append(Line(url))
        return self.opened[-1]


def test_a_worker_of_several_pipelines_keeps_a_connection_to_each() -> None:
    """Tasks of two targets in turn connect once each."""
    place = Place()
    kept = WorkerConnections(place.open, clock_s=lambda: place.now_s)
    for _ in range(3):
        assert [kept.get(url).url for url in ("a", "b")] == ["a", "b"]
    assert len(place.opened) == 2


def test_a_connection_that_was_not_used_for_a_minute_is_closed() -> None:
    """A pipeline that was stopped leaves no connection to its target, unless no task follows."""
    place = Place()
    kept = WorkerConnections(place.open, clock_s=lambda: place.now_s)
    kept.get("a"), kept.get("b")
    place.now_s = IDLE_S
    kept.get("b")
    place.now_s = 2 * IDLE_S + 1
    assert not kept.get("b").is_closed
    assert [line.is_closed for line in place.opened] == [True, False]
    assert kept.get("a") is place.opened[2]


def test_a_forgotten_connection_is_closed_and_opened_again() -> None:
    """After an error the worker begins with another connection."""
    place = Place()
    kept = WorkerConnections(place.open, clock_s=lambda: place.now_s)
    first = kept.get("a")
    kept.forget("a")
    kept.forget("a")
    assert first.is_closed
    assert kept.get("a") is not first
