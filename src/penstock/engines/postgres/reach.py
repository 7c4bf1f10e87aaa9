"""Servers and files that a process needs to connect to PostgreSQL, as libpq reads a URL."""

from __future__ import annotations

from psycopg import conninfo

from penstock.model.whole_number import parse_whole
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
