"""One byte stream to a server, plain or TLS, that two threads may use at once.

Reading waits without holding the lock, so that a status can be sent while another thread waits
for data, and while TLS is on (OpenSSL forbids two calls on one session at a time). Not here: the
meaning of the bytes (`codec.postgres.pgwire`), trusted certificates (`engines.postgres.tls`).
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from penstock.host.errors import LOST, ConnectionLost, ServerUnreachable, TlsFailed

TCP_KEEPALIVE_IDLE_S = 30
TCP_KEEPALIVE_INTERVAL_S = 10
TCP_KEEPALIVE_COUNT = 3
TCP_USER_TIMEOUT_MS = 60_000  # unacknowledged data for this long: the network is cut
NEAR_US = 500  # with a shorter round trip the window does not bound the rate
# With the narrow window a peer that sends message by message collects several for each packet. It
# is too narrow for a peer that sends without a pause: it is full long before we read again.
NARROW_BYTES = 128 * 1024
WIDE_BYTES = 1024 * 1024
# Offset of tcpi_min_rtt, microseconds, in Linux's struct tcp_info. Not tcpi_rtt: that includes the
# time of an answer if the acknowledgement arrives with it.
RTT_OFFSET = 148
UNSENT_BYTES_MAX = 1024 * 1024  # a peer that stops reading is dead, not slow
# A buffer whose size was set is locked: the system drops what arrives when it is full. The window
# is counted in bytes, the buffer in memory, so small messages fill the buffer before the window is
# closed. Linux has this option since 5.14; Python has no name for it.
SO_BUF_LOCK = 72


def is_near(fileno: int) -> bool:
    """Return whether another owner's connection has a near peer; see `Wire.limit_window`."""
    with socket.socket(fileno=os.dup(fileno)) as same:
        return _is_near(same)


def _is_near(connected: socket.socket) -> bool:
    is_tcp = connected.family in (socket.AF_INET, socket.AF_INET6)
    if not is_tcp or not hasattr(socket, "TCP_INFO"):
        return False
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RTT_OFFSET + 4)
    found = info[RTT_OFFSET:]  # empty before Linux 4.6
    return bool(found) and int.from_bytes(found, sys.byteorder) < NEAR_US


class Wire:
    """Connected socket in non-blocking mode.

    `receive_into` and `send` may be called from different threads; each of them from one thread
    at a time, except `send`, which any number may call.
    """

    def __init__(self, connected: socket.socket, peer: str) -> None:
        """Take a connected socket. peer: its name in messages."""
        self._socket = connected
        self._socket.setblocking(False)
        self._peer = peer
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._closed = False
        self._interrupted = False
        self._narrow_bytes = 0
        self._waker = os.pipe()

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the socket."""
        self.close()

    @property
    def is_tls(self) -> bool:
        """Return whether the stream is encrypted."""
        return isinstance(self._socket, ssl.SSLSocket)

    def peer_certificate(self) -> bytes | None:
        """Return the server's certificate in DER, or None without TLS."""
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.getpeercert(binary_form=True)
        return None

    def alpn_protocol(self) -> str | None:
        """Return the application protocol that the TLS handshake agreed on."""
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.selected_alpn_protocol()
        return None

    def limit_window(self, size_bytes: int) -> None:
        """Use a receive window of about so many bytes if the peer is near.

        A near peer with a closed window collects data and sends it in large pieces at a fraction of
        the cost. For a distant peer the window bounds the rate, so it is not changed; nor is it for
        any other kind of socket. Begin wide: Linux widens a window that was narrow only in part.

        The system may let the buffer grow beyond that. If it could not, a peer that sends while we
        do not read would have to repeat the bytes that the full buffer dropped, each time after
        twice the previous wait: after a pause of ten seconds we would wait up to ten more for its
        next attempt. So a narrow buffer that has grown is narrowed after each read.
        """
        if _is_near(self._socket):
            self._set_window(size_bytes)
            self._narrow_bytes = size_bytes if size_bytes < WIDE_BYTES else 0

    def _set_window(self, size_bytes: int) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
        with suppress(OSError):  # before Linux 5.14
            self._socket.setsockopt(socket.SOL_SOCKET, SO_BUF_LOCK, 0)

    def _keep_narrow(self) -> None:
        # Linux doubles the size that it is given.
        grown = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        if grown > 2 * self._narrow_bytes:
            self._set_window(self._narrow_bytes)

    def start_tls(self, context: ssl.SSLContext, server_name: str, timeout_s: float) -> None:
        """Turn the stream into TLS. Nothing may have been read ahead. Raises TlsFailed."""
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=server_name)
        except ssl.SSLCertVerificationError as error:
            raise TlsFailed(
                f"the certificate of {self._peer} is not trusted: {error.verify_message}",
                hint="Give the right authority in sslrootcert, and in the URL a host name that "
                "the certificate holds.",
            ) from error
        except (ssl.SSLError, OSError) as error:
            raise TlsFailed(
                f"no TLS with {self._peer}: {error}",
                hint="Check sslmode in the URL, and ssl and ssl_cert_file on the server.",
            ) from error
        self._socket.setblocking(False)

    def receive_into(self, view: memoryview, timeout_s: float) -> int:
        """Read available bytes into view; wait up to timeout_s for the first byte.

        Returns the number of bytes, 0 if none arrived in time or before `interrupt`. Raises
        ConnectionLost if the server has closed or the connection broke.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                count, wants = self._read(view)
            if count:
                if self._narrow_bytes:
                    self._keep_narrow()
                return count
            left_s = deadline - time.monotonic()
            if (left_s <= 0 and wants == select.POLLIN) or self._interrupted:
                return 0
            self._wait(wants, max(left_s, 0.0))

    def interrupt(self) -> None:
        """End the wait of `receive_into`, now and until `resume`; from any thread."""
        with self._lock:
            if not self._closed and not self._interrupted:
                self._interrupted = True
                os.write(self._waker[1], b"i")

    def resume(self) -> None:
        """Let `receive_into` wait again after `interrupt`."""
        with self._lock:
            if not self._closed and self._interrupted:
                self._interrupted = False
                os.read(self._waker[0], 1)

    def _read(self, view: memoryview) -> tuple[int, int]:
        """Fill view with available bytes, under the lock; return their number and what to await."""
        total = 0
        try:
            self._push()
            while total < len(view):
                count = self._socket.recv_into(view[total:])
                if count == 0:
                    if total:
                        break
                    raise ConnectionLost(
                        f"{self._peer} closed the connection",
                        hint=LOST,
                    )
                total += count
                if not self.is_tls:
                    break  # one call read all that was there; TLS gives 16 kB at a time
        except (BlockingIOError, ssl.SSLWantReadError):
            return total, select.POLLIN
        except ssl.SSLWantWriteError:
            return total, select.POLLOUT
        except (OSError, ValueError) as error:
            raise self._connection_lost(error) from error
        return total, select.POLLIN

    def wait_beside(self, other: int, events: int, timeout_s: float, *, reads: bool) -> bool:
        """Wait for bytes, or for events of another descriptor; return False if neither came in
        time.

        Args:
            other: The other descriptor.
            events: Its events.
            timeout_s: The longest wait, in seconds.
            reads: False if bytes are not wanted: then the wait is only for sending of unsent bytes.
        """
        return self._wait(select.POLLIN if reads else 0, timeout_s, (other, events))

    def _wait(self, events: int, timeout_s: float, *others: tuple[int, int]) -> bool:
        poller = select.poll()
        with self._lock:
            if self._closed:
                raise self._connection_lost(None)
            # Without any event a closed peer would still wake it, again and again.
            if events := events | (select.POLLOUT if self._unsent else 0):
                poller.register(self._socket, events)
            poller.register(self._waker[0], select.POLLIN)
        for other, its_events in others:
            poller.register(other, its_events)
        return bool(poller.poll(timeout_s * 1000))

    def send(self, data: bytes) -> None:
        """Send data, or keep the bytes that the peer does not take yet for the next call.

        Never waits. Raises ConnectionLost if the connection broke, or if the peer has taken
        nothing for so long that UNSENT_BYTES_MAX have gathered.
        """
        with self._lock:
            if self._closed:
                raise self._connection_lost(None)
            self._unsent += data
            try:
                self._push()
            except (OSError, ValueError) as error:
                raise self._connection_lost(error) from error
            if len(self._unsent) > UNSENT_BYTES_MAX:
                raise ConnectionLost(f"{self._peer} does not accept what is sent to it")

    def _push(self) -> None:
        try:
            while self._unsent:
                # This is a copy: a TLS session must be given the same bytes again after a WANT.
                sent = self._socket.send(bytes(self._unsent[:65536]))
                del self._unsent[:sent]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything has been given to the system; return False on timeout."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.send(b"")
            with self._lock:
                if not self._unsent:
                    return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._wait(select.POLLOUT, left_s)

    def finish(self) -> None:
        """End sending; what the server still sends can be read."""
        with self._lock:
            if not self._closed and not self.is_tls:
                try:
                    self._socket.shutdown(socket.SHUT_WR)
                except OSError as error:
                    raise self._connection_lost(error) from error

    def close(self) -> None:
        """Close the socket; may be called twice."""
        with self._lock:
            if not self._closed:
                for descriptor in self._waker:
                    os.close(descriptor)
            self._closed = True
            self._socket.close()

    def _connection_lost(self, error: BaseException | None) -> ConnectionLost:
        why = f": {error}" if error is not None and str(error) else ""
        return ConnectionLost(f"the connection to {self._peer} broke{why}", hint=LOST)


def open_tcp(host: str, port: int, timeout_s: float, *, address: str = "") -> Wire:
    """Connect over TCP, trying each address of the name. Raises ServerUnreachable.

    address: a numeric address to use in place of looking up host (libpq's hostaddr).
    """
    try:
        connected = socket.create_connection((address or host, port), timeout=timeout_s)
    except OSError as error:
        raise ServerUnreachable(
            f"no connection to {host}:{port}: {error}",
            hint=f"Check host and port, and that the server runs: "
            f"`pg_isready -h {host} -p {port}`.",
        ) from error
    notice_cuts(connected)
    return Wire(connected, f"{host}:{port}")


def notice_cuts(connected: socket.socket, *, user_timeout_ms: int = TCP_USER_TIMEOUT_MS) -> None:
    """Let the system end a connection whose peer's machine is down; send small packets at once.

    user_timeout_ms: limit for data that the peer does not take. A living peer is cut off, too, if
    it reads nothing for so long.
    """
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", TCP_KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", TCP_KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", TCP_KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", user_timeout_ms),
    ):
        option = getattr(socket, name, None)  # not every system has each of them
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def open_unix(directory: str, port: int, timeout_s: float) -> Wire:
    """Connect to a server's socket file in directory. Raises ServerUnreachable."""
    path = f"{directory}/.s.PGSQL.{port}"
    if path.startswith("@"):
        path = "\0" + path[1:]
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        connected.connect(path)
    except OSError as error:
        connected.close()
        raise ServerUnreachable(
            f"no connection to the socket {path}: {error}",
            hint="Check that the server runs and which unix_socket_directories it has.",
        ) from error
    return Wire(connected, path)
