"""URL of a SQL Server database: its TLS, its options, and the addresses that a process must reach.

    sqlserver://user:password@host:1433/database?encrypt=strict&applicationIntent=ReadOnly

Options have the names of Microsoft's drivers, in any case:

encrypt                  yes (TLS, the default); strict (TDS 8.0, TLS before anything else); no
trustServerCertificate   true: accept any certificate, default false
hostNameInCertificate    name that the certificate must have, if it is not the host's
serverCertificate        file of the one certificate to accept, for encrypt=strict
applicationIntent        ReadOnly: a readable secondary behind an availability group's listener
multiSubnetFailover      true: try all addresses of a listener at once
authentication           SqlPassword (the default), ActiveDirectoryPassword, ActiveDirectoryMSI,
                         ActiveDirectoryServicePrincipal or ActiveDirectoryDefault
packetSize               bytes, 512 to 32767
connectTimeout           seconds until the log-in is done, 15 by default

The source of names and values is the ODBC Driver 18, which mssql_python contains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.codec.sqlserver.lsn import SqlServerLsn
from penstock.host.errors import UrlInvalid, mask
from penstock.model.position import PositionInvalid
from penstock.model.whole_number import parse_whole
from penstock.ports.config import ChangeExtractorSection
from penstock.ports.registry import Reach

SCHEME = "sqlserver"
PORT_DEFAULT = 1433
CONNECT_TIMEOUT_S = 15
EXAMPLE = "sqlserver://user:password@host:1433/database"
SCHEMA_DEFAULT = "dbo"

_BOOLEANS = {"true": "yes", "yes": "yes", "1": "yes", "false": "no", "no": "no", "0": "no"}
_ENCRYPT = {
    **_BOOLEANS,
    "mandatory": "yes",
    "optional": "no",
    "strict": "strict",
}
_INTENTS = {"readonly": "ReadOnly", "readwrite": "ReadWrite"}
_AUTHENTICATIONS = {
    one.lower(): one
    for one in (
        "SqlPassword",
        "ActiveDirectoryPassword",
        "ActiveDirectoryMSI",
        "ActiveDirectoryServicePrincipal",
        "ActiveDirectoryDefault",
    )
}
# Authentications for which the URL need not name a user.
_USERLESS = frozenset({"ActiveDirectoryMSI", "ActiveDirectoryDefault"})
_OPTIONS = {
    one.lower(): one
    for one in (
        "encrypt",
        "trustServerCertificate",
        "hostNameInCertificate",
        "serverCertificate",
        "applicationIntent",
        "multiSubnetFailover",
        "authentication",
        "packetSize",
        "connectTimeout",
    )
}
_CHOICES: Mapping[str, tuple[Mapping[str, str], str]] = {
    "encrypt": (_ENCRYPT, "yes, strict or no"),
    "trustServerCertificate": (_BOOLEANS, "true or false"),
    "multiSubnetFailover": (_BOOLEANS, "true or false"),
    "applicationIntent": (_INTENTS, "ReadOnly or ReadWrite"),
    "authentication": (_AUTHENTICATIONS, " or ".join(_AUTHENTICATIONS.values())),
}
# Options that the driver knows, as its connection string spells them.
_KEYWORDS = {
    "encrypt": "Encrypt",
    "trustServerCertificate": "TrustServerCertificate",
    "hostNameInCertificate": "HostnameInCertificate",
    "serverCertificate": "ServerCertificate",
    "applicationIntent": "ApplicationIntent",
    "multiSubnetFailover": "MultiSubnetFailover",
    "authentication": "Authentication",
    "packetSize": "PacketSize",
}
_PACKET_BYTES = (512, 32_767)
_TIMEOUT_MAX_S = 31_536_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SQLServerUrl:
    """Parts of a URL.

    Attributes:
        database: Never empty.
        options: Values in the driver's spelling, keyed by the names of the module's text.
    """

    host: str
    port: int = PORT_DEFAULT
    user: str = ""
    password: str = field(default="", repr=False)
    database: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL. Raises UrlInvalid, whose message never contains the password."""
        try:
            parts = urlsplit(text)
            port = parts.port or PORT_DEFAULT
        except ValueError as error:
            raise _invalid(text, "it cannot be read") from error
        if parts.scheme != SCHEME or "//" not in text:
            raise _invalid(text, f"it does not begin with {SCHEME}://")
        database = unquote(parts.path.lstrip("/"))
        if "/" in parts.path.lstrip("/") or parts.fragment:
            raise _invalid(text, "it names more than a database after the host")
        if not parts.hostname:
            raise _invalid(text, "it names no host")
        if not database:
            raise _invalid(text, "it names no database")
        words = (unquote(one or "") for one in (parts.hostname, parts.username, parts.password))
        host, user, password = words
        if any("\0" in one for one in (host, user, password, database)):
            raise _invalid(text, "it has a zero byte")
        return cls(
            host=host,
            port=port,
            user=user,
            password=password,
            database=database,
            options=MappingProxyType(_options(text, parts.query)),
        )

    @property
    def place(self) -> str:
        """Return `host:port`, for messages."""
        return f"{self.host}:{self.port}"

    @property
    def is_read_only(self) -> bool:
        """Return whether the session may be one of a readable secondary."""
        return self.options.get("applicationIntent") == "ReadOnly"

    @property
    def needs_user(self) -> bool:
        """Return whether the log-in needs the name of a user."""
        return self.options.get("authentication") not in _USERLESS

    @property
    def connect_timeout_s(self) -> int:
        """Return how long a server may take until the log-in is done."""
        return int(self.options.get("connectTimeout", CONNECT_TIMEOUT_S))

    def connection_string(self) -> str:
        """Return what mssql_python connects with; it contains the password."""
        pairs = {"Server": f"{self.host},{self.port}", "Database": self.database}
        if self.user:
            pairs["UID"] = self.user
        if self.password:
            pairs["PWD"] = self.password
        for option, keyword in _KEYWORDS.items():
            value = self.options.get(option, "")
            if value and value != "SqlPassword":
                pairs[keyword] = value
        return "".join(f"{key}={{{value.replace('}', '}}')}}};" for key, value in pairs.items())


def _invalid(text: str, why: str) -> UrlInvalid:
    shown = mask(text) if "://" in text else "***"
    return UrlInvalid(
        f"not the URL of a SQL Server database: {shown}: {why}",
        hint=f"Write it as {EXAMPLE} and percent-encode special characters in user and password.",
    )


def _options(text: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for given, value in parse_qsl(query, keep_blank_values=True):
        name = _OPTIONS.get(given.lower())
        if name is None:
            raise _invalid(text, f"it has the unknown option {given}")
        if name in options:
            raise _invalid(text, f"it has the option {name} twice")
        options[name] = _value(text, name, value)
    if options.get("encrypt") == "strict" and options.get("trustServerCertificate") == "yes":
        raise _invalid(text, "encrypt=strict never trusts an unverified certificate")
    return options


def _value(text: str, name: str, value: str) -> str:
    """Return an option's value in the driver's spelling."""
    if name in _CHOICES:
        choices, shown = _CHOICES[name]
        if value.lower() not in choices:
            raise _invalid(text, f"{name} is not {shown}")
        return choices[value.lower()]
    if name == "connectTimeout":
        if not parse_whole(value, _TIMEOUT_MAX_S):
            raise _invalid(text, "connectTimeout is not a number of seconds")
        return str(parse_whole(value))
    if name == "packetSize":
        low, high = _PACKET_BYTES
        number = parse_whole(value, high)
        if number is None or number < low:
            raise _invalid(text, f"packetSize is not from {low} to {high} bytes")
        return str(number)
    if not value or "\0" in value:
        raise _invalid(text, f"{name} is empty")
    return value


def with_database(text: str, database: str) -> str:
    """Return the URL for another database of the same server."""
    parts = urlsplit(text)
    return parts._replace(path=f"/{quote(database, safe='')}").geturl()


def check_url(url: str) -> None:
    """Refuse a URL that cannot be of this engine."""
    parsed = SQLServerUrl.parse(url)
    if not parsed.user and parsed.needs_user:
        raise UrlInvalid("url names no user", hint=f"Write it like {EXAMPLE}.")


def problems(section: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """Yield wrong values of this engine's keys in [changeExtractor]: key and requirement."""
    if section.start_lsn is None:
        return
    try:
        SqlServerLsn.parse(section.start_lsn)
    except PositionInvalid as error:
        yield "startLsn", f"cannot be used: {error.message}"


def reach(url: str) -> Reach:
    """Return the requirements of a connection to a URL."""
    parsed = SQLServerUrl.parse(url)
    file = parsed.options.get("serverCertificate")
    return Reach(addresses=((parsed.host, parsed.port),), files=(file,) if file else ())
