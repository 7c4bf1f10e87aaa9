"""Positions of the change log as a source's users know them, such as LSNs.

Only a position's own engine prints and reads it. Not here: the positions themselves
(`penstock.model.position`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.model.position import PositionInvalid, PositionKind
from penstock.ports.config import Config
from penstock.ports.registry import part, schemes


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


def kind_in_log(engine: str) -> PositionKind:
    """How the positions of a log are printed, whoever reads it.

    engine: as the identity of the log's source names it, a scheme of the engine's URLs. Raises
    PositionInvalid for an engine that this penstock does not have.
    """
    found = schemes().get(engine)
    if found is None:
        raise PositionInvalid(
            f"positions of {engine or 'an unnamed engine'} are not known",
            hint="Read the log with the version of penstock that wrote it, or a later one, and "
            "with the package installed that the engine is in.",
        )
    kind: PositionKind = found.part("position")
    return kind


def has_wide_positions(engine: str) -> bool:
    """Whether positions of an engine may need more than 64 bits; so with one that is not known."""
    return engine not in schemes() or kind_in_log(engine).BITS > 64


def positions_of(config: Config) -> Positions:
    """How this pipeline's positions are written."""
    made: Callable[[Config], Positions] = part(config.source.url, "positions")
    return made(config)
