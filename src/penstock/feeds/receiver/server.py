"""The running server of the receiver: its socket, its thread, its certificate, its end."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from penstock.feeds.receiver.app import Receiver
from penstock.host.http_server import http_server
from penstock.host.listen import as_key, is_loopback, listening_socket, url_of
from penstock.model import PenstockError

END_WITHIN_S = 30.0
SELF_SIGNED_DAYS = 3650


class EncryptionMissing(PenstockError):
    """Feeds would be received from other machines without encryption."""

    code = "ST14"


class CertificateUnusable(PenstockError):
    """The certificate or its key cannot be used."""

    code = "ST15"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Pair of PEM files."""

    certificate: Path
    private_key: Path


@contextmanager
def serving(
    receiver: Receiver, host: str, port: int, certificate: Certificate | None
) -> Iterator[str]:
    """Receive while the block runs; yield the address. Work that has begun is ended in order.

    Raises EncryptionMissing beyond loopback without a certificate, CertificateUnusable, PortTaken,
    ListenFailed.
    """
    if certificate is None and not is_loopback(host):
        raise EncryptionMissing(
            f"changefeeds would come to {host} without encryption",
            hint="Set tlsCertificate and tlsPrivateKey in [stage], or tlsSelfSigned = true; or "
            'listen = "127.0.0.1:26258".',
        )
    if certificate is not None:
        _check(certificate)
    listener = listening_socket(host, port, written=as_key("stage"))
    files = None
    if certificate is not None:
        files = (str(certificate.certificate), str(certificate.private_key))
    host, port = listener.getsockname()[:2]
    try:
        with http_server(
            receiver.app,
            listener,
            name="receiver",
            end_requests_s=END_WITHIN_S,
            end_within_s=END_WITHIN_S + 1,
            not_started=_not_started,
            certificate=files,
        ):
            yield url_of("http" if certificate is None else "https", host, port)
    finally:
        receiver.close()
        listener.close()


def _not_started() -> CertificateUnusable:
    return CertificateUnusable(
        "the receiver did not start", hint="Run the command again with --verbose."
    )


def _check(certificate: Certificate) -> None:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.private_key, lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise CertificateUnusable(
            f"{certificate.certificate} with {certificate.private_key}: {error.strerror or error}",
            hint="Set tlsCertificate and tlsPrivateKey in [stage] to files in PEM that belong "
            "together, without a passphrase.",
        ) from error


def self_signed(directory: Path, host: str) -> Certificate:
    """Return a certificate of our own in a directory: the existing one, or a new one.

    A feed accepts it with insecure_tls_skip_verify=true, or with ca_cert.
    """
    found = Certificate(
        certificate=directory / "stage-certificate.pem",
        private_key=directory / "stage-private-key.pem",
    )
    if found.certificate.exists() and found.private_key.exists():
        return found
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock stage")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    found.private_key.unlink(missing_ok=True)
    found.private_key.touch(mode=0o600)
    found.private_key.write_bytes(secret)
    found.certificate.write_bytes(made.public_bytes(Encoding.PEM))
    return found


def _names(host: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [
        x509.DNSName(one) for one in sorted({"localhost", socket.gethostname()})
    ]
    try:
        return [*names, x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        return [*names, x509.DNSName(host)]
