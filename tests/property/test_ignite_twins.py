"""Segments and values of Ignite: twin and kernel read the same, and refuse at the same place."""

from __future__ import annotations

import struct
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.ignite.draw import Mutator, recorded_values
from harness.ignite.recordings import data_segment, entry_bytes, record_bytes, segments_of
from harness.ignite.twins import KINDS, assert_same, assert_same_segment, assert_same_value

CORPUS = Path(__file__).parent / "corpus" / "ignite"
CODES = st.sampled_from([*range(41), 99, 100, 101, 102, 103, 253, 254, 255])
NUMBERS = st.one_of(
    st.integers(0, 40), st.sampled_from([-1, -2, 255, 65535, 2**31 - 1, -(2**31), 32693303])
).map(lambda value: struct.pack("<i", value))
PIECES = st.one_of(CODES.map(lambda code: bytes([code])), NUMBERS, st.binary(max_size=9))
SOUP = st.lists(PIECES, max_size=24).map(b"".join)


def change_bytes(data: bytes, places: list[tuple[int, int]]) -> bytes:
    """Return the bytes with some of them replaced."""
    made = bytearray(data)
    for at, byte in places:
        if made:
            made[at % len(made)] = byte
    return bytes(made)


CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4)


@given(SOUP)
def test_pieces_in_any_order(data: bytes) -> None:
    """Most of them are not values."""
    for kind in KINDS:
        assert_same_value(data, kind)


@given(st.data(), CHANGES, st.integers(0, 3))
def test_values_of_a_node_with_mistakes(
    data: st.DataObject, places: list[tuple[int, int]], cut: int
) -> None:
    """Values of every type are changed in some places."""
    made = change_bytes(data.draw(st.sampled_from(recorded_values())), places)
    assert_same_value(made[: len(made) - cut], 100)


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_mutated_inputs(seed: int, times: int) -> None:
    """The fuzzer makes them: values with any references, segments with valid checksums."""
    mutator = Mutator(seed)
    case = mutator.seed_input()
    assert_same(case)
    for _ in range(times):
        case = mutator.mutate(case)
        assert_same(case)


def test_kept_inputs_are_handled_equally() -> None:
    """The fuzzer kept these inputs because they reached new code or once failed."""
    paths = sorted(CORPUS.glob("*.bin"))
    assert paths
    for path in paths:
        check_kept(path)


def check_kept(path: Path) -> None:
    """Check one input; pytest shows the path of one that fails."""
    assert_same(path.read_bytes())


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
    st.integers(0, 255),
    CHANGES,
)
def test_segments(
    records: list[list[bytes]],
    count: int | None,
    more: list[bytes],
    how: int,
    places: list[tuple[int, int]],
) -> None:
    """Segments have valid and invalid entries; some bytes are changed under their checksum."""
    data = data_segment(records, count=count, more=more)
    for segment in (data, change_bytes(data, places)):
        assert_same_segment(segment, how)


@given(st.integers(0, 255), CHANGES, st.integers(0, 4000))
def test_recorded_segments(how: int, places: list[tuple[int, int]], cut: int) -> None:
    """A real node wrote them; they are read from any place, with mistakes and torn tails."""
    data = segments_of("two")[3][1]
    data = data[:12] + b"\0" + data[13:]
    for segment in (data, change_bytes(data, places), data[: len(data) - cut]):
        assert_same_segment(segment, how)
