"""Certificate of a server, to which passwords are bound."""

from __future__ import annotations

import ssl
from pathlib import Path

from penstock.codec.postgres.tls_binding import channel_binding
from penstock.host.files import REAL_FILES, Files

_END = "-----END CERTIFICATE-----"


def binding_of(path: Path, files: Files = REAL_FILES) -> bytes | None:
    """Return the hash of the first certificate in a PEM file, which is the one that is shown.

    Returns None for one whose signature has no hash of its own (Ed25519): no client can bind then.
    Raises FileFailed, and ValueError for a file without a certificate.
    """
    text, end, _ = files.read_whole(path).decode("ascii", "replace").partition(_END)
    begin = text.rfind("-----BEGIN CERTIFICATE-----")
    if begin < 0:
        raise ValueError(f"no certificate in {path}")
    return channel_binding(ssl.PEM_cert_to_DER_cert(text[begin:] + end))
