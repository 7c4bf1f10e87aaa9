"""Positions of PostgreSQL: log sequence numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Self

from penstock.model.position import Position, PositionInvalid

LSN_MAX = 2**64 - 1
_HALF = re.compile(r"[0-9A-Fa-f]{1,8}")  # int() takes signs and underscores, too


@dataclass(frozen=True, slots=True, order=True)
class Lsn(Position):
    """A PostgreSQL log sequence number: a byte offset in the write-ahead log.

    It means "everything before this byte". Its text form is PostgreSQL's: two hex numbers of at
    most 32 bits with a slash between, without leading zeros.
    """

    ordinal: int = field()

    BITS: ClassVar[int] = 64

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits."""
        if not 0 <= self.ordinal <= LSN_MAX:
            raise PositionInvalid(f"LSN out of range: {self.ordinal}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `X/Y`. Raises PositionInvalid for any other form."""
        high, slash, low = text.strip().partition("/")
        try:
            if not slash or not _HALF.fullmatch(high) or not _HALF.fullmatch(low):
                raise ValueError(text)
            return cls((int(high, 16) << 32) | int(low, 16))
        except ValueError as error:
            raise PositionInvalid(
                f"not a PostgreSQL LSN: {text!r}", hint="Write it as PostgreSQL does: 0/16B3740."
            ) from error

    def __str__(self) -> str:
        """Print as PostgreSQL does."""
        return f"{self.ordinal >> 32:X}/{self.ordinal & 0xFFFFFFFF:X}"
