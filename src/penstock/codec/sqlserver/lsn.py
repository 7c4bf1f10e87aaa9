"""Positions of SQL Server: log sequence numbers (LSN), of 10 bytes.

An LSN has three parts: the sequence number of a virtual log file (4 bytes), the block in it (4
bytes) and the slot in the block (2 bytes). Its spellings are those of the reference's section 8:

    00000027:00000758:0005     text, also with 0x in front, as of sys.fn_dblog
    0x00000027000007580005     binary(10), also without 0x
    39000000188000005          numeric(25, 0), as of sys.dm_hadr_database_replica_states
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Self

from penstock.model.position import Position, PositionInvalid

LSN_BYTES = 10
LSN_MAX: int = 2 ** (8 * LSN_BYTES) - 1
ZERO: bytes = bytes(LSN_BYTES)

_TEXT = re.compile(r"(?:0x)?([0-9a-f]{8}):([0-9a-f]{8}):([0-9a-f]{4})", re.IGNORECASE | re.ASCII)
_BINARY = re.compile(r"(0x)?([0-9a-f]{20})", re.IGNORECASE | re.ASCII)
_NUMERIC = re.compile(r"[1-9][0-9]{0,24}", re.ASCII)
_SLOT_RADIX = 10**5
_BLOCK_RADIX = 10**10


@dataclass(frozen=True, slots=True, order=True)
class SqlServerLsn(Position):
    """The LSN of a transaction's COMMIT: "all transactions up to this commit, itself included".

    Attributes:
        ordinal: The 10 bytes as a big-endian number, so that positions are ordered as commits are.
    """

    ordinal: int = field()

    BITS: ClassVar[int] = 128

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit 10 bytes."""
        if not 0 <= self.ordinal <= LSN_MAX:
            raise PositionInvalid(f"LSN out of range: {self.ordinal}")

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """Return the LSN of a binary(10). Raises PositionInvalid."""
        if len(data) != LSN_BYTES:
            raise PositionInvalid(f"an LSN has {LSN_BYTES} bytes, not {len(data)}: {data.hex()}")
        return cls(int.from_bytes(data))

    @classmethod
    def of_numeric(cls, number: int) -> Self:
        """Return the LSN of a numeric(25, 0). Raises PositionInvalid."""
        rest, slot = divmod(number, _SLOT_RADIX)
        file, block = divmod(rest, _BLOCK_RADIX)
        if number < 0 or slot >= 2**16 or block >= 2**32 or file >= 2**32:
            raise PositionInvalid(f"not an LSN as numeric(25, 0): {number}")
        return cls(file << 48 | block << 16 | slot)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse any of the module's spellings. Raises PositionInvalid for any other form."""
        given = text.strip()
        if match := _TEXT.fullmatch(given):
            return cls(int("".join(match.groups()), 16))
        if match := _BINARY.fullmatch(given):
            if not match[1] and _NUMERIC.fullmatch(given):
                raise PositionInvalid(
                    f"the LSN {given} could be hexadecimal or decimal",
                    hint=f"Write 0x{given} if it is a binary(10), or its parts with colons.",
                )
            return cls(int(match[2], 16))
        if _NUMERIC.fullmatch(given):
            return cls.of_numeric(int(given))
        raise PositionInvalid(
            f"not a SQL Server LSN: {text!r}",
            hint="Write it as SQL Server does: 00000027:00000758:0005.",
        )

    @property
    def data(self) -> bytes:
        """Return the binary(10)."""
        return self.ordinal.to_bytes(LSN_BYTES)

    @property
    def numeric(self) -> int:
        """Return the decimal spelling, of at most 25 digits."""
        file, block, slot = self.ordinal >> 48, self.ordinal >> 16 & 0xFFFFFFFF, self.ordinal
        return (file * _BLOCK_RADIX + block) * _SLOT_RADIX + (slot & 0xFFFF)

    def __str__(self) -> str:
        """Return the text form, as in messages and in `wirekite_progress`."""
        digits = f"{self.ordinal:020x}"
        return f"{digits[:8]}:{digits[8:16]}:{digits[16:]}"
