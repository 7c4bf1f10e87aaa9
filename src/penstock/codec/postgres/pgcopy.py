"""Find CopyData frames in a buffer: the readable twin of `_pgcopy.pyx`.

A COPY's rows have the same frames in both directions, so they can be passed on unchanged. The
reader only needs to know where a frame ends and what begins there. Source: PostgreSQL manual,
"Message Formats".
"""

from __future__ import annotations

import os
from collections.abc import Callable

try:
    from penstock.codec.postgres._pgcopy import as_stream as _kernel_as_stream
    from penstock.codec.postgres._pgcopy import next_head as _kernel_next_head
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.postgres._pgcopy":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

__all__ = [
    "COMPILED",
    "HEAD_BYTES",
    "AsStream",
    "NextHead",
    "as_stream",
    "make_as_stream",
    "make_next_head",
    "next_head",
]

HEAD_BYTES = 5  # letter and length, which counts itself but not the letter
_COPY_DATA = ord("d")
_COPY_DONE = ord("c")
_XLOG_DATA = ord("w")
_LENGTH_MIN = 4
_TRAILER = b"\xff\xff"

Block = bytes | bytearray | memoryview
NextHead = Callable[[Block, int, int], int]
AsStream = Callable[[bytearray, int, int], tuple[int, bool]]


def next_head(block: Block, start: int, end: int) -> int:
    """Return where the first message begins that is not known to be CopyData.

    block[start:end] begins with a message, or start is past end: inside a frame that continues.
    Returns an offset p. Up to p, or to end if that is first, all bytes belong to CopyData. If p >
    end, p - end bytes of the last frame are missing. If p <= end, another message is at p, an
    incomplete head, a length that no message has, or nothing more. Raises ValueError if start or
    end is outside the block.
    """
    if start < 0 or not 0 <= end <= len(block):
        raise ValueError(f"no span of {len(block)} bytes: {start} to {end}")
    while start + HEAD_BYTES <= end and block[start] == _COPY_DATA:
        length = int.from_bytes(block[start + 1 : start + HEAD_BYTES], "big", signed=True)
        if length < _LENGTH_MIN:
            break
        start += 1 + length
    return start


def as_stream(block: bytearray, start: int, end: int) -> tuple[int, bool]:
    """Convert the rows of a binary COPY to frames of a replication stream, in place.

    The first byte after the head of each CopyData frame becomes the letter of XLogData; other
    messages stay unchanged. block[start:end] begins with a message. Returns where the whole frames
    end, and whether the COPY's trailer or its end comes there. A frame that is incomplete, or has a
    length that no message has, also ends them. Raises ValueError if the span is outside the block.
    """
    if not 0 <= start <= end <= len(block):
        raise ValueError(f"no span of {len(block)} bytes: {start} to {end}")
    while start + HEAD_BYTES <= end:
        length = int.from_bytes(block[start + 1 : start + HEAD_BYTES], "big", signed=True)
        behind = start + 1 + length
        if length < _LENGTH_MIN or behind > end:
            break
        if block[start] == _COPY_DONE:
            return start, True  # behind a first frame that held the trailer, too
        if block[start] == _COPY_DATA and length > _LENGTH_MIN:
            if block[start + HEAD_BYTES : behind] == _TRAILER:
                return start, True
            block[start + HEAD_BYTES] = _XLOG_DATA
        start = behind
    return start, False


def make_next_head() -> NextHead:
    """Return the compiled `next_head`, or the twin if it is not built or PENSTOCK_PURE=1 is set."""
    return _kernel_next_head if _may_be_compiled() else next_head


def make_as_stream() -> AsStream:
    """Return the compiled `as_stream`, or the twin, selected in the same way."""
    return _kernel_as_stream if _may_be_compiled() else as_stream


def _may_be_compiled() -> bool:
    return COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0")
