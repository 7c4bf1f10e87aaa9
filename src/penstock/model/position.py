"""Positions: where we are in a source. Ordered, printable, parsable.

Each engine has its own class of them, its part `position`. In the log a position is 16 bytes whose
order is that of memcmp; in Python it is the number that these bytes are, big-endian: the ordinal.
Positions of 64 bits take the last 8 bytes.
"""

from __future__ import annotations

from typing import Protocol

from penstock.model.errors import PenstockError

POSITION_BYTES = 16
POSITION_MAX: int = 2 ** (8 * POSITION_BYTES) - 1


def to_bytes(ordinal: int) -> bytes:
    """A position as in files; raises OverflowError for a number that is none."""
    return ordinal.to_bytes(POSITION_BYTES)


def to_ordinal(data: bytes) -> int:
    """The number that a position's bytes are."""
    return int.from_bytes(data)


class PositionInvalid(PenstockError):
    """A text that should be a position of this engine is not one."""

    code = "PS01"
    retry = "never"


class Position(Protocol):
    """A place in a source; its text is how the source writes it."""

    @property
    def ordinal(self) -> int:
        """The number that is in order: 0 to POSITION_MAX."""
        ...


class PositionKind(Protocol):
    """A class of positions: how those of one engine are made, read and printed."""

    @property
    def BITS(self) -> int:  # noqa: N802 - a constant of the class
        """How many bits an ordinal has at most: 64 or less, or 128."""
        ...

    def __call__(self, ordinal: int, /) -> Position:
        """The position that an ordinal is. Raises PositionInvalid."""
        ...

    def parse(self, text: str, /) -> Position:
        """What str() of a position gave. Raises PositionInvalid on anything else."""
        ...
