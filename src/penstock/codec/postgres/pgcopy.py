"""CopyData frames as they lie in a buffer, in plain Python: what `_pgcopy.pyx` says too.

A COPY's rows are framed alike in both directions, so that they can be passed on as they are; one
only has to know where a frame ends and what begins there.
Source: PostgreSQL manual, "Message Formats".
"""

from __future__ import annotations

import os
from collections.abc import Callable

try:
    from penstock.codec.postgres._pgcopy import next_head as _kernel
except ModuleNotFoundError as missing:
    if missing.name != "penstock.codec.postgres._pgcopy":
        raise  # the kernel is there and broken: never fall back silently
    COMPILED = False
else:
    COMPILED = True

__all__ = ["COMPILED", "HEAD_BYTES", "NextHead", "make_next_head", "next_head"]

HEAD_BYTES = 5  # letter and length, which counts itself but not the letter
_COPY_DATA = ord("d")
_LENGTH_MIN = 4

Block = bytes | bytearray | memoryview
NextHead = Callable[[Block, int, int], int]


def next_head(block: Block, start: int, end: int) -> int:
    """Where the first message begins that is not known to be CopyData.

    block[start:end] begins with a message, or start is past end: inside a frame that goes on.
    Returns an offset p. Up to p, or to end when that comes first, all bytes belong to CopyData.
    p > end: the last frame has p - end bytes still to come. p <= end: at p is another message,
    a head that is not whole yet, a length that no message has, or nothing more.
    Raises ValueError when start or end lies outside the block.
    """
    if start < 0 or not 0 <= end <= len(block):
        raise ValueError(f"no span of {len(block)} bytes: {start} to {end}")
    while start + HEAD_BYTES <= end and block[start] == _COPY_DATA:
        length = int.from_bytes(block[start + 1 : start + HEAD_BYTES], "big", signed=True)
        if length < _LENGTH_MIN:
            break
        start += 1 + length
    return start


def make_next_head() -> NextHead:
    """The compiled `next_head`, or the twin when it is not built or PENSTOCK_PURE=1 forbids it."""
    if COMPILED and os.environ.get("PENSTOCK_PURE", "0") in ("", "0"):
        return _kernel
    return next_head
