"""Positions: where a reader is in a source. They are ordered, printable and parsable.

Each engine has its own class of positions, its part `position`. In the log a position is 16 bytes,
ordered as memcmp orders them; in Python it is the big-endian number of these bytes: the ordinal.
Positions of 64 bits take the last 8 bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from penstock.model.errors import PenstockError

POSITION_BYTES = 16
POSITION_MAX: int = 2 ** (8 * POSITION_BYTES) - 1


def to_bytes(ordinal: int) -> bytes:
    """Return a position as in files; raises OverflowError for a number out of range."""
    return ordinal.to_bytes(POSITION_BYTES)


def to_ordinal(data: bytes) -> int:
    """Return the number of a position's bytes."""
    return int.from_bytes(data)


class PositionInvalid(PenstockError):
    """A text is not a position of this engine."""

    code = "PS01"
    retry = "never"


class Position(Protocol):
    """Place in a source; its text is how the source writes it."""

    __slots__ = ()

    @property
    @abstractmethod
    def ordinal(self) -> int:
        """Number that orders positions: 0 to POSITION_MAX."""
        ...


class PositionKind(Protocol):
    """Class of one engine's positions: constructor, parser and width."""

    @property
    def BITS(self) -> int:  # noqa: N802 - a constant of the class
        """Maximum bits of an ordinal: 64 or less, or 128."""
        ...

    def __call__(self, ordinal: int, /) -> Position:
        """Return the position of an ordinal. Raises PositionInvalid."""
        ...

    def parse(self, text: str, /) -> Position:
        """Parse the str() of a position. Raises PositionInvalid on anything else."""
        ...
