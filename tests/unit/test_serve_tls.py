"""TLS of a served log: who must use it, and that nothing unencrypted counts as if it were."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import trustme

from fix_log import inserts, numbered
from fix_serve import Patterns, Running, answer_of, settings_of, write_log
from fix_serve_client import Raw
from penstock.serve import server

SSL_REQUEST = struct.pack(">ii", 8, 80877103)


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    """A server with a certificate, and the file of who signed it."""
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    certificate = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.RSA)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    write_log(tmp_path / "log", numbered([inserts(1)]))
    patterns = Patterns({"select many": answer_of([("n", 25)], [("x" * 1000,)] * 3000)})
    settings = settings_of(tls=context)
    with Running(tmp_path, settings=settings, patterns=patterns) as running:
        yield running, tmp_path / "ca.pem"


def test_a_client_that_checks_the_certificate(encrypted: tuple[Running, Path]) -> None:
    """Three megabytes come whole."""
    running, authority = encrypted
    url = running.url(sslmode="verify-full", sslrootcert=str(authority))
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.pgconn.ssl_in_use
        assert len(connection.execute("select many").fetchall()) == 3000


def test_without_it_from_this_machine_alone(
    encrypted: tuple[Running, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From elsewhere it is refused, before a password is asked for."""
    running, _ = encrypted
    psycopg.connect(running.url(sslmode="disable")).close()
    monkeypatch.setattr(server, "_is_loopback", lambda _: False)
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(running.url(sslmode="disable"))
    psycopg.connect(running.url(sslmode="require")).close()


def test_what_comes_before_the_handshake_is_refused(encrypted: tuple[Running, Path]) -> None:
    """Somebody between could put it there."""
    running, _ = encrypted
    client = Raw(running, login=False)
    client.socket.sendall(SSL_REQUEST + b"\0\0\0\x08injected")
    found = client.socket.recv(1)
    while data := client.socket.recv(4096):
        found += data
    client.close()
    assert found[:1] == b"E"
    assert b"unencrypted" in found
