"""URL of an Oracle database: its TLS, its options, and the addresses that a process must reach.

    oracle://user:password@host:1521/service?pdb=SHOPPDB

The service is that of the root where changes are mined at the root (`CDB$ROOT`): `pdb` then names
the pluggable database whose tables are read. Without `pdb`, everything happens in the service's own
container: a database without containers, a target, or a pluggable database that mines its own redo.

Options have the names of python-oracledb's parameters, in camel case, and are read in any case:

pdb                pluggable database, for a service of the root
protocol           tcp (the default) or tcps (TLS)
walletLocation     directory of a wallet (ewallet.pem), for protocol=tcps
walletPassword     password of the wallet
sslServerDnMatch   true (the default): the certificate must name the host; false
sslServerCertDn    distinguished name that the certificate must have
serverType         dedicated (the server's default), shared or pooled
connectTimeout     seconds until the connection stands, 20 by default
keepaliveMinutes   minutes of silence between two TCP probes, 2 by default; 0 sends none
sdu                bytes of a network packet, 512 to 2097152

A key of [target] becomes an option, too, because workers have the URL alone: directPath.

The source of names and values is python-oracledb 26.1, `connect()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.host.errors import UrlInvalid, mask
from penstock.model.whole_number import parse_whole
from penstock.ports.config import ChangeExtractorSection, TargetSection
from penstock.ports.registry import Reach

SCHEME = "oracle"
PORT_DEFAULT = 1521
CONNECT_TIMEOUT_S = 20
KEEPALIVE_MINUTES = 2  # load balancers cut a connection that is silent for 350 seconds
EXAMPLE = "oracle://user:password@host:1521/service?pdb=NAME"
ROOT = "CDB$ROOT"
SCN_MAX = 2**63 - 1
BATCH_SECONDS = None

_BOOLEANS = {"true": "true", "yes": "true", "1": "true", "false": "false", "no": "false"}
_BOOLEANS["0"] = "false"
_OPTIONS = {
    one.lower(): one
    for one in (
        "pdb",
        "protocol",
        "walletLocation",
        "walletPassword",
        "sslServerDnMatch",
        "sslServerCertDn",
        "serverType",
        "connectTimeout",
        "keepaliveMinutes",
        "sdu",
        "directPath",
    )
}
_CHOICES: Mapping[str, tuple[Mapping[str, str], str]] = {
    "protocol": ({"tcp": "tcp", "tcps": "tcps"}, "tcp or tcps"),
    "sslServerDnMatch": (_BOOLEANS, "true or false"),
    "directPath": (_BOOLEANS, "true or false"),
    "serverType": (
        {one: one for one in ("dedicated", "shared", "pooled")},
        "dedicated, shared or pooled",
    ),
}
# Numbers: the smallest and the greatest value, and the unit.
_NUMBERS: Mapping[str, tuple[int, int, str]] = {
    "connectTimeout": (1, 31_536_000, "seconds"),
    "keepaliveMinutes": (0, 1440, "minutes"),
    "sdu": (512, 2_097_152, "bytes"),
}
_TLS_OPTIONS = frozenset({"walletLocation", "walletPassword", "sslServerCertDn"})
# Options that the driver takes under a name of its own.
_PARAMETERS = {
    "protocol": "protocol",
    "walletLocation": "wallet_location",
    "walletPassword": "wallet_password",
    "sslServerCertDn": "ssl_server_cert_dn",
    "serverType": "server_type",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleUrl:
    """Parts of a URL.

    Attributes:
        service: Name of the service; never empty.
        options: Values keyed by the names of the module's text.
    """

    host: str
    port: int = PORT_DEFAULT
    user: str = ""
    password: str = field(default="", repr=False)
    service: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL. Raises UrlInvalid, whose message never contains a password."""
        try:
            parts = urlsplit(text)
            port = parts.port or PORT_DEFAULT
        except ValueError as error:
            raise _invalid(text, "it cannot be read") from error
        if parts.scheme != SCHEME or "//" not in text:
            raise _invalid(text, f"it does not begin with {SCHEME}://")
        service = unquote(parts.path.lstrip("/"))
        if "/" in parts.path.lstrip("/") or parts.fragment:
            raise _invalid(text, "it names more than a service after the host")
        if not parts.hostname:
            raise _invalid(text, "it names no host")
        if not service:
            raise _invalid(text, "it names no service")
        words = (unquote(one or "") for one in (parts.hostname, parts.username, parts.password))
        host, user, password = words
        if any("\0" in one for one in (host, user, password, service)):
            raise _invalid(text, "it has a zero byte")
        return cls(
            host=host,
            port=port,
            user=user,
            password=password,
            service=service,
            options=MappingProxyType(_options(text, parts.query)),
        )

    @property
    def place(self) -> str:
        """Return `host:port/service`, for messages."""
        return f"{self.host}:{self.port}/{self.service}"

    @property
    def pdb(self) -> str:
        """Return the pluggable database in upper case; empty if the URL names none."""
        return self.options.get("pdb", "").upper()

    @property
    def is_direct(self) -> bool:
        """Return whether the bulk load sends rows by the direct path."""
        return self.options.get("directPath") == "true"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the passwords, which no message may contain."""
        given = (self.password, self.options.get("walletPassword", ""))
        return tuple(one for one in given if one)

    def parameters(self) -> dict[str, Any]:
        """Return the keyword arguments of oracledb.connect(); they contain the passwords."""
        given = self.options
        out: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "service_name": self.service,
            "user": self.user,
            "password": self.password,
            "tcp_connect_timeout": float(given.get("connectTimeout", CONNECT_TIMEOUT_S)),
            "expire_time": int(given.get("keepaliveMinutes", KEEPALIVE_MINUTES)),
            "program": "penstock",
        }
        out |= {name: given[key] for key, name in _PARAMETERS.items() if key in given}
        if "sslServerDnMatch" in given:
            out["ssl_server_dn_match"] = given["sslServerDnMatch"] == "true"
        if "sdu" in given:
            out["sdu"] = int(given["sdu"])
        return out


def _invalid(text: str, why: str) -> UrlInvalid:
    shown = mask(text) if "://" in text else "***"
    return UrlInvalid(
        f"not the URL of an Oracle database: {shown}: {why}",
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
    unencrypted = sorted(_TLS_OPTIONS & options.keys())
    if unencrypted and options.get("protocol") != "tcps":
        raise _invalid(text, f"{unencrypted[0]} needs protocol=tcps")
    return options


def _value(text: str, name: str, value: str) -> str:
    if name in _CHOICES:
        choices, shown = _CHOICES[name]
        if value.lower() not in choices:
            raise _invalid(text, f"{name} is not {shown}")
        return choices[value.lower()]
    if name in _NUMBERS:
        low, high, unit = _NUMBERS[name]
        number = parse_whole(value, high)
        if number is None or number < low:
            raise _invalid(text, f"{name} is not from {low} to {high} {unit}")
        return str(number)
    if not value or "\0" in value or (name == "pdb" and '"' in value):
        raise _invalid(text, f"{name} is empty or has a character that it cannot have")
    return value


def check_url(url: str) -> None:
    """Refuse a URL that cannot be of this engine. Raises UrlInvalid."""
    if not OracleUrl.parse(url).user:
        raise UrlInvalid("url names no user", hint=f"Write it like {EXAMPLE}.")


def problems(section: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """Yield wrong values of this engine's keys in [changeExtractor]: key and requirement."""
    if section.start_scn is not None and not parse_whole(section.start_scn, SCN_MAX):
        yield "startScn", "must be a system change number in quotes, as V$DATABASE shows it"
    if section.transaction_rows_max < 0:
        yield "transactionRowsMax", "must not be negative"
    if section.transaction_hours_max < 0:
        yield "transactionHoursMax", "must not be negative"


def complete_url(target: TargetSection, _conf: Mapping[str, str]) -> str:
    """Return the target's URL with the keys of [target]."""
    if not target.direct_path:
        return target.url
    return f"{target.url}{'&' if '?' in target.url else '?'}directPath=true"


def target_problems(_target: TargetSection) -> Iterator[tuple[str, str]]:
    """Yield nothing: the keys of [target] have no values that are wrong together."""
    return iter(())


def reach(url: str) -> Reach:
    """Return the requirements of a connection to a URL."""
    parsed = OracleUrl.parse(url)
    wallet = parsed.options.get("walletLocation")
    return Reach(addresses=((parsed.host, parsed.port),), files=(wallet,) if wallet else ())
