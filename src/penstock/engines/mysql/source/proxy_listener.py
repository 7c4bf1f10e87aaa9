"""Admit the clients of a session proxy: those who know its token; others are closed soon.

Each connection has a thread. A client that has not shown the token within seconds is closed, and
the oldest of them if too many wait, so strangers cost little and keep no client out. Not here: what
a client is given (`session_proxy.py`).
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable

import structlog

from penstock.engines.mysql.proxy_protocol import (
    GREETING_BYTES_MAX,
    USER_TIMEOUT_MS,
    ProxyAddress,
)
from penstock.engines.mysql.source.run_certificate import server_context
from penstock.host.errors import ConnectionLost
from penstock.host.snapshot_address import SnapshotAddress, listen_at
from penstock.host.socket import notice_cuts
from penstock.host.supervised import SupervisedThread

logger = structlog.get_logger()
GREETING_TIMEOUT_S = 10.0  # for TLS and the token, together
PENDING_MAX = 64
ACCEPT_PAUSE_S = 0.1

Serve = Callable[[socket.socket, str], None]


class ProxyListener:
    """Listener that runs until it is closed. address: facts that clients need.

    serve: called in a thread for each client that knows the token, with its connection, which has a
    timeout, and its request; it may raise OSError and ConnectionLost.
    """

    def __init__(self, at: SnapshotAddress, serve: Serve, *, encrypts: bool = False) -> None:
        """Start to listen. encrypts: also on loopback. Raises ListenFailed."""
        self._serve = serve
        self._lock = threading.Lock()
        # A second descriptor of each: any thread may shut it down, but not a TLS object.
        self._pending: dict[socket.socket, None] = {}
        self._known: set[socket.socket] = set()
        self._closed = False
        self._listener = listen_at(at)
        own, port = self._listener.getsockname()[:2]
        self._context: ssl.SSLContext | None = None
        fingerprint = ""
        if encrypts or not ipaddress.ip_address(own.partition("%")[0]).is_loopback:
            self._context, fingerprint = server_context()
        token = secrets.token_hex(16)
        self.address = ProxyAddress(host=at.host, port=port, token=token, fingerprint=fingerprint)
        self._thread = SupervisedThread("snapshot-lender", self._accept, wait=self._pause)
        self._thread.start()

    def close(self) -> None:
        """Admit no more clients, and close all connections; their threads then end."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for handle in (*self._pending, *self._known):
                _shut_down(handle)
        _shut_down(self._listener)  # it wakes the thread that waits in accept
        self._listener.close()
        self._thread.join()

    @property
    def pending_count(self) -> int:
        """Number of connections that have not shown the token yet."""
        with self._lock:
            return len(self._pending)

    def _pause(self, seconds: float) -> bool:
        time.sleep(seconds)
        with self._lock:
            return self._closed

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                self._admit(client)
            except (OSError, RuntimeError) as error:  # no descriptors, no threads: it is brief
                with self._lock:
                    if self._closed:
                        return
                logger.warning("connection to a snapshot not taken", reason=str(error))
                time.sleep(ACCEPT_PAUSE_S)

    def _admit(self, client: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(client.close)
            handle = client.dup()
            stack.callback(self._forget, handle)
            with self._lock:
                if self._closed:
                    return
                self._pending[handle] = None
                if len(self._pending) > PENDING_MAX:
                    oldest = next(iter(self._pending))
                    del self._pending[oldest]
                    _shut_down(oldest)
            arguments = (client, handle)
            threading.Thread(
                target=self._run, args=arguments, name="snapshot-loan", daemon=True
            ).start()
            stack.pop_all()  # the thread closes them

    def _forget(self, handle: socket.socket) -> None:
        with self._lock:
            self._pending.pop(handle, None)
            self._known.discard(handle)
            handle.close()

    def _run(self, client: socket.socket, handle: socket.socket) -> None:
        try:
            with client, self._encrypt(client) as connected:
                request = self._request(connected)
                if request is None or not self._is_known(handle):
                    return
                notice_cuts(connected, user_timeout_ms=USER_TIMEOUT_MS)
                self._serve(connected, request)
        except (OSError, ConnectionLost) as error:
            logger.info("proxied session ended", reason=str(error))
        except Exception as error:  # the client sees its connection end, and reports it
            logger.error("proxied session failed", exc_info=error)
        finally:
            self._forget(handle)

    def _is_known(self, handle: socket.socket) -> bool:
        """Count a client that has shown the token; return False if it was shut down meanwhile."""
        with self._lock:
            if self._closed or handle not in self._pending:
                return False
            del self._pending[handle]
            self._known.add(handle)
            return True

    def _encrypt(self, client: socket.socket) -> socket.socket:
        client.settimeout(GREETING_TIMEOUT_S)
        if self._context is None:
            return client
        return self._context.wrap_socket(client, server_side=True)

    def _request(self, client: socket.socket) -> str | None:
        """Return a client's request; None if it does not know the token."""
        deadline_s = time.monotonic() + GREETING_TIMEOUT_S
        greeting = b""
        while not greeting.endswith(b"\n") and len(greeting) < GREETING_BYTES_MAX:
            client.settimeout(max(deadline_s - time.monotonic(), 0.001))
            part = client.recv(GREETING_BYTES_MAX - len(greeting))
            if not part:
                return None
            greeting += part
        token, _, request = greeting.decode("ascii", "replace").strip().partition(" ")
        client.settimeout(GREETING_TIMEOUT_S)
        if hmac.compare_digest(token.encode(), self.address.token.encode()):
            return request
        return None


def _shut_down(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):  # its peer may have gone already
        connected.shutdown(socket.SHUT_RDWR)
