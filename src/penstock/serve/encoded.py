"""Encoded messages: a part of a chunk for all clients of the same tables and form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_OBJECT_BYTES = 64  # of a small Python object, at most


class Announced(NamedTuple):
    """Shape that must be known from a place in the bytes on, with its message."""

    offset: int
    table: int
    message: bytes


class Unsaid(NamedTuple):
    """State of a transaction that continues in the next part.

    Attributes:
        changes: number of changes so far.
        pieces: parts of a message that is a whole transaction.
        behind: frames that follow the COMMIT.
    """

    changes: int = 0
    pieces: tuple[bytes, ...] = ()
    behind: tuple[bytes, ...] = ()


NOTHING = Unsaid()


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class Block:
    """The bytes of one part of a chunk.

    Attributes:
        data: whole messages.
        cuts: offsets of messages, not far from each other, with 0 and the length.
        offsets: where each transaction begins that has something in it; a message outside of
            transactions is one.
        ends: their ENDs, in the client's numbers.
        shapes: by rising offset.
        position: all up to this LSN of the log's numbers (`numbers.py`) is sent when the block is;
            0 for a part that others follow.
        lsn: the END that is there, in the client's numbers.
        time_us: when the last transaction up to there was committed; 0 where the segment does not
            have it.
        open_trx: the transaction that goes on in the next part; 0 if none does.
        unsaid: what the next part needs of it.
        gsn: number of the last row.
    """

    data: bytes
    cuts: tuple[int, ...]
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    ends: np.ndarray[Any, np.dtype[np.uint64]]
    shapes: tuple[Announced, ...]
    position: int
    lsn: int = 0
    time_us: int = 0
    open_trx: int = 0
    unsaid: Unsaid = NOTHING
    gsn: int = 0

    @property
    def size_bytes(self) -> int:
        """Upper bound of its size in memory."""
        lists = self.offsets.nbytes + self.ends.nbytes + _OBJECT_BYTES * len(self.cuts)
        shapes = sum(len(one.message) + 3 * _OBJECT_BYTES for one in self.shapes)
        kept = (*self.unsaid.pieces, *self.unsaid.behind)
        unsaid = sum(len(one) + _OBJECT_BYTES for one in kept)
        return len(self.data) + lists + shapes + unsaid + 16 * _OBJECT_BYTES

    def start_behind(self, position: int) -> int:
        """Return where the first transaction begins whose END is after an LSN; the
        length if none.
        """
        at = int(np.searchsorted(self.ends, np.uint64(position), "right"))
        return int(self.offsets[at]) if at < len(self.offsets) else len(self.data)
