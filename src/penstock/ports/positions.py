"""Positions of the change log as a source's users know them: LSNs, or places in binlog files.

Only a position's own engine prints and reads it. Not here: the positions themselves
(`penstock.model.position`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.model.position import PositionKind
from penstock.ports.config import Config
from penstock.ports.registry import part


class Positions(Protocol):
    """How a pipeline's positions are written."""

    def text(self, position: int) -> str:
        """A position, as the source writes it."""
        ...

    def origin(self, position: int) -> str:
        """Where a segment that begins at position comes from: the slot, or the binlog's file."""
        ...

    def parse(self, text: str) -> int:
        """What `text` printed of a position of the source itself. Raises PositionInvalid."""
        ...


class PlainPositions:
    """Ordered numbers as they are: for what is not read from a source."""

    def text(self, position: int) -> str:
        """See Positions."""
        return str(position)

    def origin(self, _: int) -> str:
        """See Positions."""
        return ""

    def parse(self, text: str) -> int:
        """See Positions."""
        return int(text)


def kind_of(config: Config) -> PositionKind:
    """How the positions of this pipeline's source itself are parsed and printed."""
    found: PositionKind = part(config.source.url, "position")
    return found


def positions_of(config: Config) -> Positions:
    """How this pipeline's positions are written."""
    made: Callable[[Config], Positions] = part(config.source.url, "positions")
    return made(config)
