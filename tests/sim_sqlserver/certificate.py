"""A certificate for 127.0.0.1 and localhost, signed by an authority of its own."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


def make_context(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Return the server's TLS context and the authority's certificate; server.pem is beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    path = folder / "ca.pem"
    authority.cert_pem.write_to_path(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["tds/8.0"])  # for clients that begin with TLS
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "server.pem")
    certificate.configure_cert(context)
    return context, path
