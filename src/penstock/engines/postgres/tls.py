"""Certificates to trust and to present, from libpq's parameters."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from penstock.host.errors import TlsFailed

ALPN_PROTOCOL = "postgresql"

_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_HOME = Path("~/.postgresql")


def _file(parameters: Mapping[str, str], name: str, default: str) -> Path | None:
    """Return the file that a parameter names, or the one at libpq's usual place if it is there."""
    given = parameters.get(name, "")
    if given:
        return Path(given).expanduser()
    usual = (_HOME / default).expanduser()
    return usual if usual.is_file() else None


def client_context(parameters: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context for a server, from sslmode, sslrootcert, sslcert, sslkey and so on.

    Raises TlsFailed when a file is missing or broken, or verification is asked for without a
    root certificate.
    """
    mode = parameters.get("sslmode") or "prefer"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([ALPN_PROTOCOL])
    context.minimum_version = _version(parameters.get("ssl_min_protocol_version") or "TLSv1.2")
    if parameters.get("ssl_max_protocol_version"):
        context.maximum_version = _version(parameters["ssl_max_protocol_version"])
    try:
        _trust(context, parameters, mode)
        _show(context, parameters)
    except (OSError, ssl.SSLError) as error:
        raise TlsFailed(
            f"a certificate or key file cannot be used: {error}",
            hint="Check sslrootcert, sslcert, sslkey and sslcrl in the URL.",
        ) from error
    return context


def _version(name: str) -> ssl.TLSVersion:
    try:
        return _VERSIONS[name]
    except KeyError as error:
        raise TlsFailed(
            f"unknown TLS version {name!r}", hint=f"Write one of {', '.join(_VERSIONS)}."
        ) from error


def _trust(context: ssl.SSLContext, parameters: Mapping[str, str], mode: str) -> None:
    system = parameters.get("sslrootcert") == "system"
    root = None if system else _file(parameters, "sslrootcert", "root.crt")
    if system:
        context.load_default_certs()
        mode = "verify-full"  # as in libpq: a public authority proves nothing without the name
    elif root is not None and mode in ("require", "verify-ca", "verify-full"):
        context.load_verify_locations(cafile=str(root))
        mode = "verify-ca" if mode == "require" else mode
    if mode in ("verify-ca", "verify-full"):
        if root is None and not system:
            raise TlsFailed(
                f"sslmode {mode} needs a root certificate",
                hint="Add sslrootcert=FILE (or sslrootcert=system) to the URL.",
            )
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = mode == "verify-full"
        revoked = _file(parameters, "sslcrl", "root.crl")
        if revoked is not None:
            context.load_verify_locations(cafile=str(revoked))
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _show(context: ssl.SSLContext, parameters: Mapping[str, str]) -> None:
    certificate = _file(parameters, "sslcert", "postgresql.crt")
    if certificate is None:
        return
    key = _file(parameters, "sslkey", "postgresql.key")
    context.load_cert_chain(
        str(certificate),
        keyfile=str(key) if key is not None else None,
        password=parameters.get("sslpassword") or "",
    )
