"""Where CopyData ends: the kernel and its twin, on whole, torn and broken frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.postgres import pgcopy, pgwire
from penstock.codec.postgres.pgcopy import NextHead

WALKS = [pgcopy.next_head, pgcopy.make_next_head()]
BOTH = pytest.mark.parametrize("walk", WALKS, ids=["twin", "kernel"])


def test_the_kernel_is_taken_where_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_PURE=1 forbids it; without a compiler the twin does the work."""
    monkeypatch.delenv("PENSTOCK_PURE", raising=False)
    assert (pgcopy.make_next_head() is not pgcopy.next_head) == pgcopy.COMPILED
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    assert pgcopy.make_next_head() is pgcopy.next_head


@BOTH
def test_frames_torn_at_every_byte(walk: NextHead) -> None:
    """Wherever a block ends, what is known of the frame that goes on is where it ends."""
    frames = [pgwire.copy_data(b"x" * n) for n in (1, 0, 300, 2)]
    block = b"".join(frames) + pgwire.COPY_DONE
    heads = [0, 6, 11, 316, 323]
    assert heads[-1] + 5 == len(block)
    for end in range(len(block) + 1):
        seen = [head for head in heads if head + 5 <= end and head != heads[-1]]
        expected = heads[len(seen)]
        assert walk(block, 0, end) == expected
        # The same in two steps, as blocks come.
        for middle in range(end):
            assert walk(block, walk(block, 0, middle), end) == expected


@BOTH
def test_another_message_and_an_impossible_length_stop_the_walk(walk: NextHead) -> None:
    """They are for others to read, and to refuse."""
    for other in (b"c\0\0\0\4", b"E\0\0\0\5\0", b"d\0\0\0\3", b"d\xff\xff\xff\xff"):
        block = pgwire.copy_data(b"row") + other + pgwire.copy_data(b"row")
        assert walk(block, 0, len(block)) == 8
        assert walk(memoryview(block), 8, len(block)) == 8


@BOTH
def test_a_length_of_two_gigabytes_overflows_nothing(walk: NextHead) -> None:
    """The frame's end is told although no block could hold it."""
    assert walk(b"d\x7f\xff\xff\xff", 0, 5) == 0x80000000
    assert walk(bytearray(b"abc"), 0x80000000, 3) == 0x80000000


@BOTH
@pytest.mark.parametrize("span", [(-1, 2), (0, 4), (0, -1)])
def test_spans_outside_the_block_are_refused(walk: NextHead, span: tuple[int, int]) -> None:
    """Nothing outside the block is read."""
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
    """On any bytes, from any offset, to any end."""
    end = min(cut, len(block))
    assert pgcopy.make_next_head()(block, start, end) == pgcopy.next_head(block, start, end)
