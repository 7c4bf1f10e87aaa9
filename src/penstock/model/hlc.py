"""Hybrid logical times: when a changefeed's source committed, as document 001 writes them.

As text `<nanoseconds>.<logical, ten digits>`, as a decimal nanoseconds + logical / 10^10: 29
digits, which Python's default decimal context would round. They compare as (nanos, logical).
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
    """Nanos and logical of a text, None where it is no time; see `Hlc.parse`."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    nanos, digits = int(match[1]), match[2]
    is_zero = not digits.strip("0")  # however long: int() has a limit
    if nanos > NANOS_MAX or (not is_zero and len(digits) != LOGICAL_DIGITS):
        return None
    return nanos, 0 if is_zero else int(digits)


class HlcInvalid(PenstockError):
    """A text is no time of a changefeed."""

    code = "ST01"
    retry = "operator"


@dataclass(frozen=True, slots=True, order=True)
class Hlc:
    """nanos: since 1970 UTC, below 2^63. logical: orders what has equal nanos, below 10^10."""

    nanos: int
    logical: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read it: ten digits behind the dot, or any spelling of zero. Raises HlcInvalid."""
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
        """The time that a decimal of the table checkpoints stands for."""
        nanos, _, logical = f"{value:f}".partition(".")  # text is exact at any precision
        return cls(int(nanos), int(logical.ljust(LOGICAL_DIGITS, "0")))

    def __str__(self) -> str:
        """As changefeeds write it."""
        return f"{self.nanos}.{self.logical:0{LOGICAL_DIGITS}}"

    @property
    def decimal(self) -> Decimal:
        """As the table checkpoints holds it, exact."""
        return Decimal(str(self))

    @property
    def number(self) -> int:
        """As a position of the change log: nanos in the high bits, logical in the low 34."""
        return self.nanos << 34 | self.logical

    @classmethod
    def from_number(cls, number: int) -> Self:
        """What `number` has made."""
        return cls(number >> 34, number & (1 << 34) - 1)


ZERO = Hlc(0)
