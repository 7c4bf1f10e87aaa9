"""Order of numbered segments, with one sequence of checks for every reader, and gaps in it.

Consumers of a change log, FlexCDC, and readers of the directory where a node leaves its log all
list files with rising numbers, and all have a saved state that says where to continue. Nothing is
returned or removed before the whole listing is checked. Not here: the contents of a segment, and
the owner of the files (`log/listing.py`, `ports/direct.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.model.errors import PenstockError

MISSED = "Found missed segments. Some events are missed. Exiting! "
GREATER = "Found segment greater then saved state. Some events are missed. Exiting! "


def already_processed(segment: object, state: object) -> str:
    """Return the published text for a segment that the saved state is past."""
    return (
        "Already processed segment found. Skipping and deleting the file "
        f"[segment={segment}, state={state}]"
    )


class SegmentOrder:
    """Numbers that a reader was given, and those that follow.

    Attributes:
        last: the last number that was returned; None before the first.
    """

    def __init__(
        self,
        *,
        numbers: Callable[[], Sequence[int]],
        check_past: Callable[[Sequence[int]], None],
        remove: Callable[[int], None],
        missed: Callable[[str, int, int], PenstockError],
    ) -> None:
        """Store the callbacks.

        Args:
            numbers: returns the numbers of the existing segments, in order.
            check_past: raises unless these segments, which the saved state is past, may be
                removed: they were read under this state.
            remove: removes a segment that the saved state is past.
            missed: makes the error for a gap, from its text and the numbers around it.
        """
        self._numbers = numbers
        self._check_past = check_past
        self._remove = remove
        self._missed = missed
        self.last: int | None = None

    def next(self, saved: int | None, state: object = None) -> list[int]:
        """Return the numbers that were not returned yet, in order; if there is a gap, none.

        Args:
            saved: segment of the saved state, if nothing was read since it was loaded. Segments
                before it are removed.
            state: the saved state as messages show it; by default `saved`.

        Raises:
            PenstockError: what `check_past` and `missed` say. Nothing is removed then.
        """
        state = saved if state is None else state
        past, new = self._split(saved)
        gap = self._gap(new)
        if gap is not None:  # one listing can miss a name that is created meanwhile
            past, new = self._split(saved)
            gap = self._gap(new)
        if past:
            self._check_past(past)
        if gap is not None:
            last, following = gap
            raise self._missed(
                f"{MISSED}[lastSegment={last}, nextSegment={following}]", last, following
            )
        if saved is not None and new and new[0] > saved:
            raise self._missed(f"{GREATER}[state={state}, segment={new[0]}]", saved, new[0])
        for number in past:
            self._remove(number)
        if new:
            self.last = new[-1]
        return new

    def begin_again(self) -> None:
        """Forget what was returned: the next call lists everything again."""
        self.last = None

    def _split(self, saved: int | None) -> tuple[list[int], list[int]]:
        last = self.last
        unseen = [number for number in self._numbers() if last is None or number > last]
        if saved is None:
            return [], unseen
        return [one for one in unseen if one < saved], [one for one in unseen if one >= saved]

    def _gap(self, numbers: Sequence[int]) -> tuple[int, int] | None:
        last = self.last
        for number in numbers:
            if last is not None and number != last + 1:
                return last, number
            last = number
        return None


QUESTION = "Delete the segment links before the last hole, and the saved state?"


def lost_count(numbers: Sequence[int]) -> int:
    """Return the number of segments, in order, that are before the last gap.

    Of 2, 3, 8, 10, 11 these are three: the contiguous run at the top stays.
    """
    first = len(numbers) - 1
    while first > 0 and numbers[first] == numbers[first - 1] + 1:
        first -= 1
    return max(first, 0)
