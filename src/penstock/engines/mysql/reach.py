"""Addresses and files that a process needs to connect to MySQL or MariaDB."""

from __future__ import annotations

from penstock.engines.mysql.url import MySQLUrl
from penstock.ports.registry import Reach

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
