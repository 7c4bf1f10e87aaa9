"""[serve] of a pipeline file: the log served over a database's own protocol.

Keys are spelled as in that database's configuration. Not here: reading and checking them
(`control.config_serve`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from penstock.ports.stage_config import Duration

SERVE = "serve"
TLS_OFF = "off"


class Dialect(StrEnum):
    """Which server's behaviour clients find where servers of the protocol differ."""

    POSTGRES = "postgres"
    YUGABYTE = "yugabyte"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationSection:
    """[serve.publications.NAME]. tables: entries, see docs/serve.md."""

    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSection:
    """[serve]. listen: host:port. users: name to password, from the environment.

    tls: certificate and key, files relative to the pipeline file; TLS_OFF: clients anywhere may
    come without; None: clients of this machine alone. server_version: what is claimed.
    max_slot_wal_keep_size: bytes of the log that one slot may hold, -1: no limit. sync_slot_age:
    after so long a slot of a table's copy that no client has asked for is dropped.
    """

    listen: str = "127.0.0.1:5434"
    users: dict[str, str] = field(repr=False)
    tls: str | dict[str, str] | None = None
    server_version: str = "15"
    dialect: Dialect = Dialect.POSTGRES
    publications: dict[str, PublicationSection] = field(default_factory=dict)
    max_slot_wal_keep_size: int = -1
    sync_slot_age: Duration = "24h"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen at. Raises ValueError."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(self.listen)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(self.listen)
        return host, int(port)
