"""Times of changefeeds as positions of a change log.

A transaction has the position of its time. A flush point's position is the number after the time up
to which everything is in the log: a resolved time, or one at which a window is split.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from penstock.model.hlc import NANOS_MAX, Hlc, HlcInvalid
from penstock.model.position import Position, PositionInvalid
from penstock.ports.config import Config
from penstock.ports.feeds import group_at
from penstock.ports.positions import Positions

_MAX = Hlc(NANOS_MAX, 2**34 - 1).number


@dataclass(frozen=True, slots=True, order=True)
class HlcPosition(Position):
    """Position of a staged mutation: its time. Its text is `1600000000000000000.0000000001`."""

    ordinal: int = field()
    BITS = 128

    def __post_init__(self) -> None:
        """Raise PositionInvalid if the number cannot be a time."""
        if not 0 <= self.ordinal <= _MAX:
            raise PositionInvalid(f"{self.ordinal} is not a position of a changefeed")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a time. Raises PositionInvalid on anything else."""
        try:
            return cls(Hlc.parse(text).number)
        except HlcInvalid as error:
            raise PositionInvalid(error.message, hint=error.hint) from error

    def __str__(self) -> str:
        """Return the time in the form of changefeeds."""
        return str(Hlc.from_number(self.ordinal))


class HlcPositions(Positions):
    """Printer and parser of times."""

    def __init__(self, config: Config) -> None:
        """Take the names of a group's pipeline."""
        self._origin = f"stage/{config.pipeline.name}/{'.'.join(group_at(config.source.url))}"

    def text(self, position: int) -> str:
        return str(HlcPosition(position))

    def origin(self, _position: int) -> str:
        """Return pipeline and target schema."""
        return self._origin

    def parse(self, text: str) -> int:
        return HlcPosition.parse(text).ordinal
