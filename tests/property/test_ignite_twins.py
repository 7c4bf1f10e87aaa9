"""Ignite's segments and values: twin and kernel read the same, and refuse at the same place."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fix_ignite import (
    data_segment,
    entry_bytes,
    record_bytes,
    segments_of,
    shown,
    types_of,
    walked,
)
from penstock.codec.ignite import _marshal, _wal, marshal, wal
from penstock.codec.ignite.types import Types
from penstock.model import PenstockError

TWIN = (wal.Walk, wal.Entry)
KERNEL = (_wal.Walk, _wal.Entry)
FIELDS = (
    "cache_id", "conflict_version", "counter", "expire_time_ms", "flags", "index", "near_version",
    "offset", "operation", "partition", "time_ms", "write_version", "key", "value", "key_bytes",
    "value_bytes", "has_value", "primary",
)  # fmt: skip
CODES = st.sampled_from([*range(41), 99, 100, 101, 102, 103, 253, 254, 255])
NUMBERS = st.one_of(
    st.integers(0, 40), st.sampled_from([-1, -2, 255, 65535, 2**31 - 1, -(2**31), 32693303])
).map(lambda value: struct.pack("<i", value))
PIECES = st.one_of(CODES.map(lambda code: bytes([code])), NUMBERS, st.binary(max_size=9))
SOUP = st.lists(PIECES, max_size=24).map(b"".join)


@cache
def values() -> list[bytes]:
    """Every key and value of a recording that is not long."""
    found = set()
    for name in ("one", "full"):
        for entry in walked(name, TWIN, marshal.decode):
            found |= {entry.key_bytes, entry.value_bytes or b""}
    return sorted(one for one in found if len(one) < 4000)


@cache
def types() -> Types:
    """Those of a recording."""
    return types_of("one")


def outcome(data: bytes, kind: int, decode: Any) -> tuple[str, object]:
    """What is read, or why it is not."""
    try:
        found = decode(data, kind, types())
    except PenstockError as error:
        return type(error).__name__, (error.message, error.fields)
    try:
        return "found", repr(shown(found))
    except RecursionError:
        return "found", repr(found)


def check_value(data: bytes) -> None:
    """Both say the same."""
    for kind in (1, 100):
        twin = outcome(data, kind, marshal.decode)
        assert outcome(data, kind, _marshal.decode) == twin


def steps(data: bytes, kernel: Any, reads: list[int]) -> list[object]:
    """What a walk says at each step, to its end or its error."""
    told: list[object] = []
    try:
        wal.check_header(data, 0, "0.wal")
        found = kernel[0](
            data, number=0, name="0.wal", begin=reads[0], kind=kernel[1],
            decode=lambda raw, kind: (raw, kind),
        )  # fmt: skip
        told.append(found.skip(reads[1]))
        for at, entry in enumerate(found):
            told.append([getattr(entry, name) for name in FIELDS])
            if at in reads:
                told.append((found.place, found.is_drained, found.count))
        told.append((found.place, found.is_drained, found.count))
    except PenstockError as error:
        told.append((type(error).__name__, error.message, error.fields))
    return told


def changed(data: bytes, places: list[tuple[int, int]]) -> bytes:
    """The bytes with some of them replaced."""
    made = bytearray(data)
    for at, byte in places:
        if made:
            made[at % len(made)] = byte
    return bytes(made)


CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4)


@given(SOUP)
def test_pieces_in_any_order(data: bytes) -> None:
    """Mostly no value."""
    check_value(data)


@given(st.data(), CHANGES, st.integers(0, 3))
def test_values_of_a_node_with_mistakes(
    data: st.DataObject, places: list[tuple[int, int]], cut: int
) -> None:
    """Of every type, changed in some places."""
    value = data.draw(st.sampled_from(values()))
    made = changed(value, places)
    check_value(made[: len(made) - cut])


ENTRIES = st.builds(
    entry_bytes,
    key=SOUP,
    value=st.none() | SOUP,
    op=st.integers(0, 6),
    near=st.sampled_from([b"\0", b"\1" + b"\7" * 16, b"\2" + b"\xff" * 32, b"\3"]),
    flags=st.integers(0, 7),
    value_length=st.sampled_from([None, None, None, -1, -5, 3]),
)


@given(
    st.lists(st.lists(ENTRIES, max_size=3), max_size=4),
    st.sampled_from([None, None, None, 2, -1]),
    st.lists(st.sampled_from([record_bytes(46, b"abc"), record_bytes(79, b"x" * 20)]), max_size=2),
    st.lists(st.integers(0, 60), min_size=2, max_size=5),
    CHANGES,
)
def test_segments(
    records: list[list[bytes]],
    count: int | None,
    more: list[bytes],
    reads: list[int],
    places: list[tuple[int, int]],
) -> None:
    """Made of proper entries and improper ones; some bytes changed behind their checksum."""
    data = data_segment(records, count=count, more=more)
    for segment in (data, changed(data, places)):
        assert steps(segment, KERNEL, reads) == steps(segment, TWIN, reads)


@given(st.integers(29, 4000), CHANGES, st.integers(0, 4000))
def test_recorded_segments(begin: int, places: list[tuple[int, int]], cut: int) -> None:
    """Of a real node, from any place, with mistakes and torn tails."""
    data = segments_of("two")[3][1]
    data = data[:12] + b"\0" + data[13:]
    for segment in (data, changed(data, places), data[: len(data) - cut]):
        assert steps(segment, KERNEL, [begin, 0]) == steps(segment, TWIN, [begin, 0])
