"""Positions in a merged log: numbers of its transactions, since no server has positions for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from penstock.model.position import Position, PositionInvalid
from penstock.model.whole_number import parse_whole
from penstock.ports.config import Config
from penstock.ports.positions import Positions


@dataclass(frozen=True, slots=True, order=True)
class MergedPosition(Position):
    """Position in a merged log.

    A transaction is at its own number; the position after it is one higher.
    """

    ordinal: int = field()
    BITS = 64

    def __post_init__(self) -> None:
        """Raise PositionInvalid if the number cannot be that of a transaction."""
        if not 0 <= self.ordinal < 2**63:
            raise PositionInvalid(f"{self.ordinal} is not a position of a merged log")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a number. Raises PositionInvalid on anything else."""
        number = parse_whole(text)
        if number is None:
            raise PositionInvalid(
                f"{text!r} is not a position of a merged log", hint="Write a number, such as 4711."
            )
        return cls(number)

    def __str__(self) -> str:
        """Return the number as text."""
        return str(self.ordinal)


class MergedPositions(Positions):
    """Printer and parser of a merged log's positions."""

    def __init__(self, config: Config) -> None:
        """Take the name of a pipeline with [merge]."""
        self._origin = f"merge/{config.pipeline.name}"

    def text(self, position: int) -> str:
        return str(MergedPosition(position))

    def origin(self, _position: int) -> str:
        return self._origin

    def parse(self, text: str) -> int:
        return MergedPosition.parse(text).ordinal
