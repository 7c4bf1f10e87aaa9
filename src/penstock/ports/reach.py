"""Requirements of a connection to a database, from any machine."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ports.registry import engine_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Requirements of a connection.

    Attributes:
        addresses: Host and port, one of which must answer.
        socket: A socket file, or empty.
        files: Paths of certificates and keys that the URL names.
    """

    addresses: tuple[tuple[str, int], ...] = ()
    socket: str = ""
    files: tuple[str, ...] = ()


def reach_of(url: str) -> Reach:
    """Return the requirements of a URL, empty if its engine names none. Raises EngineUnknown."""
    engine = engine_at(url)
    found: Reach = engine.part("reach")(url) if "reach" in engine.parts else Reach()
    return found
