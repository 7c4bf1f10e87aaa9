"""Positions of MySQL and MariaDB: places in binlog files.

Sets of transaction ids, which have no order, are kept in addition to a position (`gtids.py`), not
instead of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from penstock.model.position import Position, PositionInvalid
from penstock.model.whole_number import parse_whole

BINLOG_OFFSET_BITS = 40
BINLOG_OFFSET_MAX: int = 2**BINLOG_OFFSET_BITS - 1
BINLOG_NUMBER_MAX: int = 2 ** (64 - BINLOG_OFFSET_BITS) - 1
BINLOG_HEAD_BYTES = 4  # the magic number that a file begins with
_BINLOG_DIGITS = 6


@dataclass(frozen=True, slots=True, order=True)
class BinlogPosition(Position):
    """A place in the binlog of a MySQL or MariaDB server: a file and a byte offset in it.

    It means "everything before this byte of this file, and all earlier files". Its text form is
    `binlog.000003:154`.

    Attributes:
        ordinal: the file's number shifted left by 40 bits, plus the offset, so that positions of
            one server are ordered.
        base: the common part of the files' names.
    """

    ordinal: int = field()
    base: str = "binlog"

    BITS: ClassVar[int] = 64

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits, and invalid names."""
        if not 0 <= self.ordinal < 2**64:
            raise PositionInvalid(f"binlog position out of range: {self.ordinal}")
        if not self.base or "/" in self.base or "\0" in self.base:
            raise PositionInvalid(f"not the name of a binlog: {self.base!r}")

    @classmethod
    def at(cls, file: str, offset: int) -> Self:
        """Return the place in a file that the server names; raises PositionInvalid."""
        base, dot, digits = file.rpartition(".")
        number = parse_whole(digits)
        if not dot or not base or number is None:
            raise PositionInvalid(
                f"not a binlog file: {file!r}", hint="Write it as the server does: binlog.000003."
            )
        if number > BINLOG_NUMBER_MAX or not 0 <= offset <= BINLOG_OFFSET_MAX:
            raise PositionInvalid(f"binlog position out of range: {file}:{offset}")
        return cls(number << BINLOG_OFFSET_BITS | offset, base)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `binlog.000003:154`. Raises PositionInvalid for any other form."""
        file, colon, offset = text.strip().rpartition(":")
        place = parse_whole(offset)
        if not colon or place is None:
            raise PositionInvalid(
                f"not a binlog position: {text!r}",
                hint="Write the file as the server does, a colon and the offset: "
                "binlog.000003:154.",
            )
        return cls.at(file, place)

    @property
    def number(self) -> int:
        """Number of the file, from 1."""
        return self.ordinal >> BINLOG_OFFSET_BITS

    @property
    def offset(self) -> int:
        """Byte offset in the file; the first event is at 4."""
        return self.ordinal & BINLOG_OFFSET_MAX

    @property
    def file(self) -> str:
        """Name of the file at the server."""
        return f"{self.base}.{self.number:0{_BINLOG_DIGITS}d}"

    def __str__(self) -> str:
        """Return the text form, as in messages and in `wirekite_progress`."""
        return f"{self.file}:{self.offset}"
