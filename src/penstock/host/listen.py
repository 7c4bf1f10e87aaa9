"""A listening socket, and the address at which workers reach it.

Workers need an address for engines whose servers export no snapshots: there a process lends the
sessions of its snapshot. Not here: the listener (the engine), sockets to database servers
(`socket.py`, `connect.py`).
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.model import PenstockError

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened at


class ListenFailed(PenstockError):
    """The process cannot listen at the address."""

    code = "HS70"


class PortTaken(PenstockError):
    """Another program listens at this port."""

    code = "HS71"


Written = Callable[[str, int], str]
"""Function that formats a host and a port as the user gives them: as options, as a key."""


def as_options(host: str, port: int) -> str:
    """Write an address as the options of `penstock web`."""
    return f"--host {host} --port {port}"


def as_key(section: str) -> Written:
    """Return a function that writes an address as the key `listen` of a section."""

    def write(host: str, port: int) -> str:
        shown = f"[{host}]" if ":" in host else host
        return f'listen = "{shown}:{port}" in [{section}]'

    return write


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; of names only `localhost` counts."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def url_of(scheme: str, host: str, port: int) -> str:
    """Return a URL at which this machine reaches a server that listens at a host and port."""
    shown = ANY_ADDRESS.get(host, host)
    return f"{scheme}://[{shown}]:{port}" if ":" in shown else f"{scheme}://{shown}:{port}"


def listening_socket(host: str, port: int, *, written: Written = as_options) -> socket.socket:
    """Listen at a host (name or address) and port; 0 is any free port.

    Args:
        host: The name or address.
        port: The port.
        written: Formats the other address that a hint names.

    Raises:
        PortTaken: Another program listens there.
        ListenFailed: Any other reason.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ListenFailed(
            f"{host} is not an address of this machine: {error.strerror}",
            hint=f"Give an address of this machine: {written('127.0.0.1', port)}",
        ) from error
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        raise _error(host, port, error, written) from error
    return found


def listening_from(host: str, port: int, count: int) -> socket.socket:
    """Listen at the first free port of `count` ports. Raises the same as `listening_socket`."""
    for one in range(port, port + count - 1):
        with suppress(PortTaken):
            return listening_socket(host, one)
    return listening_socket(host, port + count - 1)


def own_address(toward: str) -> str:
    """Return this machine's address on the route to a host, without sending anything.

    Returns the machine's name if there is no route.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(toward, 9, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _error(host: str, port: int, error: OSError, written: Written) -> PenstockError:
    if error.errno == errno.EADDRINUSE:
        other = written(host, port + 1 if port < 65535 else port - 1)
        return PortTaken(
            f"port {port} of {host} is taken by another program",
            hint=f"See which one: ss -ltnp 'sport = :{port}'; or give another port: {other}",
            port=port,
        )
    hint = f"Give an address of this machine: {written('127.0.0.1', port)}"
    if error.errno == errno.EACCES:
        hint = f"Give a port of 1024 or more: {written(host, port + 8000)}"
    return ListenFailed(f"cannot listen at {host} port {port}: {error.strerror}", hint=hint)


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
