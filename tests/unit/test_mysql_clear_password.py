"""Requests for the bare password: which servers get it.

The server here speaks just enough of the protocol to ask; its identity is unknown.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trustme
from pymysql.constants import CLIENT

from penstock.engines.mysql.connect import connect
from penstock.host.errors import LoginRefused

PASSWORD = "topsecret"
_CAPABILITIES = CLIENT.SSL | CLIENT.PROTOCOL_41 | CLIENT.SECURE_CONNECTION | CLIENT.PLUGIN_AUTH


class Asker:
    """Server of one connection, over TLS if the client wants it, that asks for the password."""

    def __init__(self, listener: socket.socket, ca: trustme.CA, plugin: bytes) -> None:
        self.got = b""
        self._listener = listener
        self._plugin = plugin
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(self._context)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def password(self) -> bytes:
        """Return the password that it got, once the client has gone."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # no client connected
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.got

    def _serve(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        with closing(peer), suppress(ConnectionError, ssl.SSLError):
            self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        greeting = b"\x0a8.0.40\0" + struct.pack("<I", 1) + b"12345678\0"
        greeting += struct.pack("<HBHHB", _CAPABILITIES & 0xFFFF, 45, 2, _CAPABILITIES >> 16, 21)
        self._send(peer, 0, greeting + bytes(10) + b"123456789012\0mysql_native_password\0")
        number, answer = self._receive(peer)
        if struct.unpack_from("<I", answer)[0] & CLIENT.SSL:
            with self._context.wrap_socket(peer, server_side=True) as safe:
                self._ask(safe, self._receive(safe)[0])
        else:
            self._ask(peer, number)

    def _ask(self, peer: socket.socket, number: int) -> None:
        request = b"\xfe" + self._plugin + b"\0"
        if self._plugin == b"dialog":
            request += b"\4Password: "
        self._send(peer, number + 1, request)
        number, self.got = self._receive(peer)
        self._send(peer, number + 1, b"\xff" + struct.pack("<H", 1045) + b"#28000no")

    @staticmethod
    def _send(peer: socket.socket, number: int, payload: bytes) -> None:
        peer.sendall(len(payload).to_bytes(3, "little") + bytes([number]) + payload)

    def _receive(self, peer: socket.socket) -> tuple[int, bytes]:
        head = self._exactly(peer, 4)
        return head[3], self._exactly(peer, int.from_bytes(head[:3], "little"))

    @staticmethod
    def _exactly(peer: socket.socket, size: int) -> bytes:
        """Read exactly that many bytes: TLS begins right after a packet."""
        data = b""
        while len(data) < size:
            piece = peer.recv(size - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    """An authority that the client may trust."""
    return trustme.CA()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port of this machine."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server


@pytest.mark.parametrize("plugin", [b"mysql_clear_password", b"dialog"])
@pytest.mark.parametrize(
    ("options", "is_given"),
    [
        ("sslmode=disable", False),
        ("sslmode=disable&enable_cleartext_plugin=true", False),
        ("sslmode=prefer", False),
        ("sslmode=require", False),
        ("sslmode=require&enable_cleartext_plugin=false", False),
        ("sslmode=require&enable_cleartext_plugin=true", True),
        ("sslmode=verify-ca&sslrootcert={ca}", True),
        ("sslmode=verify-full&sslrootcert={ca}", True),
    ],
)
def test_the_bare_password_is_for_a_server_that_proved_who_it_is(
    ca: trustme.CA,
    listener: socket.socket,
    tmp_path: Path,
    plugin: bytes,
    options: str,
    is_given: bool,
) -> None:
    """Over TLS, a server may also get it if the URL allows it."""
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    asker = Asker(listener, ca, plugin)
    port = listener.getsockname()[1]
    query = options.format(ca=tmp_path / "ca.pem")
    with pytest.raises(LoginRefused) as caught:
        connect(f"mysql://u:{PASSWORD}@127.0.0.1:{port}/d?{query}", application_name="test")
    assert asker.password() == (PASSWORD.encode() + b"\0" if is_given else b"")
    if not is_given:
        assert "clear text" in caught.value.message
        assert "sslmode=verify-full" in (caught.value.hint or "")


def test_a_socket_file_needs_no_proof(ca: trustme.CA, tmp_path: Path) -> None:
    """The connection cannot be intercepted."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        asker = Asker(server, ca, b"mysql_clear_password")
        with pytest.raises(LoginRefused):
            connect(
                f"mysql://u:{PASSWORD}@localhost/d?unix_socket={tmp_path / 's'}",
                application_name="test",
            )
        assert asker.password() == PASSWORD.encode() + b"\0"
