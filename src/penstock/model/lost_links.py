"""Segments before a hole: which they are, and what is said when they are deleted; as published.

The same for consumers of a change log and for the directory of a node that is read in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FOUND = "Lost segment CDC links successfully removed."
NOT_FOUND = "Lost segment CDC links were not found."
NOT_CONFIGURED = "CDC is not configured."
QUESTION = "Delete the segment links before the last hole, and the saved state?"


def lost_count(numbers: Sequence[int]) -> int:
    """How many of these numbers, in order, are below the last hole.

    Of 2, 3, 8, 10, 11 they are three: the contiguous run at the top stays.
    """
    first = len(numbers) - 1
    while first > 0 and numbers[first] == numbers[first - 1] + 1:
        first -= 1
    return max(first, 0)


def locked(directory: Path, reason: str) -> str:
    """The text where somebody reads the directory."""
    return (
        "Failed to delete lost segment CDC links. Unable to acquire lock to lock CDC folder. "
        f"Make sure a CDC app is shut down [dir={directory}, reason={reason}]"
    )
