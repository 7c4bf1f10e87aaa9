"""Positions as users of SQL Server know them: log sequence numbers of commits."""

from __future__ import annotations

from penstock.codec.sqlserver.lsn import SqlServerLsn
from penstock.ports.config import Config
from penstock.ports.positions import Positions


class LsnPositions(Positions):
    """Printer and parser of LSNs, which are the same for every server."""

    def text(self, position: int) -> str:
        """Return a position as text, for example `00000027:00000758:0005`."""
        return str(SqlServerLsn(position))

    def origin(self, position: int) -> str:
        """Return the virtual log file of a position."""
        return self.text(position).partition(":")[0]

    def parse(self, text: str) -> int:
        return SqlServerLsn.parse(text).ordinal


def positions_of(_config: Config) -> LsnPositions:
    """Return the printer and parser of this pipeline's positions."""
    return LsnPositions()
