"""What a process needs so that it can connect to a database, whatever machine it is on."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ports.registry import engine_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """addresses: host and port, one of which must answer. socket: a socket file, else empty.

    files: paths of certificates and keys that the URL names.
    """

    addresses: tuple[tuple[str, int], ...] = ()
    socket: str = ""
    files: tuple[str, ...] = ()


def reach_of(url: str) -> Reach:
    """What the engine of a URL says, nothing where it does not. Raises EngineUnknown."""
    engine = engine_at(url)
    found: Reach = engine.part("reach")(url) if "reach" in engine.parts else Reach()
    return found
