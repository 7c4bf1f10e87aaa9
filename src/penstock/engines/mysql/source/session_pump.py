"""Pass a client's commands to a session and the results back: one thread for both ways.

Nothing blocks, because two threads must not use a TLS connection at once. The pump holds one block
of results and one command. Not here: who may be a client (`proxy_listener.py`), and which session
it gets (`session_proxy.py`).
"""

from __future__ import annotations

import secrets
import select
import socket
import ssl
import time

import structlog

from penstock.codec.mysql import mysqlwire
from penstock.engines.mysql.source.proxied_session import COM_QUERY, LET_GO
from penstock.host.errors import ConnectionLost
from penstock.host.socket import Wire

logger = structlog.get_logger()
BLOCK_BYTES = 1024 * 1024
COMMAND_BYTES_MAX = 4 * 1024 * 1024
READ_BYTES = 64 * 1024
# A server sends 16 kB at a time. Waking up for each would take the CPU that the server needs.
MUCH_BYTES = 16 * 1024
NAP_S = 0.001
IDLE_TIMEOUT_S = 1800.0  # for a client that neither sends nor receives
SETTLE_TIMEOUT_S = 300.0
END_BYTES = 9  # of the packet after the last row


class ClientStream:
    """A client's connection in non-blocking mode, for one thread."""

    def __init__(self, connected: socket.socket) -> None:
        """Take a connected socket, plain or TLS."""
        connected.setblocking(False)
        self._socket = connected
        self._reads_on = select.POLLIN
        self._writes_on = select.POLLOUT

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def events(self, *, writes: bool) -> int:
        """Return the events to wait for before the next read and, if writes is True, the next
        write.
        """
        return self._reads_on | (self._writes_on if writes else 0)

    def read(self) -> bytes | None:
        """Return bytes that have arrived; empty if the client is gone, None if there are
        none yet.
        """
        self._reads_on = select.POLLIN
        try:
            return self._socket.recv(READ_BYTES)
        except ssl.SSLWantWriteError:
            self._reads_on = select.POLLOUT
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        return None

    def write(self, data: memoryview) -> int:
        """Send some of the data; return how much. The next call must pass the rest, and nothing
        else.
        """
        self._writes_on = select.POLLOUT
        try:
            return self._socket.send(data)
        except ssl.SSLWantReadError:
            self._writes_on = select.POLLIN
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        return 0


class Commands:
    """Cutter of a client's bytes into statements: only whole ones get to the server.

    So a client that dies in the middle of one leaves the session able to take another.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the packets that are whole by now. Raises ConnectionLost for other bytes than
        statements.
        """
        self._rest += data
        whole = []
        while found := mysqlwire.packet_at(self._rest, 0, len(self._rest)):
            whole.append(self._rest[: found.end])
            self._rest = self._rest[found.end :]
        for one in (*whole, self._rest[: mysqlwire.HEAD_BYTES + 1]):
            if not _may_be_sent(one):
                raise ConnectionLost("a client sent something other than a statement")
        return whole


def _may_be_sent(packet: bytes) -> bool:
    """Return whether this is a statement or a goodbye, or the first bytes of one."""
    if len(packet) <= mysqlwire.HEAD_BYTES:
        return True
    is_known = packet[4:5] == COM_QUERY or packet[:5] == mysqlwire.QUIT
    return is_known and int.from_bytes(packet[:3], "little") <= COMMAND_BYTES_MAX


def pass_on(client: ClientStream, wire: Wire) -> bool:
    """Pass commands and results on until the client has ended; return whether the session is in
    order.

    Raises OSError or ConnectionLost if one of the two connections breaks.
    """
    commands, is_used = Commands(), False
    block = memoryview(bytearray(BLOCK_BYTES))
    pending = block[:0]
    while True:
        moved = False
        if not pending:
            pending = block[: wire.receive_into(block, 0.0)]
        if pending:
            sent = client.write(pending)
            is_much, pending, moved = sent >= MUCH_BYTES, pending[sent:], sent > 0
            if is_much and not pending:
                time.sleep(NAP_S)
        if (data := client.read()) is not None:
            if not data:
                return not is_used  # it left while it waited for a session
            for command in commands.feed(data):
                if command == mysqlwire.QUIT:
                    return not pending
                is_used = True
                wire.send(command)
            moved = True
        events = client.events(writes=bool(pending))
        if not moved and not wire.wait_beside(
            client.fileno(), events, IDLE_TIMEOUT_S, reads=not pending
        ):
            raise ConnectionLost("a client was silent for too long")


def settle(wire: Wire) -> None:
    """Make a session ready again that a client has left in the middle of something.

    The rest of its result is read up to the answer to our own query after it, which no row can
    hold. The session's table is released. Raises ConnectionLost if the session is of no use any
    more.
    """
    token = secrets.token_hex(16).encode()
    wire.send(mysqlwire.packet(COM_QUERY + LET_GO.encode()))
    wire.send(mysqlwire.packet(COM_QUERY + b"select '" + token + b"' as t"))
    block = memoryview(bytearray(BLOCK_BYTES))
    kept = len(token) + END_BYTES
    tail, deadline_s = b"", time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        left_s = deadline_s - time.monotonic()
        count = wire.receive_into(block, max(left_s, 0.0))
        if count == 0:
            raise ConnectionLost("a session did not come to the end of its result")
        tail += bytes(block[:count])
        place = tail.find(token)
        if place >= 0 and len(tail) >= place + kept:
            last = tail[place + len(token) :]
            if len(last) != END_BYTES or not mysqlwire.is_end(last[mysqlwire.HEAD_BYTES :]):
                raise ConnectionLost("a session sent something after its result")
            return
        tail = tail[-kept:] if place < 0 else tail[place:]
