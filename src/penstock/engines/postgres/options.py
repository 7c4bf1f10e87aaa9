"""Options of PostgreSQL in the pipeline file, and the servers and files that a URL needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from psycopg import conninfo

from penstock.host.errors import UrlInvalid
from penstock.model.whole_number import parse_whole
from penstock.ports.config import ChangeExtractorSection
from penstock.ports.registry import Reach

PORT_DEFAULT = 5432
FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")


def reach(url: str) -> Reach:
    """See `ports.registry`. Of several hosts one must answer."""
    given = {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items() if value}
    hosts = given.get("hostaddr", given.get("host", "")).split(",")
    ports = given.get("port", "").split(",")
    each = zip(hosts, ports if len(ports) == len(hosts) else ports * len(hosts), strict=True)
    addresses = tuple((host, parse_whole(port, 65_535) or PORT_DEFAULT) for host, port in each)
    sockets = [host for host, _ in addresses if not host or host.startswith(("/", "@"))]
    return Reach(
        addresses=() if sockets else addresses,
        socket=(sockets[0] or "the default socket") if sockets else "",
        files=tuple(given[name] for name in FILES if given.get(name, "system") != "system"),
    )


EXAMPLE = "postgresql://user:${PASSWORD}@host:5432/database"
SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}\Z")


def check_url(url: str) -> None:
    """See EngineOptions. Everything else of a URL is libpq's to understand."""
    hint = f"Write it like {EXAMPLE}."
    try:
        parts = urlsplit(url)
        port_in_range = parts.port is None or parts.port > 0
    except ValueError as error:
        raise UrlInvalid(f"url cannot be read: {error}", hint=hint) from error
    if not port_in_range or not parts.path.strip("/") or not parts.username:
        lack = "user" if not parts.username else "database"
        raise UrlInvalid(f"url names no {lack if port_in_range else 'valid port'}", hint=hint)


def problems(section: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """See EngineOptions."""
    if not SLOT_NAME.match(section.replication_slot):
        yield "replicationSlot", "must be 1 to 63 lower-case letters, digits and underscores"
    if not 1 <= len(section.publication.encode()) <= 63:
        yield "publication", "must be 1 to 63 bytes"
