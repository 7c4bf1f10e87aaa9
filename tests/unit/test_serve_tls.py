"""TLS of a served log: which clients must use it, and that unencrypted bytes never count."""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import trustme

from harness.pipelines.log import inserts, number_rows
from harness.pipelines.pipeline import pipeline
from harness.servers.serve import Patterns, Running, answer_of, settings_of, write_log
from harness.servers.serve_client import Raw
from penstock.control.run.serve_process import serve_settings
from penstock.model.sections import ServeSection
from penstock.serve import server
from penstock.serve.server import binding_of

SSL_REQUEST = struct.pack(">ii", 8, 80877103)


@pytest.fixture
def encrypted_server(tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    """A server with a certificate, and the file of its signer."""
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    certificate = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.RSA)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    patterns = Patterns({"select many": answer_of([("n", 25)], [("x" * 1000,)] * 3000)})
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    settings = settings_of(tls=context, binding=binding_of(tmp_path / "cert.pem"))
    with Running(tmp_path, settings=settings, patterns=patterns) as running:
        yield running, tmp_path / "ca.pem"


def test_a_client_that_checks_the_certificate(encrypted_server: tuple[Running, Path]) -> None:
    """Three megabytes arrive complete."""
    running, authority = encrypted_server
    url = running.url(sslmode="verify-full", sslrootcert=str(authority))
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.pgconn.ssl_in_use
        assert len(connection.execute("select many").fetchall()) == 3000


@pytest.mark.parametrize("binding", ["require", "prefer", "disable"])
def test_a_client_that_binds_its_password(
    encrypted_server: tuple[Running, Path], binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mechanism is offered with TLS, and the hash is that of the certificate."""
    running, _ = encrypted_server
    psycopg.connect(running.url(sslmode="require", channel_binding=binding)).close()
    monkeypatch.setattr(
        running.server, "_settings", replace(running.settings, binding=b"another certificate")
    )
    if binding == "disable":
        psycopg.connect(running.url(sslmode="require", channel_binding=binding)).close()
    else:
        with pytest.raises(psycopg.OperationalError, match="channel binding check failed"):
            psycopg.connect(running.url(sslmode="require", channel_binding=binding))


def test_the_pipeline_file_switches_it_on(tmp_path: Path) -> None:
    """The file names its certificate, whose chain is ignored. A file without one is refused."""
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    certificate = authority.issue_cert("localhost", key_type=trustme.KeyType.RSA)
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    chain = certificate.cert_chain_pems[0].bytes() + authority.cert_pem.bytes()
    (tmp_path / "cert.pem").write_bytes(b"Certificate:\n" + chain)
    found = pipeline(tmp_path, "postgresql://u@127.0.0.1:1/d", None)
    found = replace(found, path=tmp_path / "pipeline.toml")
    section = ServeSection(
        users={"repl": "secret"}, tls={"certificate": "cert.pem", "key": "key.pem"}
    )
    settings = serve_settings(found, section)
    der = ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())
    assert settings.tls is not None
    assert settings.binding == hashlib.sha256(der).digest()
    assert serve_settings(found, replace(section, tls="off")).binding is None
    (tmp_path / "none.pem").write_text("no certificate")
    with pytest.raises(ValueError, match="no certificate"):
        binding_of(tmp_path / "none.pem")


def test_without_it_from_this_machine_alone(
    encrypted_server: tuple[Running, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection from elsewhere is refused, before a password is requested."""
    running, _ = encrypted_server
    psycopg.connect(running.url(sslmode="disable")).close()
    monkeypatch.setattr(server, "is_loopback", lambda _: False)
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(running.url(sslmode="disable"))
    psycopg.connect(running.url(sslmode="require")).close()


def test_what_comes_before_the_handshake_is_refused(encrypted_server: tuple[Running, Path]) -> None:
    """An attacker in between could put them there."""
    running, _ = encrypted_server
    client = Raw(running, login=False)
    client.socket.sendall(SSL_REQUEST + b"\0\0\0\x08injected")
    found = client.socket.recv(1)
    while data := client.socket.recv(4096):
        found += data
    client.close()
    assert found[:1] == b"E"
    assert b"unencrypted" in found
