"""Sets of positions in the portable format of 64-bit Roaring bitmaps.

Both formats of lakes keep deleted positions in it. A set is a strictly ascending array of int64
here, because lookups and masks need arrays. The format cuts positions into a bucket of 32 bits,
which has containers of 16 bits: arrays of values, bitmaps or runs, whichever is smallest.

The byte layout is that of https://github.com/RoaringBitmap/RoaringFormatSpec. Not here: the
frames around a set (`deletion_vectors.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.codec.lake.errors import corrupt

Positions = npt.NDArray[np.int64]

_COOKIE, _COOKIE_RUNS = 12346, 12347
_OFFSETS_FROM = 4  # containers: with runs, fewer have no offsets
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_BITS = 1 << 16
_WHAT = "a deletion vector"

NO_POSITIONS: Positions = np.empty(0, np.int64)


def serialize_positions(positions: Positions) -> bytes:
    """Return the bytes of a set. positions: strictly ascending, none negative."""
    if not len(positions):
        return struct.pack("<Q", 0)
    cuts = _starts(positions >> 32)
    parts = [struct.pack("<Q", len(cuts))]
    for at, end in _ranges(cuts, len(positions)):
        some = positions[at:end]
        parts.append(struct.pack("<I", int(some[0] >> 32)))
        parts.append(_serialize_bucket(some & 0xFFFFFFFF))
    return b"".join(parts)


def parse_positions(data: bytes | memoryview) -> Positions:
    """Return the set that some bytes hold. Raises DeletionCorrupt."""
    view = memoryview(data)
    (count,) = _unpack("<Q", view, 0)
    at, found, previous = 8, [], -1
    for _ in range(count):
        (high,) = _unpack("<I", view, at)
        if high <= previous or high >= 1 << 31:
            raise corrupt(_WHAT, "its buckets are not in order")
        previous = high
        values, at = _parse_bucket(view, at + 4)
        found.append(values + (high << 32))
    if at != len(view):
        raise corrupt(_WHAT, f"{len(view) - at} bytes follow its end")
    return np.concatenate(found) if found else NO_POSITIONS


def _starts(keys: Positions) -> Positions:
    """Return the places at which a new key begins; there is at least one."""
    return np.concatenate([[0], np.flatnonzero(np.diff(keys)) + 1])


def _ranges(starts: Positions, size: int) -> Iterator[tuple[int, int]]:
    ends = [*starts[1:].tolist(), size]
    return zip(starts.tolist(), ends, strict=True)


def _serialize_bucket(values: Positions) -> bytes:
    starts = _starts(values >> 16)
    bodies, has_runs = [], []
    for at, end in _ranges(starts, len(values)):
        body, is_run = _serialize_container((values[at:end] & 0xFFFF).astype("<u2"))
        bodies.append(body)
        has_runs.append(is_run)
    count = len(starts)
    heads = np.empty((count, 2), "<u2")
    heads[:, 0] = values[starts] >> 16
    heads[:, 1] = np.diff(starts, append=len(values)) - 1
    if any(has_runs):
        flags = np.packbits(np.array(has_runs), bitorder="little").tobytes()
        head = struct.pack("<I", _COOKIE_RUNS | (count - 1) << 16) + flags
    else:
        head = struct.pack("<II", _COOKIE, count)
    head += heads.tobytes()
    if not any(has_runs) or count >= _OFFSETS_FROM:
        sizes = [len(head) + 4 * count, *map(len, bodies[:-1])]
        head += np.cumsum(sizes).astype("<u4").tobytes()
    return head + b"".join(bodies)


def _serialize_container(values: npt.NDArray[np.uint16]) -> tuple[bytes, bool]:
    """Return the bytes of a container, and whether it has runs."""
    wide = values.astype(np.int64)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(wide) != 1) + 1])
    if 2 + 4 * len(starts) < min(2 * len(values), _BITMAP_BYTES):
        runs = np.empty((len(starts), 2), "<u2")
        runs[:, 0] = values[starts]
        runs[:, 1] = np.diff(starts, append=len(values)) - 1
        return struct.pack("<H", len(starts)) + runs.tobytes(), True
    if len(values) <= _ARRAY_MAX:
        return values.tobytes(), False
    bits = np.zeros(_BITS, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes(), False


def _parse_bucket(view: memoryview, start: int) -> tuple[Positions, int]:
    """Return the 32-bit values of the bucket at this offset, and the offset of its end."""
    (cookie,) = _unpack("<I", view, start)
    at = start + 4
    if cookie & 0xFFFF == _COOKIE_RUNS:
        count = (cookie >> 16) + 1
        packed = _read(view, at, (count + 7) // 8, np.uint8)
        has_runs = _unpack_bits(packed)[:count]
        at += (count + 7) // 8
        has_offsets = count >= _OFFSETS_FROM
    elif cookie == _COOKIE:
        (count,) = _unpack("<I", view, at)
        if not 0 < count <= _BITS:
            raise corrupt(_WHAT, f"a bucket has {count} containers")
        at += 4
        has_runs = np.zeros(count, np.uint8)
        has_offsets = True
    else:
        raise corrupt(_WHAT, f"a bucket begins with {cookie}, which no bitmap does")
    heads = _read(view, at, 2 * count, "<u2").reshape(-1, 2).astype(np.int64)
    at += 4 * count
    offsets = _read(view, at, count, "<u4") if has_offsets else None
    at += 4 * count if has_offsets else 0
    if (np.diff(heads[:, 0]) <= 0).any():
        raise corrupt(_WHAT, "its containers are not in order")
    found = []
    for place, ((key, last), is_run) in enumerate(
        zip(heads.tolist(), has_runs.tolist(), strict=True)
    ):
        if offsets is not None and int(offsets[place]) != at - start:
            raise corrupt(_WHAT, "an offset does not lead to its container")
        values, at = _parse_container(view, at, last + 1, is_run=bool(is_run))
        found.append(values + (key << 16))
    return np.concatenate(found), at


def _parse_container(
    view: memoryview, at: int, cardinality: int, *, is_run: bool
) -> tuple[Positions, int]:
    """Return the 16-bit values of the container at this offset, and the offset of its end."""
    if is_run:
        (count,) = _unpack("<H", view, at)
        runs = _read(view, at + 2, 2 * count, "<u2").reshape(-1, 2).astype(np.int64)
        begins, sizes = runs[:, 0], runs[:, 1] + 1
        if int(sizes.sum()) != cardinality or (begins[1:] < (begins + sizes)[:-1]).any():
            raise corrupt(_WHAT, "its runs overlap, or have another length than their sum")
        before = np.cumsum(sizes) - sizes
        values = np.arange(cardinality) + np.repeat(begins - before, sizes)
        at += 2 + 4 * count
    elif cardinality <= _ARRAY_MAX:
        values = _read(view, at, cardinality, "<u2").astype(np.int64)
        at += 2 * cardinality
        if (np.diff(values) <= 0).any():
            raise corrupt(_WHAT, "its values are not in order")
    else:
        values = np.flatnonzero(_unpack_bits(_read(view, at, _BITMAP_BYTES, np.uint8)))
        at += _BITMAP_BYTES
    if len(values) != cardinality or (cardinality and values[-1] >= _BITS):
        raise corrupt(_WHAT, "a container has another number of values than its head says")
    return values, at


def _unpack(form: str, view: memoryview, at: int) -> tuple[int, ...]:
    if at + struct.calcsize(form) > len(view):
        raise corrupt(_WHAT, "it ends too early")
    return struct.unpack_from(form, view, at)


def _unpack_bits(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.unpackbits(packed, bitorder="little")


def _read(view: memoryview, at: int, count: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return `count` numbers at an offset."""
    if at + count * np.dtype(kind).itemsize > len(view):
        raise corrupt(_WHAT, "it ends too early")
    return np.frombuffer(view, kind, count, at)
