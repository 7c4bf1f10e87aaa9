"""The order in which a listing of numbered segments is checked, removed and returned."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.model import PenstockError
from penstock.model.segment_order import SegmentOrder


class Missed(PenstockError):
    """An error for a gap."""


class Foreign(PenstockError):
    """Error: the segments are not those that were read."""


class Directory:
    """Segments by number. listings: what is seen, one after another; then what is there."""

    def __init__(self, *there: int, foreign: Sequence[int] = ()) -> None:
        self.there = set(there)
        self.foreign = set(foreign)
        self.listings: list[list[int]] = []
        self.order = SegmentOrder(
            numbers=self.numbers,
            check_past=self.check,
            remove=self.there.remove,
            missed=self.make_missed,
        )

    def numbers(self) -> list[int]:
        """Return the numbers, in order."""
        return self.listings.pop(0) if self.listings else sorted(self.there)

    def check(self, past: Sequence[int]) -> None:
        """Refuse segments of another log."""
        if self.foreign & set(past):
            raise Foreign("of another log")

    def make_missed(self, text: str, last: int, following: int) -> Missed:
        """Return the error for a gap."""
        return Missed(text, last=last, next=following)


def test_each_number_is_returned_once() -> None:
    """Numbers are returned as they arrive."""
    one = Directory(3, 4)
    assert one.order.next(None) == [3, 4]
    one.there |= {5}
    assert one.order.next(None) == [5]
    assert one.order.next(None) == []
    one.order.begin_again()
    assert one.order.next(None) == [3, 4, 5]


def test_what_the_saved_state_is_past_is_removed_once_all_is_checked() -> None:
    """A gap below the saved segment does not count: all of it was read."""
    one = Directory(1, 3, 7, 8)
    assert one.order.next(7) == [7, 8]
    assert one.there == {7, 8}


@pytest.mark.parametrize(
    ("there", "saved", "error"),
    [
        ((5, 6, 7), 7, Foreign),
        ((5, 6, 7, 9), 7, Foreign),
        ((0, 7, 9), 7, Missed),
        ((0, 8), 7, Missed),
    ],
)
def test_nothing_is_removed_before_all_is_checked(
    there: tuple[int, ...], saved: int, error: type[PenstockError]
) -> None:
    """Reasons: segments of another log, a gap, a listing that begins after the saved state."""
    one = Directory(*there, foreign=(6,))
    with pytest.raises(error):
        one.order.next(saved)
    assert one.there == set(there)
    assert one.order.last is None


def test_a_gap_names_the_numbers_around_it() -> None:
    """The gap is between returned and new segments, or within the new ones."""
    one = Directory(3)
    one.order.next(None)
    one.there = {5}
    with pytest.raises(Missed, match=r"\[lastSegment=3, nextSegment=5\]"):
        one.order.next(None)
    one.there = {4, 6}
    with pytest.raises(Missed, match=r"\[lastSegment=4, nextSegment=6\]"):
        one.order.next(None)
    with pytest.raises(Missed, match=r"\[state=\(2, 9, 0\), segment=3\]"):
        Directory(3).order.next(2, (2, 9, 0))


def test_a_name_that_one_listing_hides_is_no_gap() -> None:
    """A directory is not listed at one moment."""
    one = Directory(3, 4, 5)
    one.listings = [[3, 5]]
    assert one.order.next(None) == [3, 4, 5]
