"""Positions: where we are in a source. Ordered, printable, parsable.

A new engine adds its class here and nothing else changes. In the log a position is 16 bytes whose
order is that of memcmp; in Python it is the number that these bytes are, big-endian: the ordinal.
Positions of 64 bits, as LSNs are, take the last 8 bytes. Sets of transaction ids, which have no
order, stand beside a position, not in its place (see `penstock.codec.mysql.gtids`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from penstock.model.errors import PenstockError

POSITION_BYTES = 16
POSITION_MAX: int = 2 ** (8 * POSITION_BYTES) - 1
LSN_MAX = 2**64 - 1


def to_bytes(ordinal: int) -> bytes:
    """A position as it stands in files; raises OverflowError for a number that is none."""
    return ordinal.to_bytes(POSITION_BYTES)


def to_ordinal(data: bytes) -> int:
    """The number that a position's bytes are."""
    return int.from_bytes(data)


class PositionInvalid(PenstockError):
    """A text that should be a position of this engine is not one."""

    code = "PS01"
    retry = "never"


@dataclass(frozen=True, slots=True, order=True)
class Lsn:
    """A PostgreSQL log sequence number: a byte offset in the write-ahead log.

    Means "everything before this byte". Text form as PostgreSQL prints it: two hex numbers of at
    most 32 bits with a slash between, no leading zeros.
    """

    ordinal: int

    BITS: ClassVar[int] = 64

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits."""
        if not 0 <= self.ordinal <= LSN_MAX:
            raise PositionInvalid(f"LSN out of range: {self.ordinal}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `X/Y`; raises PositionInvalid on anything else."""
        high, slash, low = text.strip().partition("/")
        try:
            if not slash or not 1 <= len(high) <= 8 or not 1 <= len(low) <= 8:
                raise ValueError(text)
            return cls((int(high, 16) << 32) | int(low, 16))
        except ValueError as error:
            raise PositionInvalid(
                f"not a PostgreSQL LSN: {text!r}", hint="Write it as PostgreSQL does: 0/16B3740."
            ) from error

    def __str__(self) -> str:
        """Print as PostgreSQL does."""
        return f"{self.ordinal >> 32:X}/{self.ordinal & 0xFFFFFFFF:X}"


ZERO = Lsn(0)

BINLOG_OFFSET_BITS = 40
BINLOG_OFFSET_MAX: int = 2**BINLOG_OFFSET_BITS - 1
BINLOG_NUMBER_MAX: int = 2 ** (64 - BINLOG_OFFSET_BITS) - 1
BINLOG_HEAD_BYTES = 4  # the magic number that a file begins with
_BINLOG_DIGITS = 6


@dataclass(frozen=True, slots=True, order=True)
class BinlogPosition:
    """A place in the binlog of a MySQL or MariaDB server: a file and a byte offset in it.

    Means "everything before this byte of this file, and all files before it". ordinal: the file's
    number shifted left by 40 bits, and the offset, so that positions of one server are in order.
    base: the files' common name. Text form: `binlog.000003:154`.
    """

    ordinal: int
    base: str = "binlog"

    BITS: ClassVar[int] = 64

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 64 bits, and names that are none."""
        if not 0 <= self.ordinal < 2**64:
            raise PositionInvalid(f"binlog position out of range: {self.ordinal}")
        if not self.base or "/" in self.base or "\0" in self.base:
            raise PositionInvalid(f"not the name of a binlog: {self.base!r}")

    @classmethod
    def at(cls, file: str, offset: int) -> Self:
        """The place in a file that the server names; raises PositionInvalid."""
        base, dot, digits = file.rpartition(".")
        if not dot or not base or not digits.isdecimal() or not digits.isascii():
            raise PositionInvalid(
                f"not a binlog file: {file!r}", hint="Write it as the server does: binlog.000003."
            )
        number = int(digits)
        if number > BINLOG_NUMBER_MAX or not 0 <= offset <= BINLOG_OFFSET_MAX:
            raise PositionInvalid(f"binlog position out of range: {file}:{offset}")
        return cls(number << BINLOG_OFFSET_BITS | offset, base)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `binlog.000003:154`; raises PositionInvalid on anything else."""
        file, colon, offset = text.strip().rpartition(":")
        if not colon or not offset.isdecimal() or not offset.isascii():
            raise PositionInvalid(
                f"not a binlog position: {text!r}",
                hint="Write the file as the server does, a colon and the offset: "
                "binlog.000003:154.",
            )
        return cls.at(file, int(offset))

    @property
    def number(self) -> int:
        """The file's number, from 1."""
        return self.ordinal >> BINLOG_OFFSET_BITS

    @property
    def offset(self) -> int:
        """The byte offset in the file; the first event is at 4."""
        return self.ordinal & BINLOG_OFFSET_MAX

    @property
    def file(self) -> str:
        """The file's name, as the server has it."""
        return f"{self.base}.{self.number:0{_BINLOG_DIGITS}d}"

    def __str__(self) -> str:
        """Print as in messages and in `wirekite_progress`."""
        return f"{self.file}:{self.offset}"


Position = Lsn | BinlogPosition
PositionKind = type[Lsn] | type[BinlogPosition]

# By the name that a log's source has in its identity.
_OF_ENGINE: dict[str, PositionKind] = {
    "postgresql": Lsn,
    "mysql": BinlogPosition,
}


def of_engine(engine: str) -> PositionKind:
    """The class of an engine's positions. engine: as the identity of a log's source names it.

    Raises PositionInvalid for an engine that this penstock does not have.
    """
    found = _OF_ENGINE.get(engine)
    if found is None:
        raise PositionInvalid(
            f"positions of {engine or 'an unnamed engine'} are not known",
            hint="Read the log with the version of penstock that wrote it, or a later one.",
        )
    return found


def is_wide(engine: str) -> bool:
    """Whether positions of an engine may need more than 64 bits; so with one that is not known."""
    found = _OF_ENGINE.get(engine)
    return found is None or found.BITS > 64
