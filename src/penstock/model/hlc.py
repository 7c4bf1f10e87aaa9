"""Hybrid logical times: when a changefeed's source committed, as Replicator writes them.

The text form is `<nanoseconds>.<logical, ten digits>`. The decimal form is nanoseconds + logical /
10^10: 29 digits, which Python's default decimal context would round. Times compare as (nanos,
logical).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Self

from penstock.model.errors import PenstockError

LOGICAL_DIGITS = 10
NANOS_MAX = 2**63 - 1
_TEXT = re.compile(r"(\d{1,19})\.(\d+)", re.ASCII)


def parse_time(text: str) -> tuple[int, int] | None:
    """Return nanos and logical of a text, or None if it is not a time; see `Hlc.parse`."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    nanos, digits = int(match[1]), match[2]
    is_zero = not digits.strip("0")  # however long: int() has a limit
    if nanos > NANOS_MAX or (not is_zero and len(digits) != LOGICAL_DIGITS):
        return None
    return nanos, 0 if is_zero else int(digits)


class HlcInvalid(PenstockError):
    """A text is not a time of a changefeed."""

    code = "ST01"
    retry = "operator"


@dataclass(frozen=True, slots=True, order=True)
class Hlc:
    """Hybrid logical time.

    Attributes:
        nanos: nanoseconds since 1970 UTC, below 2^63.
        logical: orders times with equal nanos, below 10^10.
    """

    nanos: int
    logical: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text with ten digits after the dot, or with any spelling of zero there.

        Raises HlcInvalid.
        """
        found = parse_time(text)
        if found is not None:
            return cls(*found)
        raise HlcInvalid(
            f"can't parse timestamp {text!r}",
            hint="A changefeed's time is nanoseconds, a dot and ten digits. Make the feed WITH "
            "updated.",
        )

    @classmethod
    def from_decimal(cls, value: Decimal) -> Self:
        """Return the time for a decimal of the table checkpoints."""
        nanos, _, logical = f"{value:f}".partition(".")  # text is exact at any precision
        return cls(int(nanos), int(logical.ljust(LOGICAL_DIGITS, "0")))

    def __str__(self) -> str:
        """Return the time as changefeeds write it."""
        return f"{self.nanos}.{self.logical:0{LOGICAL_DIGITS}}"

    @property
    def decimal(self) -> Decimal:
        """Time as the table checkpoints holds it, exact."""
        return Decimal(str(self))

    @property
    def number(self) -> int:
        """Time as a position of the change log: nanos in the high bits, logical in the low 34."""
        return self.nanos << 34 | self.logical

    @classmethod
    def from_number(cls, number: int) -> Self:
        """Return the time for a `number`."""
        return cls(number >> 34, number & (1 << 34) - 1)


ZERO = Hlc(0)
