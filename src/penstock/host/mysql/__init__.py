"""MySQL and MariaDB as far as this machine goes: connections, and servers of our own."""

from penstock.host.mysql.server import EmbeddedMariaDB, EmbeddedMySQL

__all__ = ["EmbeddedMariaDB", "EmbeddedMySQL"]
