"""Proxy sessions in snapshots for other processes, in place of an exported snapshot.

These servers cannot hand one snapshot to several sessions, and a session cannot be handed to
another process under TLS. So the process that took the snapshots keeps their sessions and passes
bytes on: clients see one point for as long as it lives, whichever of them is killed. A client that
has finished returns its session with COM_QUIT; if one is killed, the rest of its result is read to
the end, and the session serves the next client. A session is lost only with its connection to the
server, and there are spare ones. If none is left the snapshot is lost: nothing can replace it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import secrets
import select
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from penstock.codec.mysql import mysqlwire
from penstock.engines.mysql.connect import Connection, run
from penstock.engines.mysql.proxy_protocol import (
    GREETING_BYTES_MAX,
    LOOK,
    NO,
    OPEN_SESSION,
    USER_TIMEOUT_MS,
    YES,
    ProxyAddress,
)
from penstock.engines.mysql.source.client import take_over
from penstock.engines.mysql.source.proxied_session import COM_QUERY, LET_GO
from penstock.host.errors import ConnectionLost
from penstock.host.listen import SnapshotAddress, listen_at
from penstock.host.socket import Wire, notice_cuts
from penstock.host.supervised import SupervisedThread

# No client checks the dates: its comparison of the hash shows that the key is of this run.
VALID = timedelta(days=3650)


def server_context() -> tuple[ssl.SSLContext, str]:
    """Return a server's TLS context with a new key, and its certificate's SHA-256 in hex."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock snapshot")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:  # of mode 0700; ssl reads files only
        file = Path(folder) / "key.pem"
        file.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + certificate.public_bytes(Encoding.PEM)
        )
        context.load_cert_chain(file)
    return context, hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


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
        """Count a client that has shown the token; return False if the listener was closed
        meanwhile.
        """
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
    """Relay commands and results until the client has ended; return whether the session is in
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
    """Make a session usable again after a client has left in the middle of something.

    The rest of the client's result is read up to the answer to a query of our own, whose text no
    row can contain. The session's table is released. Raises ConnectionLost if the session is
    unusable.
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


HERE = SnapshotAddress()


class SessionProxy:
    """Proxy of sessions that runs until it is closed. Use as a context manager.

    snapshot_id: what clients need to find it; snapshot_text: the answer that they expect from it.
    """

    def __init__(
        self,
        wires: Sequence[Wire],
        *,
        snapshot_text: str,
        at: SnapshotAddress = HERE,
        encrypts: bool = False,
    ) -> None:
        """Take over sessions and start to listen. wires: to sessions that wait for nothing. at:
        where to listen.

        encrypts: also on loopback. Raises ListenFailed.
        """
        self._wires = set(wires)
        self._free = list(wires)
        self._changed = threading.Condition()
        self.snapshot_text = snapshot_text
        try:
            self._listener = ProxyListener(at, self._serve, encrypts=encrypts)
        except BaseException:
            for wire in wires:
                wire.close()
            raise
        self.snapshot_id = str(self._listener.address)

    @classmethod
    def of(
        cls, connections: Sequence[Connection], *, place: str, snapshot_text: str,
        at: SnapshotAddress = HERE, encrypts: bool = False,
    ) -> Self:  # fmt: skip
        """Take over connections, each in its snapshot. place: names the server in messages."""
        wires = []
        for connection in connections:
            # Text arrives as it is stored: its meaning is decided in one place, by our tables.
            run(connection, "set session character_set_results = null", doing="preparing a session")
            wires.append(take_over(connection, place)[0])
        return cls(wires, snapshot_text=snapshot_text, at=at, encrypts=encrypts)

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
        """Number of sessions in use or free."""
        with self._changed:
            return len(self._wires)

    def close(self) -> None:
        """End all sessions and with them the snapshot."""
        with self._changed:
            wires = list(self._wires)
            self._wires.clear()
            self._free.clear()
            self._changed.notify_all()
        self._listener.close()
        for wire in wires:
            wire.interrupt()
            wire.close()

    # -- clients ---------------------------------------------------------------------------------

    def _serve(self, client: socket.socket, request: str) -> None:
        yes = YES + self.snapshot_text.encode() + b"\n"
        if request == LOOK:
            client.sendall(yes if self.session_count else NO)
        if request != OPEN_SESSION:
            return
        wire = self._take()
        if wire is None:
            client.sendall(NO)
            return
        is_clean = False
        try:
            client.sendall(yes)
            is_clean = pass_on(ClientStream(client), wire)
        finally:
            with contextlib.suppress(OSError):
                client.close()  # it must not wait for the work on the session
            self._give_back(wire, is_clean=is_clean)

    def _take(self) -> Wire | None:
        """Wait for a free session and return it; return None if none is left."""
        with self._changed:
            while self._wires and not self._free:
                self._changed.wait()
            return self._free.pop() if self._free else None

    def _give_back(self, wire: Wire, *, is_clean: bool) -> None:
        """Let the next client use the session, or note that it is lost."""
        if not is_clean and self._is_ours(wire):
            try:
                settle(wire)
                is_clean = True
                logger.warning("client of a snapshot's session lost, the session is kept")
            except ConnectionLost as error:
                logger.warning("session of a snapshot lost", reason=error.message)
        with self._changed:
            if wire not in self._wires:
                return
            if is_clean:
                self._free.append(wire)
                self._changed.notify()
                return
            self._wires.discard(wire)
            left = len(self._wires)
            if left == 0:
                self._changed.notify_all()
        wire.close()
        logger.warning("snapshot has fewer sessions", left=left)

    def _is_ours(self, wire: Wire) -> bool:
        with self._changed:
            return wire in self._wires
