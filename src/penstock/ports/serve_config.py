"""[serve] of a pipeline file: the log served over a database's own protocol.

Keys are spelled as in that database's configuration. Not here: reading and checking them
(`control.pipeline.config_serve`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from penstock.ports.stage_config import Duration

SERVE = "serve"
TLS_OFF = "off"


class Dialect(StrEnum):
    """Server whose behaviour clients find, in details in which servers of the protocol differ."""

    POSTGRES = "postgres"
    YUGABYTE = "yugabyte"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationSection:
    """[serve.publications.NAME]. tables: entries, see docs/serve.md."""

    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSection:
    """[serve].

    Attributes:
        listen: host:port.
        users: Password by name, from the environment.
        tls: Certificate and key, files relative to the pipeline file; TLS_OFF: clients of any
            machine may connect without TLS; None: only clients of this machine may.
        server_version: The claimed version.
        max_slot_wal_keep_size: Bytes of the log that one slot may hold, -1: no limit.
        sync_slot_age: The age at which a slot of a table's copy is dropped if no client has asked
            for it.
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
