"""Flavour and version of a server: MySQL or MariaDB, and how new.

The two have one protocol and differ in their names for things, so code that
depends on that asks this module. Percona Server and Amazon Aurora count as MySQL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
# MariaDB 10 puts "5.5.5-" first, so that old replicas do not refuse it; 11 no longer does.
_REPLICATION_PREFIX = "5.5.5-"


class Flavour(StrEnum):
    """The two families of servers; the value is the scheme of their URLs."""

    MYSQL = "mysql"
    MARIADB = "mariadb"

    @property
    def label(self) -> str:
        """Return the name that messages show."""
        return "MySQL" if self is Flavour.MYSQL else "MariaDB"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerVersion:
    """Flavour and version of a server. number: for example (8, 0, 15)."""

    flavour: Flavour
    number: tuple[int, int, int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the version text of a server: `8.0.15`, `5.5.5-10.11.19-MariaDB-0+deb12u1-log`.

        Raises ValueError if it contains no version number.
        """
        is_mariadb = "mariadb" in text.lower()
        if is_mariadb:
            text = text.removeprefix(_REPLICATION_PREFIX)
        match = _NUMBER.search(text)
        if match is None:
            raise ValueError(f"no version in {text!r}")
        major, minor, patch = (int(part or 0) for part in match.groups())
        return cls(
            flavour=Flavour.MARIADB if is_mariadb else Flavour.MYSQL, number=(major, minor, patch)
        )

    @property
    def is_mariadb(self) -> bool:
        """Return whether the server is MariaDB."""
        return self.flavour is Flavour.MARIADB

    def mysql(self, *number: int) -> bool:
        """Return whether the server is MySQL of this version or newer."""
        return not self.is_mariadb and self.number >= number

    def mariadb(self, *number: int) -> bool:
        """Return whether the server is MariaDB of this version or newer."""
        return self.is_mariadb and self.number >= number

    def __str__(self) -> str:
        """Return flavour and version, for example `MySQL 8.0.15`."""
        return f"{self.flavour.label} {'.'.join(map(str, self.number))}"
