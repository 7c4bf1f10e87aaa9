"""Places in the logs of nodes as positions of a change log.

A place is a segment and an offset in it. For several nodes the position is the sum of their
places: it rises with each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from penstock.model.position import Position, PositionInvalid
from penstock.model.whole_number import parse_whole
from penstock.ports.config import Config
from penstock.ports.direct import LogPlace
from penstock.ports.positions import Positions

OFFSET_BITS = 32
_MAX = 2**64 - 1


def position_of(place: LogPlace) -> int:
    """Return the position of a place. The entry in its record is left out: it is the first one."""
    return place.segment << OFFSET_BITS | place.offset


def place_of(position: int) -> LogPlace:
    """Return the place of one node's position."""
    return LogPlace(position >> OFFSET_BITS, position & (2**OFFSET_BITS - 1), 0)


@dataclass(frozen=True, slots=True, order=True)
class IgnitePosition(Position):
    """Position in a node's log. Its text is segment and offset: `12/5208`."""

    ordinal: int = field()
    BITS = 64

    def __post_init__(self) -> None:
        """Raise PositionInvalid if the number cannot be a place."""
        if not 0 <= self.ordinal <= _MAX:
            raise PositionInvalid(f"{self.ordinal} is not a position of Ignite's log")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `12/5208`. Raises PositionInvalid on anything else."""
        segment, separator, offset = text.partition("/")
        number, place = parse_whole(segment), parse_whole(offset, 2**OFFSET_BITS - 1)
        if separator and number is not None and place is not None:
            return cls(number << OFFSET_BITS | place)
        raise PositionInvalid(
            f"{text!r} is not a position of Ignite's log",
            hint="It is written SEGMENT/OFFSET, as in 12/5208.",
        )

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        place = place_of(self.ordinal)
        return f"{place.segment}/{place.offset}"


class IgnitePositions(Positions):
    """Printer and parser of positions in a node's log."""

    def __init__(self, _config: Config) -> None:
        """Do nothing: the positions of all nodes have the same form."""

    def text(self, position: int) -> str:
        return str(IgnitePosition(position))

    def origin(self, position: int) -> str:
        """Return the segment's file."""
        return f"{place_of(position).segment:016}.wal"

    def parse(self, text: str) -> int:
        return IgnitePosition.parse(text).ordinal
