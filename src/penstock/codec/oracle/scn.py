"""Positions of Oracle: the SCN of a COMMIT and the redo address of its record, in 16 bytes.

Several commits may share an SCN, so the address of the record orders them. It is stable however
often the log is read:

    SCN 8 bytes | THREAD# 1 | low byte of the log's SEQUENCE# 1 | block 4 | offset in it 2

    8800153                         all commits up to this SCN, itself included
    8800153:1:0x0a.0000b3c1.0010    up to this COMMIT: thread, sequence, block, offset

Follows the reference, sections 4 F0 and 5. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Self

from penstock.model.position import Position, PositionInvalid

SCN_MAX = 2**63 - 1
_ADDRESS_BITS = 64
_ADDRESS_MAX = 2**_ADDRESS_BITS - 1
_THREAD_MAX = 0xFE  # 0xFF is that of a position after a whole SCN

_TEXT = re.compile(
    r"([0-9]{1,19})(?::([0-9]{1,3}):0x([0-9a-f]{2})\.([0-9a-f]{8})\.([0-9a-f]{4}))?",
    re.IGNORECASE | re.ASCII,
)
_RS_ID = re.compile(r"\s*0x([0-9a-f]+)\.([0-9a-f]{1,8})\.([0-9a-f]{1,4})\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class OraclePosition(Position):
    """Position "all transactions up to this COMMIT, itself included".

    Attributes:
        ordinal: The 16 bytes as a big-endian number, so that positions are ordered as commits are.
    """

    ordinal: int = field()

    BITS: ClassVar[int] = 128

    def __post_init__(self) -> None:
        """Refuse numbers that no position has."""
        if not 0 <= self.ordinal >> _ADDRESS_BITS <= SCN_MAX:
            raise PositionInvalid(f"SCN out of range: {self.ordinal >> _ADDRESS_BITS}")

    @classmethod
    def of_scn(cls, scn: int) -> Self:
        """Return the position after all commits of an SCN."""
        return cls(scn << _ADDRESS_BITS | _ADDRESS_MAX)

    @classmethod
    def of_commit(cls, scn: int, thread: int, rs_id: str) -> Self:
        """Return the position of a COMMIT.

        Args:
            scn: SCN of its row.
            thread: THREAD#.
            rs_id: RS_ID.

        Raises PositionInvalid for a row that has no such values.
        """
        return cls(commit_ordinal(scn, thread, rs_id))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a position. Raises PositionInvalid for any other form."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise PositionInvalid(
                f"not a position of Oracle: {text!r}",
                hint="Write an SCN as V$DATABASE shows it: 8800153.",
            )
        scn = int(match[1])
        if match[2] is None:
            return cls.of_scn(scn)
        thread = int(match[2])
        if thread > _THREAD_MAX:
            raise PositionInvalid(f"thread out of range: {thread}")
        return cls(scn << _ADDRESS_BITS | thread << 56 | int(match[3] + match[4] + match[5], 16))

    @property
    def scn(self) -> int:
        """Return the SCN."""
        return self.ordinal >> _ADDRESS_BITS

    def __str__(self) -> str:
        """Return the text form, as in messages and in `wirekite_progress`."""
        rest = self.ordinal & _ADDRESS_MAX
        if rest == _ADDRESS_MAX or not self.ordinal:
            return str(self.scn)
        digits = f"{rest & (1 << 56) - 1:014x}"
        return f"{self.scn}:{rest >> 56}:0x{digits[:2]}.{digits[2:10]}.{digits[10:]}"


def commit_ordinal(scn: int, thread: int, rs_id: str) -> int:
    """Return the ordinal of a COMMIT's position; arguments are those of `of_commit`."""
    match = _RS_ID.fullmatch(rs_id)
    if match is None or not 0 <= thread <= _THREAD_MAX or not 0 <= scn <= SCN_MAX:
        raise PositionInvalid(f"not the address of a COMMIT: {scn}, thread {thread}, {rs_id!r}")
    sequence, block, offset = (int(one, 16) for one in match.groups())
    return scn << _ADDRESS_BITS | thread << 56 | (sequence & 0xFF) << 48 | block << 16 | offset
