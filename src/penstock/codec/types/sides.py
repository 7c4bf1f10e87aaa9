"""Engine at a side of a pipeline, and its version."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Engine(StrEnum):
    """Engines whose types are known. `ports.registry.types_at` finds the one that a URL names."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    MARIADB = "mariadb"
    IGNITE = "ignite"

    @property
    def label(self) -> str:
        """Name for people."""
        return _LABELS[self]

    @property
    def is_mysql(self) -> bool:
        """Return whether the engine is MySQL or MariaDB."""
        return self in (Engine.MYSQL, Engine.MARIADB)

    @property
    def is_target(self) -> bool:
        """Return whether it can be a target."""
        return self is not Engine.IGNITE


_LABELS = {
    Engine.POSTGRESQL: "PostgreSQL",
    Engine.MYSQL: "MySQL",
    Engine.MARIADB: "MariaDB",
    Engine.IGNITE: "Apache Ignite",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An engine and its version: (18,) for PostgreSQL, (8, 0, 15), (10, 11, 19)."""

    engine: Engine
    version: tuple[int, ...]

    def mysql(self, *version: int) -> bool:
        """Return whether it is MySQL of this version or newer."""
        return self.engine is Engine.MYSQL and self.version >= version

    def mariadb(self, *version: int) -> bool:
        """Return whether it is MariaDB of this version or newer."""
        return self.engine is Engine.MARIADB and self.version >= version

    def __str__(self) -> str:
        """Return text like `MySQL 8.0.15`."""
        return f"{self.engine.label} {'.'.join(map(str, self.version))}"
