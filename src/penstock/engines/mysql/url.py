"""URL of a MySQL or MariaDB database: its TLS, its options, and what a process needs to reach it.

    mysql://user:password@host:3306/database?sslmode=verify-full&sslrootcert=/etc/ca.pem

`mariadb://` means the same; the server itself tells which of the two it is. Options follow; the
names of MySQL's own clients are accepted too (`ssl-mode`, `ssl-ca`, `ssl-cert`, `ssl-key`):

sslmode          disable; prefer (TLS if the server has it, nothing verified: the default);
                 require; verify-ca (the chain); verify-full (and the host's name)
sslrootcert      file of the authorities to trust, or `system`
sslcert, sslkey, sslpassword       our own certificate, for accounts that require one
server_public_key                  file of the server's RSA key, for a log-in without TLS
get_server_public_key              true: ask the server for that key and trust it
enable_cleartext_plugin            true: give the bare password to a server that asks for it over
                                   TLS (LDAP, PAM) even where sslmode verifies nothing
connect_timeout                    seconds, 10 by default
unix_socket                        a socket file instead of host and port
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.codec.mysql.binlog_position import BINLOG_HEAD_BYTES, BinlogPosition
from penstock.host.errors import TlsFailed, UrlInvalid, mask
from penstock.model.position import PositionInvalid
from penstock.model.whole_number import parse_whole
from penstock.ports.config import ChangeExtractorSection
from penstock.ports.registry import Reach

SCHEMES = ("mysql", "mariadb")
PORT_DEFAULT = 3306
SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
CONNECT_TIMEOUT_S = 10
EXAMPLE = "mysql://user:password@host:3306/database"
_MODE_NAMES = {
    "disabled": "disable",
    "preferred": "prefer",
    "required": "require",
    "verify_ca": "verify-ca",
    "verify_identity": "verify-full",
}
_OPTION_NAMES = {
    "enable-cleartext-plugin": "enable_cleartext_plugin",
    "ssl-mode": "sslmode",
    "ssl-ca": "sslrootcert",
    "ssl-cert": "sslcert",
    "ssl-key": "sslkey",
    "socket": "unix_socket",
}
_OPTIONS = frozenset(
    {
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "sslpassword",
        "server_public_key",
        "get_server_public_key",
        "enable_cleartext_plugin",
        "connect_timeout",
        "unix_socket",
    }
)
_BOOLEANS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class MySQLUrl:
    """Parts of a URL. database: empty if there is none. options: keyed by the names above."""

    host: str
    port: int = PORT_DEFAULT
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL. Raises UrlInvalid, whose message never contains the password."""
        try:
            parts = urlsplit(text)
            port = parts.port or PORT_DEFAULT
        except ValueError as error:
            raise _invalid(text, "it cannot be read") from error
        if parts.scheme not in SCHEMES or "//" not in text:
            raise _invalid(text, "it does not begin with mysql:// or mariadb://")
        if "/" in parts.path.lstrip("/") or parts.fragment:
            raise _invalid(text, "it names more than a database after the host")
        options = _options(text, parts.query)
        if not parts.hostname and "unix_socket" not in options:
            raise _invalid(text, "it names no host")
        return cls(
            host=unquote(parts.hostname or "localhost"),
            port=port,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=unquote(parts.path.lstrip("/")),
            options=MappingProxyType(options),
        )

    @property
    def sslmode(self) -> str:
        """Return the mode, one of SSL_MODES."""
        return self.options.get("sslmode", "prefer")

    @property
    def is_verified(self) -> bool:
        """Return whether the server has to authenticate by a certificate."""
        return self.sslmode.startswith("verify")

    @property
    def may_ask_for_key(self) -> bool:
        """Return whether the RSA key that the server itself sends may be trusted."""
        return self._says("get_server_public_key")

    @property
    def may_send_clear_text(self) -> bool:
        """Return whether the server behind TLS or a socket file may get the password in clear text.

        It may if it is authenticated, if no program can be in between, or if the URL allows it.
        """
        if "unix_socket" in self.options or self.is_verified:
            return True
        return self._says("enable_cleartext_plugin")

    def _says(self, option: str) -> bool:
        return _BOOLEANS[self.options.get(option, "false").lower()]

    @property
    def connect_timeout_s(self) -> float:
        """Return how long a server may take until the log-in is done."""
        return float(self.options.get("connect_timeout", CONNECT_TIMEOUT_S))

    @property
    def place(self) -> str:
        """Return `host:port` or the socket file, for messages."""
        return self.options.get("unix_socket") or f"{self.host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context to connect with; None to connect without TLS.

        Raises TlsFailed if a file is missing or broken.
        """
        if self.sslmode == "disable" or "unix_socket" in self.options:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.is_verified:
                self._trust(context)
            if self.options.get("sslcert"):
                context.load_cert_chain(
                    str(_file(self.options["sslcert"])),
                    keyfile=str(_file(self.options["sslkey"]))
                    if "sslkey" in self.options
                    else None,
                    password=self.options.get("sslpassword", ""),
                )
        except (OSError, ssl.SSLError) as error:
            raise TlsFailed(
                f"a certificate or key file for {self.place} cannot be used: {error}",
                hint="Check sslrootcert, sslcert and sslkey in the URL.",
            ) from error
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        root = self.options.get("sslrootcert", "")
        if not root:
            raise TlsFailed(
                f"sslmode {self.sslmode} needs a root certificate",
                hint="Add sslrootcert=FILE (or sslrootcert=system) to the URL.",
            )
        if root == "system":
            context.load_default_certs()
        else:
            context.load_verify_locations(cafile=str(_file(root)))
        context.verify_mode = ssl.CERT_REQUIRED
        # As in libpq: a certificate of a public authority proves nothing without the host's name.
        context.check_hostname = self.sslmode == "verify-full" or root == "system"

    def public_key(self) -> bytes | None:
        """Return the server's RSA key that server_public_key names. Raises TlsFailed."""
        name = self.options.get("server_public_key")
        if name is None:
            return None
        try:
            return _file(name).read_bytes()
        except OSError as error:
            raise TlsFailed(
                f"the key file of server_public_key cannot be read: {error}",
                hint="Name the file of the server's public_key.pem in the URL.",
            ) from error


def _file(name: str) -> Path:
    return Path(name).expanduser()


def _invalid(text: str, why: str) -> UrlInvalid:
    shown = mask(text) if "://" in text else "***"
    return UrlInvalid(
        f"not the URL of a MySQL or MariaDB database: {shown}: {why}",
        hint=f"Write it as {EXAMPLE} and percent-encode special characters in user and password.",
    )


def _options(text: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for given, value in parse_qsl(query, keep_blank_values=True):
        name = _OPTION_NAMES.get(given, given)
        if name not in _OPTIONS:
            raise _invalid(text, f"it has the unknown option {given}")
        options[name] = value
    mode = options.get("sslmode")
    if mode is not None:
        mode = _MODE_NAMES.get(mode.lower(), mode)
        if mode not in SSL_MODES:
            raise _invalid(text, f"sslmode is not one of {', '.join(SSL_MODES)}")
        options["sslmode"] = mode
    limit = options.get("connect_timeout", "1")
    if not parse_whole(limit, 31_536_000):
        raise _invalid(text, "connect_timeout is not a number of seconds")
    for name in ("get_server_public_key", "enable_cleartext_plugin"):
        if options.get(name, "true").lower() not in _BOOLEANS:
            raise _invalid(text, f"{name} is neither true nor false")
    return options


def with_database(text: str, database: str) -> str:
    """Return the URL for another database of the same server."""
    parts = urlsplit(text)
    return parts._replace(path=f"/{quote(database, safe='')}").geturl()


SERVER_ID_MAX = 2**32 - 1


def check_url(url: str) -> None:
    """Refuse a URL that cannot be of this engine."""
    if not MySQLUrl.parse(url).user:
        raise UrlInvalid("url names no user", hint=f"Write it like {EXAMPLE}.")


def problems(section: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """Yield wrong values of this engine's keys in [changeExtractor]: key and requirement."""
    file, position = section.binlog_file, section.binlog_position
    if not 0 <= section.server_id <= SERVER_ID_MAX:
        yield "serverId", f"must be from 1 to {SERVER_ID_MAX}"
    if file is None and position is not None:
        yield "binlogPosition", "needs binlogFile beside it"
    if file is not None:
        try:
            BinlogPosition.at(file, BINLOG_HEAD_BYTES if position is None else position)
        except PositionInvalid as error:
            yield "binlogFile", f"cannot be used: {error.message}"
    if position is not None and position < BINLOG_HEAD_BYTES:
        yield "binlogPosition", f"must be at least {BINLOG_HEAD_BYTES}"


FILES = ("sslrootcert", "sslcert", "sslkey", "server_public_key")


def reach(url: str) -> Reach:
    """Return the requirements of a connection to a URL."""
    found = MySQLUrl.parse(url)
    socket = found.options.get("unix_socket", "")
    return Reach(
        addresses=() if socket else ((found.host, found.port),),
        socket=socket,
        files=tuple(
            found.options[name] for name in FILES if found.options.get(name, "system") != "system"
        ),
    )
