"""URLs of nodes: `ignite:///WORK-DIRECTORY?consistentId=ID`, and options of their directories.

Options:

  consistentId  of the node, if the directory has several
  cdcWalPath    the node's setting
  address       HOST:PORT of thin client connectors, several with commas: for the bulk load
  user, password  if the cluster requires them
  sslmode       disable (the default), require, or verify-ca (the server's chain)
  sslrootcert, sslcert, sslkey, sslpassword     files in PEM, and the key's password
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.host.errors import UrlInvalid
from penstock.model.whole_number import parse_whole
from penstock.ports.config import ChangeExtractorSection
from penstock.ports.registry import is_list, split_urls

EXAMPLE = "ignite:///var/lib/ignite/work?consistentId=node-1&address=127.0.0.1:10800"
CDC_PATH_DEFAULT = "db/wal/cdc"
THIN_PORT = 10800
SSL_MODES = ("disable", "require", "verify-ca")
_SSL_FILES = ("sslrootcert", "sslcert", "sslkey")
_KEYS = (
    *("consistentId", "cdcWalPath", "address", "user", "password"),
    *("sslmode", *_SSL_FILES, "sslpassword"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IgniteUrl:
    """URL of a node's work directory.

    Attributes:
        consistent_id: empty if the directory has only one node.
        cdc_path: the node's cdcWalPath, absolute or below the work directory.
        addresses: host and port of thin client connectors; empty: only the directory is read.
        ssl: the options that begin with ssl.
    """

    work: Path
    consistent_id: str
    cdc_path: str = CDC_PATH_DEFAULT
    addresses: tuple[tuple[str, int], ...] = ()
    user: str = ""
    password: str = field(default="", repr=False)
    ssl: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str) -> IgniteUrl:
        """Parse a URL. Raises UrlInvalid."""
        if is_list(url):
            raise UrlInvalid(
                "url is a list of nodes, and this reads the directory of one",
                hint="Write a pipeline file for this, with the URL of the one node.",
            )
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.netloc or not parts.path.strip("/"):
            raise UrlInvalid(
                "url names no work directory of a node",
                hint=f"Write it like {EXAMPLE}, with three slashes.",
            )
        for key, value in given.items():
            if key not in _KEYS:
                raise _invalid(f"url has {key}, and knows {', '.join(_KEYS)}")
            if not value:
                raise _invalid(f"url has {key} without a value")
        user, password = given.get("user", ""), given.get("password", "")
        if bool(user) != bool(password):
            raise _invalid("url has one of user and password, and needs both or none")
        if not (user + password).isascii():
            raise _invalid(
                "user or password has a character that is not ASCII, which the client library "
                "cannot send"
            )
        return cls(
            work=Path(unquote(parts.path)),
            consistent_id=given.get("consistentId", ""),
            cdc_path=given.get("cdcWalPath", CDC_PATH_DEFAULT),
            addresses=_addresses(given.get("address", "")),
            user=user,
            password=password,
            ssl=_ssl({key: value for key, value in given.items() if key.startswith("ssl")}),
        )

    @classmethod
    def parse_nodes(cls, text: str) -> list[IgniteUrl]:
        """Return the nodes of a list, each with its consistent id. Raises UrlInvalid."""
        found = [cls.parse(one) for one in split_urls(text)]
        for at, one in enumerate(found):
            if not one.folder or any(one.folder == other.folder for other in found[:at]):
                raise UrlInvalid(
                    f"node {at + 1} of url has no consistentId, or that of another one",
                    hint=f"Each node of a list is written like {EXAMPLE}: by its consistentId it "
                    "is known when the list changes.",
                )
        return found

    @property
    def place(self) -> str:
        """Addresses, for messages."""
        return ", ".join(f"{host}:{port}" for host, port in self.addresses)

    @property
    def folder(self) -> str:
        """Name of the node's folders; empty without a consistent id."""
        return folder_of(self.consistent_id)


def thin_url(text: str) -> IgniteUrl:
    """Return the URL for querying the cluster of a node or of a list of nodes: each one's
    addresses.

    Log-in and TLS are those of the first node that has addresses. Raises UrlInvalid.
    """
    nodes = IgniteUrl.parse_nodes(text) if is_list(text) else [IgniteUrl.parse(text)]
    first = next((one for one in nodes if one.addresses), nodes[0])
    every = tuple(address for one in nodes for address in one.addresses)
    return replace(first, addresses=every)


def folder_of(consistent_id: str) -> str:
    """Return the name of a node's folders: its consistent id, with _ for other than letters and
    digits.
    """
    return "".join(one if one.isalnum() else "_" for one in consistent_id)


def _addresses(text: str) -> tuple[tuple[str, int], ...]:
    found = []
    for one in filter(None, text.split(",")):
        host, _, port = one.strip().rpartition(":") if ":" in one else (one.strip(), "", "")
        number = parse_whole(port or f"{THIN_PORT}", 65535)
        if not host or not number:
            raise _invalid(f"address has {one!r}, which is not HOST:PORT")
        found.append((host, number))
    return tuple(found)


def _ssl(given: dict[str, str]) -> dict[str, str]:
    mode = given.setdefault("sslmode", "verify-ca" if "sslrootcert" in given else "disable")
    if mode not in SSL_MODES:
        raise _invalid(f"sslmode is {mode}, and can be {', '.join(SSL_MODES)}")
    if mode == "verify-ca" and "sslrootcert" not in given:
        raise _invalid("sslmode=verify-ca needs sslrootcert, the file of the authorities to trust")
    if "sslkey" in given and "sslcert" not in given:
        raise _invalid("sslkey needs sslcert, the certificate that it belongs to")
    for key in _SSL_FILES:
        if key in given and not Path(given[key]).is_file():
            raise _invalid(f"{key}: there is no file {given[key]}")
    return given


def _invalid(cause: str) -> UrlInvalid:
    return UrlInvalid(cause, hint=f"Write it like {EXAMPLE}.")


def check_url(url: str) -> None:
    """Refuse a URL that cannot be of this engine."""
    if is_list(url):
        IgniteUrl.parse_nodes(url)
    else:
        IgniteUrl.parse(url)


def problems(_: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """Yield nothing: there are no options of extraction."""
    return iter(())
