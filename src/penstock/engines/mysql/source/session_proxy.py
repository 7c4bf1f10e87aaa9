"""Proxies sessions in snapshots for other processes: in place of an exported snapshot.

These servers cannot hand one snapshot to several sessions, and a session cannot be handed to
another process under TLS. So the process that took the snapshots keeps their sessions and passes
bytes on: clients see one point for as long as it lives, whichever of them is killed. A client that
is done returns its session with COM_QUIT; one that disconnects may have left it in the middle of a
result: that session is closed, and there are spare ones. When none is left the snapshot is gone.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import structlog

from penstock.codec.mysql import mysqlwire
from penstock.engines.mysql.connect import Connection, run
from penstock.engines.mysql.proxy_protocol import (
    GREETING_BYTES_MAX,
    LOOK,
    OPEN_SESSION,
    YES,
    address_text,
)
from penstock.engines.mysql.source.login import take_over
from penstock.host.errors import ConnectionLost
from penstock.host.socket import Wire

logger = structlog.get_logger()
BLOCK_BYTES = 1024 * 1024
COMMAND_BYTES = 64 * 1024
GREETING_TIMEOUT_S = 10.0
WAIT_S = 0.25
# A server sends 16 kB at a time. Being woken for each would take the CPU that it needs.
MUCH_BYTES = 16 * 1024
NAP_S = 0.001
LOOPBACK = "127.0.0.1"


class SessionProxy:
    """Proxies sessions until it is closed. Use as a context manager.

    snapshot_id: what clients need to find it; snapshot_text: what they expect as its answer.
    """

    def __init__(
        self, connections: Sequence[Connection], *, place: str, snapshot_text: str,
        host: str = LOOPBACK,
    ) -> None:  # fmt: skip
        """connections: each in its snapshot, waiting for nothing; they are taken over.

        place: names the server in messages. host: where to listen.
        """
        self._free: queue.SimpleQueue[Wire | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()
        self._clients: set[socket.socket] = set()
        self._closed = False
        for connection in connections:
            # Text comes as it is stored: what it means is decided in one place, by our tables.
            run(connection, "set session character_set_results = null", doing="preparing a session")
            wire, _ = take_over(connection, place)
            self._wires.add(wire)
            self._free.put(wire)
        self._token = secrets.token_hex(16)
        self._listener = socket.create_server((host, 0))
        self.snapshot_id = address_text(host, self._listener.getsockname()[1], self._token)
        self.snapshot_text = snapshot_text
        self._thread = threading.Thread(target=self._accept, name="snapshot-lender", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Return itself; the way out closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all sessions."""
        self.close()

    @property
    def session_count(self) -> int:
        """Sessions in use or free."""
        with self._lock:
            return len(self._wires)

    def close(self) -> None:
        """End all sessions and with them the snapshot."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            wires, clients = list(self._wires), list(self._clients)
            self._wires.clear()
        with contextlib.suppress(OSError):  # it wakes who waits in accept
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for client in clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for _ in clients:
            self._free.put(None)
        for wire in wires:
            wire.interrupt()
            wire.close()

    # -- clients ---------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._closed:
                    client.close()
                    return
                self._clients.add(client)
            threading.Thread(
                target=self._serve, args=(client,), name="snapshot-loan", daemon=True
            ).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                self._answer(client)
        except (OSError, ConnectionLost) as error:
            logger.info("proxied session ended", reason=str(error))
        finally:
            with self._lock:
                self._clients.discard(client)

    def _answer(self, client: socket.socket) -> None:
        client.settimeout(GREETING_TIMEOUT_S)
        greeting = b""
        while not greeting.endswith(b"\n") and len(greeting) < GREETING_BYTES_MAX:
            part = client.recv(GREETING_BYTES_MAX)
            if not part:
                return
            greeting += part
        token, _, request = greeting.decode("ascii", "replace").strip().partition(" ")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return
        client.settimeout(None)
        yes = YES + self.snapshot_text.encode() + b"\n"
        if request == LOOK and self.session_count:
            client.sendall(yes)
        if request != OPEN_SESSION:
            return
        wire = self._take()
        if wire is None:
            return
        is_clean = False
        try:
            client.sendall(yes)
            is_clean = self._pass_on(client, wire)
        finally:
            self._give_back(wire, is_clean=is_clean)

    def _take(self) -> Wire | None:
        """A free session; None when there is none any more."""
        with self._lock:
            if self._closed or not self._wires:
                return None
        return self._free.get()

    def _give_back(self, wire: Wire, *, is_clean: bool) -> None:
        with self._lock:
            known = wire in self._wires
            if known and not is_clean:
                self._wires.discard(wire)
            left, waiting = len(self._wires), len(self._clients)
        if not known:
            return
        if is_clean:
            wire.resume()
            self._free.put(wire)
            return
        wire.close()
        logger.warning("session of a snapshot lost with its client", left=left)
        if left == 0:
            for _ in range(waiting):
                self._free.put(None)

    # -- bytes -----------------------------------------------------------------------------------

    def _pass_on(self, client: socket.socket, wire: Wire) -> bool:
        """Pass commands and results on; whether the session came back in order."""
        done = threading.Event()
        results = threading.Thread(target=_results, args=(wire, client, done), daemon=True)
        results.start()
        is_used = False
        try:
            while True:
                command = client.recv(COMMAND_BYTES)
                if command == mysqlwire.QUIT:
                    return True
                if not command:
                    return not is_used  # it went while it waited for a session
                is_used = True
                wire.send(command)
        finally:
            done.set()
            # The thread that waits to send rows to a dead client is woken, too.
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            wire.interrupt()
            results.join()


def _results(wire: Wire, client: socket.socket, done: threading.Event) -> None:
    """Pass on what the server sends, until the client is done or something breaks."""
    block = memoryview(bytearray(BLOCK_BYTES))
    try:
        while True:
            count = wire.receive_into(block, WAIT_S)
            if count:
                client.sendall(block[:count])
                if count >= MUCH_BYTES:
                    time.sleep(NAP_S)
            elif done.is_set():
                return
    except (OSError, ConnectionLost) as error:
        logger.info("results of a proxied session end", reason=str(error))
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
