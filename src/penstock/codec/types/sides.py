"""Which engine stands on a side of a pipeline, and how new it is.

Not here: asking a server (`host`), the rules that depend on it (`to_postgres`, `to_mysql`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Engine(StrEnum):
    """The engines that can be source and target; the values are the schemes of their URLs."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    MARIADB = "mariadb"

    @classmethod
    def of_url(cls, url: str) -> Engine:
        """What a URL says. MySQL or MariaDB may be the other: only the server knows."""
        scheme = url.partition(":")[0].lower()
        return cls(scheme) if scheme in ("mysql", "mariadb") else cls.POSTGRESQL

    @property
    def label(self) -> str:
        """The name for people."""
        return _LABELS[self]

    @property
    def is_mysql(self) -> bool:
        """Whether it is of MySQL's family: MySQL or MariaDB."""
        return self is not Engine.POSTGRESQL


_LABELS = {Engine.POSTGRESQL: "PostgreSQL", Engine.MYSQL: "MySQL", Engine.MARIADB: "MariaDB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An engine and its version: (18,) for PostgreSQL, (8, 0, 15), (10, 11, 19)."""

    engine: Engine
    version: tuple[int, ...]

    def mysql(self, *version: int) -> bool:
        """Whether it is MySQL of this version or newer."""
        return self.engine is Engine.MYSQL and self.version >= version

    def mariadb(self, *version: int) -> bool:
        """Whether it is MariaDB of this version or newer."""
        return self.engine is Engine.MARIADB and self.version >= version

    def __str__(self) -> str:
        """As in `MySQL 8.0.15`."""
        return f"{self.engine.label} {'.'.join(map(str, self.version))}"
