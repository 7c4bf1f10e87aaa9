"""Sets of GTIDs: text, stored form, members."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.mysql.gtids import GtidSet, MariaGtids
from penstock.codec.mysql.malformed import Malformed

ONE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
TWO = "5e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ""),
        (f"{ONE}:1-5", f"{ONE}:1-5"),
        (f"{ONE}:7:1-5", f"{ONE}:1-5:7"),
        (f"{ONE}:1-5:6", f"{ONE}:1-6"),
        (f"{ONE.upper()}:5 ,\n {TWO}:1", f"{ONE}:5,{TWO}:1"),
        (f"{ONE}:1-3,{ONE}:3-9", f"{ONE}:1-9"),
        (f"{ONE}:1:tag:1-3:5:other:2", f"{ONE}:1:other:2:tag:1-3:5"),
        (f"{ONE}:Tag:1", f"{ONE}:tag:1"),
        (f"{ONE.replace('-', '')}:4", f"{ONE}:4"),
    ],
)
def test_text_is_read_and_printed_as_the_servers_do(text: str, printed: str) -> None:
    """The text is sorted, and intervals are joined."""
    assert str(GtidSet.parse(text)) == printed


@pytest.mark.parametrize(
    "text",
    [ONE, f"{ONE}:", f"{ONE}:0", f"{ONE}:5-1", "x:1", f"{ONE}:1-x-2", f"{ONE}:9223372036854775807"],
)
def test_what_is_no_set_is_refused(text: str) -> None:
    """A text that is wrong in one part is refused as a whole."""
    with pytest.raises(Malformed):
        GtidSet.parse(text)


def test_sets_are_compared() -> None:
    """A set may have gaps, and does not contain the numbers in them."""
    mine = GtidSet.parse(f"{ONE}:1-5:8,{TWO}:tag:1")
    assert mine.contains((ONE, ""), 5)
    assert not mine.contains((ONE, ""), 6)
    assert not mine.contains((TWO, ""), 1)
    assert mine.includes(GtidSet.parse(f"{ONE}:2-3:8"))
    assert not mine.includes(GtidSet.parse(f"{ONE}:5-6"))
    assert not mine.includes(GtidSet.parse(f"{TWO}:1"))
    mine.update(GtidSet.parse(f"{ONE}:6-7"))
    assert str(mine) == f"{ONE}:1-8,{TWO}:tag:1"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([(ONE, ""), (TWO, ""), (ONE, "a"), (ONE, "b_2")]),
            st.integers(1, 40),
            st.integers(0, 9),
        ),
        max_size=30,
    )
)
def test_sets_hold_what_was_put_in(added: list[tuple[tuple[str, str], int, int]]) -> None:
    """Sets are restored from text and from their stored form."""
    made = GtidSet()
    expected = set()
    for source, first, more in added:
        made.add(source, first, first + more)
        expected |= {(source, number) for number in range(first, first + more + 1)}
    assert {(s, n) for s, low, high in made for n in range(low, high)} == expected
    for runs in made.intervals.values():
        assert all(a[1] < b[0] for a, b in pairwise(runs))
    assert GtidSet.parse(str(made)) == made
    assert GtidSet.decode(made.encode()) == made


def test_every_cut_of_a_stored_set_is_refused() -> None:
    """Bytes after the set are refused, too."""
    for text in (f"{ONE}:1-5:7", f"{ONE}:1:tag:3"):
        data = GtidSet.parse(text).encode()
        for end in range(len(data)):
            with pytest.raises(Malformed):
                GtidSet.decode(data[:end])
        with pytest.raises(Malformed):
            GtidSet.decode(data + b"\0")


def test_mariadb_keeps_the_last_of_each_domain() -> None:
    """A later one replaces the earlier one."""
    mine = MariaGtids.parse("1-2-30, 0-1-7")
    mine.update(MariaGtids.parse("0-5-8"))
    mine.add(2, 1, 1)
    assert str(mine) == "0-5-8,1-2-30,2-1-1"
    for text in ("0-1", "a-b-c", "0-1-2-3"):
        with pytest.raises(Malformed):
            MariaGtids.parse(text)
