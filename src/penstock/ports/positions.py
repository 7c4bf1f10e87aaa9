"""Positions of the change log as a source's users know them, such as LSNs.

Only a position's own engine prints and parses it. Not here: the positions themselves
(`penstock.model.position`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from penstock.model.position import PositionInvalid, PositionKind
from penstock.ports.config import Config
from penstock.ports.registry import PartName, part, schemes


class Positions(Protocol):
    """Printer and parser of a pipeline's positions."""

    @abstractmethod
    def text(self, position: int) -> str:
        """Return a position as the source writes it."""
        ...

    @abstractmethod
    def origin(self, position: int) -> str:
        """Return the origin of a segment that begins at position: slot, or the binlog's file."""
        ...

    @abstractmethod
    def parse(self, text: str) -> int:
        """Parse the `text` of a position of the source itself. Raises PositionInvalid."""
        ...


class PlainPositions(Positions):
    """Ordered numbers as they are, for logs that are not read from a source."""

    def text(self, position: int) -> str:
        return str(position)

    def origin(self, _: int) -> str:
        return ""

    def parse(self, text: str) -> int:
        return int(text)


POSITION_PART: PartName[PositionKind] = PartName("position")
POSITIONS_PART: PartName[Callable[[Config], Positions]] = PartName("positions")


def kind_of(config: Config) -> PositionKind:
    """Return the kind of this pipeline's source positions, which parses and prints them."""
    return part(config.source.url, POSITION_PART)


def kind_in_log(engine: str) -> PositionKind:
    """Return the kind of the positions of a log, for every reader of it.

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
    return found.part(POSITION_PART)


def has_wide_positions(engine: str) -> bool:
    """Return whether positions of an engine may need over 64 bits; True for an unknown engine."""
    return engine not in schemes() or kind_in_log(engine).BITS > 64


def positions_of(config: Config) -> Positions:
    """Return the printer and parser of this pipeline's positions."""
    return part(config.source.url, POSITIONS_PART)(config)
