"""Segments before a gap in the numbers.

Used for consumers of a change log and for the directory of a node that is read directly.
"""

from __future__ import annotations

from collections.abc import Sequence

QUESTION = "Delete the segment links before the last hole, and the saved state?"


def lost_count(numbers: Sequence[int]) -> int:
    """Return the number of segments, in order, that are before the last gap.

    Of 2, 3, 8, 10, 11 these are three: the contiguous run at the top stays.
    """
    first = len(numbers) - 1
    while first > 0 and numbers[first] == numbers[first - 1] + 1:
        first -= 1
    return max(first, 0)
