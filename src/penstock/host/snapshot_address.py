"""Address at which workers reach the process that lends a snapshot's sessions.

For engines whose servers export no snapshots; such a point is of the bulk load. Not here: the
listener (the engine).
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from penstock.host.listen import ListenFailed, PortTaken, listening_from

LOOPBACK = "127.0.0.1"

PORTS = 16  # as many as Spark tries from a given port

ADDRESS_HINT = (
    "Set [spark] snapshotAddress to HOST:PORT of the machine that runs penstock, as executors "
    "reach it, and let its firewall pass that port and the 15 behind it."
)

# A network that does not exist: it leads to the address of the default route.
ANYWHERE = "192.0.2.1"

_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::(\d+))?\Z")

_PLAIN = re.compile(r"([^\s:/\[\]]+)(?::(\d+))?\Z")

_BARE_V6 = re.compile(r"([0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAddress:
    """Address of this process for workers.

    Attributes:
        host: The address at which workers reach it.
        bind: The address to listen at.
        port: The first port to try; 0: any free one.
    """

    host: str = LOOPBACK
    bind: str = LOOPBACK
    port: int = 0


def listen_at(at: SnapshotAddress) -> socket.socket:
    """Listen at this address. Raises ListenFailed."""
    try:
        return listening_from(at.bind, at.port, PORTS if at.port else 1)
    except (ListenFailed, PortTaken) as error:
        raise ListenFailed(
            f"executors could not read a snapshot through this process: {error.message}",
            hint=ADDRESS_HINT,
        ) from error


def split_address(text: str) -> tuple[str, int]:
    """Split HOST, HOST:PORT or [V6]:PORT into host and port, or 0. Raises ValueError."""
    found = _BRACKETED.match(text) or _PLAIN.match(text)
    if found is None:
        if bare := _BARE_V6.match(text):
            return bare[1], 0
        raise ValueError(f"not an address: {text!r}")
    port = int(found[2] or 0)
    if port > 65535:
        raise ValueError(f"not a port: {port}")
    return found[1], port
