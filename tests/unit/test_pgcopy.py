"""Ends of CopyData frames: the kernel and its twin, on whole, torn and broken frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.postgres import pgcopy, pgwire
from penstock.codec.postgres.pgcopy import AsStream, NextHead

WALKS = [pgcopy.next_head, pgcopy.make_next_head()]
BOTH = pytest.mark.parametrize("walk", WALKS, ids=["twin", "kernel"])


def test_the_kernel_is_taken_where_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_PURE=1 forbids it; without a compiler the twin does the work."""
    monkeypatch.delenv("PENSTOCK_PURE", raising=False)
    assert (pgcopy.make_next_head() is not pgcopy.next_head) == pgcopy.COMPILED
    assert (pgcopy.make_as_stream() is not pgcopy.as_stream) == pgcopy.COMPILED
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    assert pgcopy.make_next_head() is pgcopy.next_head
    assert pgcopy.make_as_stream() is pgcopy.as_stream


@BOTH
def test_frames_torn_at_every_byte(walk: NextHead) -> None:
    """Wherever a block ends, the end of the continued frame is known."""
    frames = [pgwire.copy_data(b"x" * n) for n in (1, 0, 300, 2)]
    block = b"".join(frames) + pgwire.COPY_DONE
    heads = [0, 6, 11, 316, 323]
    assert heads[-1] + 5 == len(block)
    for end in range(len(block) + 1):
        seen = [head for head in heads if head + 5 <= end and head != heads[-1]]
        expected = heads[len(seen)]
        assert walk(block, 0, end) == expected
        # The same in two steps, as blocks arrive.
        for middle in range(end):
            assert walk(block, walk(block, 0, middle), end) == expected


@BOTH
def test_another_message_and_an_impossible_length_stop_the_walk(walk: NextHead) -> None:
    """Other code reads them, or refuses them."""
    for other in (b"c\0\0\0\4", b"E\0\0\0\5\0", b"d\0\0\0\3", b"d\xff\xff\xff\xff"):
        block = pgwire.copy_data(b"row") + other + pgwire.copy_data(b"row")
        assert walk(block, 0, len(block)) == 8
        assert walk(memoryview(block), 8, len(block)) == 8


@BOTH
def test_a_length_of_two_gigabytes_overflows_nothing(walk: NextHead) -> None:
    """The frame's end is returned although no block could hold it."""
    assert walk(b"d\x7f\xff\xff\xff", 0, 5) == 0x80000000
    assert walk(bytearray(b"abc"), 0x80000000, 3) == 0x80000000


@BOTH
@pytest.mark.parametrize("span", [(-1, 2), (0, 4), (0, -1)])
def test_spans_outside_the_block_are_refused(walk: NextHead, span: tuple[int, int]) -> None:
    """No byte outside the block is read."""
    with pytest.raises(ValueError, match="no span of 3 bytes"):
        walk(b"abc", *span)


@given(
    block=st.lists(
        st.one_of(st.binary(max_size=9), st.binary(max_size=40).map(pgwire.copy_data)), max_size=12
    ).map(b"".join),
    start=st.integers(0, 80),
    cut=st.integers(0, 500),
)
def test_kernel_and_twin_agree(block: bytes, start: int, cut: int) -> None:
    """Kernel and twin agree for any bytes, from any offset, to any end."""
    end = min(cut, len(block))
    assert pgcopy.make_next_head()(block, start, end) == pgcopy.next_head(block, start, end)


TURNS = pytest.mark.parametrize(
    "turn", [pgcopy.as_stream, pgcopy.make_as_stream()], ids=["twin", "kernel"]
)


@TURNS
def test_rows_become_frames_of_the_stream(turn: AsStream) -> None:
    """Whole rows are converted at whatever byte the block ends, others stay as they are."""
    rows = [b"\0row", b"\0", b"", b"\0\3long"]
    turned = [b"wrow", b"w", b"", b"w\3long"]
    notice = b"N\0\0\0\5\0"
    block = b"".join([*map(pgwire.copy_data, rows), notice, pgwire.copy_data(b"\0last")])
    expected = b"".join([*map(pgwire.copy_data, turned), notice, pgwire.copy_data(b"wlast")])
    ends = [0, 9, 15, 20, 31, 37, 47]
    assert ends[-1] == len(block)
    for end in range(len(block) + 1):
        buffer = bytearray(block)
        stop = max(one for one in ends if one <= end)
        assert turn(buffer, 0, end) == (stop, False)
        assert buffer == expected[:stop] + block[stop:]


@TURNS
@pytest.mark.parametrize("last", [pgwire.copy_data(b"\xff\xff"), pgwire.COPY_DONE])
def test_trailer_and_end_are_the_last(turn: AsStream, last: bytes) -> None:
    """Both are reported, and neither they nor later bytes are converted."""
    row = pgwire.copy_data(b"\0row")
    buffer = bytearray(row + last + row)
    assert turn(buffer, 0, len(buffer)) == (len(row), True)
    assert buffer == pgwire.copy_data(b"wrow") + last + row
    assert turn(buffer, 0, len(row) + len(last) - 1) == (len(row), False)


@TURNS
def test_two_bytes_that_are_no_trailer_are_a_row(turn: AsStream) -> None:
    """The trailer is a count of fields of minus one."""
    buffer = bytearray(pgwire.copy_data(b"\xff\0") + pgwire.copy_data(b"\xff\xff\xff"))
    assert turn(buffer, 0, len(buffer)) == (len(buffer), False)


@TURNS
@pytest.mark.parametrize("length", [b"\0\0\0\3", b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_an_impossible_length_ends_the_frames(turn: AsStream, length: bytes) -> None:
    """Other code refuses it; here the walk does not loop."""
    row = pgwire.copy_data(b"\0row")
    buffer = bytearray(row + b"d" + length + b"row")
    assert turn(buffer, 0, len(buffer)) == (len(row), False)


@TURNS
@pytest.mark.parametrize("span", [(-1, 2), (0, 4), (2, 1)])
def test_spans_outside_the_block_are_not_turned(turn: AsStream, span: tuple[int, int]) -> None:
    """No byte outside the block is written."""
    with pytest.raises(ValueError, match="no span of 3 bytes"):
        turn(bytearray(b"abc"), *span)


@given(
    block=st.lists(
        st.one_of(
            st.binary(max_size=9),
            st.binary(max_size=40).map(pgwire.copy_data),
            st.sampled_from([pgwire.COPY_DONE, pgwire.copy_data(b"\xff\xff")]),
        ),
        max_size=12,
    ).map(b"".join),
    cut=st.integers(0, 500),
)
def test_kernel_and_twin_turn_alike(block: bytes, cut: int) -> None:
    """Kernel and twin agree for any bytes, to any end."""
    one, other = bytearray(block), bytearray(block)
    end = min(cut, len(block))
    assert pgcopy.make_as_stream()(one, 0, end) == pgcopy.as_stream(other, 0, end)
    assert one == other
