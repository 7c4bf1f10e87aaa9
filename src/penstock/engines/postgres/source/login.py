"""Logging in to a PostgreSQL server: its address, TLS, and authentication.

Parameters and defaults are libpq's, read by libpq itself (URL, environment, service file), so
that a URL means here what it means to psql.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import conninfo
from psycopg.pq import Conninfo

from penstock.codec.postgres import pgwire
from penstock.codec.postgres.scram import (
    SCRAM,
    SCRAM_PLUS,
    ScramClient,
    ScramError,
    channel_binding,
)
from penstock.engines.postgres.connect import CONNECT_TIMEOUT_S
from penstock.engines.postgres.tls import client_context
from penstock.host.errors import (
    ConnectFailed,
    LoginRefused,
    ServerUnreachable,
    TlsFailed,
    UrlInvalid,
    mask,
)
from penstock.host.socket import Wire, open_tcp, open_unix
from penstock.model.whole_number import parse_whole

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """One server to try. host: a name, an address, or the directory of a socket file."""

    host: str
    address: str
    port: int

    @property
    def is_unix(self) -> bool:
        """Return whether the server is reached through a socket file."""
        return not self.address and self.host.startswith(("/", "@"))


def parameters_of(url: str) -> dict[str, str]:
    """Return libpq's parameters for a URL: from the URL, else the environment, else the defaults.

    Raises UrlInvalid; the message never holds the password.
    """
    try:
        given = conninfo.conninfo_to_dict(url)
        known = Conninfo.get_defaults()
    except psycopg.Error as error:
        # libpq's own text may repeat the password: only what is masked is passed on.
        raise UrlInvalid(
            f"not a PostgreSQL URL: {mask(url)}",
            hint="Write it as postgresql://user:password@host:5432/database?sslmode=verify-full.",
        ) from error
    parameters = {
        option.keyword.decode(): option.val.decode() for option in known if option.val is not None
    }
    parameters.update({name: str(value) for name, value in given.items() if value is not None})
    mode = parameters.setdefault("sslmode", "prefer")
    if mode not in SSL_MODES:
        raise UrlInvalid(f"unknown sslmode {mode!r}", hint=f"Write one of {', '.join(SSL_MODES)}.")
    parameters.setdefault("dbname", parameters.get("user", ""))
    return parameters


def targets(parameters: Mapping[str, str]) -> list[ServerAddress]:
    """Return the servers to try, in order; libpq's comma-separated lists are understood."""
    hosts = parameters.get("host", "").split(",")
    addresses = parameters.get("hostaddr", "").split(",")
    ports = parameters.get("port", "").split(",")
    count = max(len(hosts), len(addresses))
    found = []
    for index in range(count):
        host = hosts[index] if index < len(hosts) else ""
        address = addresses[index] if index < len(addresses) else ""
        port = ports[index] if len(ports) > 1 and index < len(ports) else ports[0]
        number = parse_whole(port or "5432", 65535)
        if not number:
            raise UrlInvalid(f"not a port: {port!r}")
        if not host and not address:
            host = _socket_directory()
        found.append(ServerAddress(host=host or address, address=address, port=number))
    return found


def _socket_directory() -> str:
    """Return the folder of the server's socket file if no host is named; localhost if there is
    none.
    """
    for directory in ("/var/run/postgresql", "/tmp"):  # noqa: S108 - PostgreSQL's own places
        if any(Path(directory).glob(".s.PGSQL.*")):
            return directory
    return "localhost"


def timeout_s(parameters: Mapping[str, str]) -> float:
    """Return the seconds that one server may take until the log-in is done; 0, as in libpq, is no
    limit.
    """
    text = parameters.get("connect_timeout", "")
    seconds = parse_whole(text, 31_536_000, otherwise=CONNECT_TIMEOUT_S)
    return float(seconds) if seconds > 0 else 86_400.0


def encryption_order(mode: str, target: ServerAddress) -> tuple[bool, ...]:
    """Return whether to ask for TLS, in the order of trying. Socket files are never encrypted."""
    if target.is_unix or mode == "disable":  # as libpq: sslmode is ignored for socket files
        return (False,)
    return {"allow": (False, True), "prefer": (True, False)}.get(mode, (True,))


def open_wire(
    target: ServerAddress, parameters: Mapping[str, str], *, tls: bool, limit_s: float
) -> Wire:
    """Connect to a server and agree on TLS when asked to.

    With sslmode prefer and a server without TLS the wire is plain. Raises ServerUnreachable or
    TlsFailed.
    """
    if target.is_unix:
        return open_unix(target.host, target.port, limit_s)
    wire = open_tcp(target.host, target.port, limit_s, address=target.address)
    try:
        if tls:
            _encrypt(wire, target, parameters, limit_s)
    except BaseException:
        wire.close()
        raise
    return wire


def _encrypt(
    wire: Wire, target: ServerAddress, parameters: Mapping[str, str], limit_s: float
) -> None:
    mode = parameters["sslmode"]
    direct = parameters.get("sslnegotiation") == "direct"
    if direct and mode not in ("require", "verify-ca", "verify-full"):
        raise UrlInvalid(f"sslnegotiation=direct needs sslmode require or better, not {mode}")
    if not direct and not _server_takes_tls(wire, target, mode, limit_s):
        return
    wire.start_tls(client_context(parameters), target.host, limit_s)
    if direct and wire.alpn_protocol() != "postgresql":
        raise TlsFailed(
            f"{target.host} did not select the protocol postgresql in the TLS handshake",
            hint="Direct TLS needs PostgreSQL 17: leave sslnegotiation out of the URL.",
        )


def _server_takes_tls(wire: Wire, target: ServerAddress, mode: str, limit_s: float) -> bool:
    wire.send(pgwire.SSL_REQUEST)
    answer = bytearray(2)
    count = wire.receive_into(memoryview(answer), limit_s)
    if count == 0:
        raise ServerUnreachable(f"no answer from {target.host}:{target.port} in {limit_s:g} s")
    if count > 1:
        # Plain text behind the answer was put there by someone in between (CVE-2021-23222).
        raise TlsFailed(f"{target.host} sent unencrypted data before the TLS handshake")
    if answer[:1] == b"S":
        return True
    if mode != "prefer":
        raise TlsFailed(
            f"the server at {target.host}:{target.port} does not offer TLS",
            hint="Set ssl = on at the server, or sslmode=prefer in the URL if plain text will do.",
        )
    return False


class Authenticator:
    """Answers to the server's authentication requests, one after the other.

    Refuses weaker methods than channel_binding and require_auth demand. Accepts the server's OK
    only after the server has proven its identity, if the method allows that.
    """

    def __init__(self, parameters: Mapping[str, str], target: ServerAddress, wire: Wire) -> None:
        """Take the parameters of `parameters_of` and the wire that the requests come over."""
        self._parameters = parameters
        self._target = target
        self._wire = wire
        self._scram: ScramClient | None = None
        self._verified = False
        self._method = "none"
        self._binding_demanded = parameters.get("channel_binding") == "require"

    def answer(self, code: int, data: bytes) -> bytes | None:
        """Return the message to send; None if there is nothing to send.

        Raises LoginRefused if the method is not acceptable or not known, and ScramError if the
        server cannot prove its identity.
        """
        if code == pgwire.AUTHENTICATION_OK:
            self._accept()
            return None
        if code == pgwire.AUTHENTICATION_CLEARTEXT:
            self._use("password")
            return pgwire.password(self._password().encode())
        if code == pgwire.AUTHENTICATION_MD5:
            self._use("md5")
            user = self._parameters.get("user", "")
            return pgwire.password(pgwire.md5_password(user, self._password(), data[:4]))
        if code == pgwire.AUTHENTICATION_SASL:
            return self._begin_scram(pgwire.sasl_mechanisms(data))
        if code == pgwire.AUTHENTICATION_SASL_CONTINUE and self._scram is not None:
            return pgwire.sasl_response(self._scram.final(data))
        if code == pgwire.AUTHENTICATION_SASL_FINAL and self._scram is not None:
            self._scram.verify(data)
            self._verified = True
            return None
        raise LoginRefused(
            f"the server wants authentication method {code}, which penstock does not speak",
            hint="Let this user in by scram-sha-256 (or md5, cert, trust) in pg_hba.conf.",
        )

    def _use(self, method: str) -> None:
        if self._binding_demanded:
            raise LoginRefused(
                f"the server wants {method}, but channel_binding=require demands SCRAM over TLS"
            )
        self._method = method
        self._check_allowed(method)

    def _check_allowed(self, method: str) -> None:
        words = [w.strip() for w in self._parameters.get("require_auth", "").split(",") if w]
        refused = {word[1:] for word in words if word.startswith("!")}
        wanted = {word for word in words if not word.startswith("!")}
        if method in refused or (wanted and method not in wanted):
            raise LoginRefused(
                f"the server wants authentication method {method}, which require_auth does not "
                "allow"
            )

    def _begin_scram(self, offered: list[str]) -> bytes:
        self._method = "scram-sha-256"
        self._check_allowed(self._method)
        certificate = self._wire.peer_certificate()
        wanted = self._parameters.get("channel_binding", "prefer") != "disable"
        binding = channel_binding(certificate) if certificate is not None and wanted else None
        plus = SCRAM_PLUS in offered and binding is not None
        if not plus and self._binding_demanded:
            raise LoginRefused("the server does not offer SCRAM with channel binding")
        if not plus and SCRAM not in offered:
            raise LoginRefused(f"the server offers only {', '.join(offered)}: not known here")
        self._scram = ScramClient(
            self._password(),
            binding=binding if plus else None,
            over_tls=binding is not None and SCRAM_PLUS not in offered,
        )
        return pgwire.sasl_initial_response(self._scram.mechanism, self._scram.first())

    def _accept(self) -> None:
        if self._scram is not None and not self._verified:
            raise ScramError("the server ended the SCRAM exchange without proving itself")
        if self._binding_demanded and (self._scram is None or self._scram.mechanism != SCRAM_PLUS):
            raise LoginRefused("the server let us in without channel binding, which is demanded")
        if self._method == "none":
            self._check_allowed("none")

    def _password(self) -> str:
        found = self._parameters.get("password") or _from_password_file(
            self._parameters, self._target
        )
        if not found:
            raise LoginRefused(
                f"the server at {self._target.host} wants a password and none is given",
                hint="Write it in the URL (as ${NAME} to keep it out of the file), in PGPASSWORD "
                "or in ~/.pgpass.",
            )
        return found


def _from_password_file(parameters: Mapping[str, str], target: ServerAddress) -> str:
    """Return the password of the first line of libpq's password file that fits, or empty."""
    path = Path(parameters.get("passfile") or "~/.pgpass").expanduser()
    if not path.is_file() or path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return ""  # as libpq: a file that others may read is not used
    host = "localhost" if target.is_unix else target.host
    wanted = (host, str(target.port), parameters.get("dbname", ""), parameters.get("user", ""))
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        fields = [
            re.sub(r"\\(.)", r"\1", field) for field in re.split(r"(?<!\\):", line, maxsplit=4)
        ]
        if len(fields) == 5 and all(
            field in ("*", value) for field, value in zip(fields, wanted, strict=False)
        ):
            return fields[4]
    return ""


def may_try_plain_or_tls(error: ConnectFailed) -> bool:
    """Return whether the next entry of `encryption_order` may succeed where this attempt failed."""
    return not isinstance(error, ServerUnreachable | UrlInvalid)
