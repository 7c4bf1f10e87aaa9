"""Positions as PostgreSQL's users know them: LSNs."""

from __future__ import annotations

from penstock.codec.postgres.lsn import Lsn
from penstock.ports.config import Config
from penstock.ports.positions import Positions


class LsnPositions(Positions):
    """Positions of a PostgreSQL source."""

    def __init__(self, slot: str = "") -> None:
        """Keep the slot: the source's name for the pipeline."""
        self._slot = slot

    def text(self, position: int) -> str:
        """Return a position as text, for example `0/16B3740`."""
        return str(Lsn(position))

    def origin(self, _: int) -> str:
        """Return the slot."""
        return self._slot

    def parse(self, text: str) -> int:
        return Lsn.parse(text).ordinal


def positions_of(config: Config) -> LsnPositions:
    """Return the printer and parser of this pipeline's positions."""
    return LsnPositions(config.change_extractor.replication_slot)
