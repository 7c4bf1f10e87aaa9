"""Applied segments: which are kept, and which are old or many enough to be removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log.closing import KeptFile, find_outlived
from penstock.log.layout import SegmentFile
from penstock.model.keeping import Keeping

HOUR_S = 3600.0


def files(*given: tuple[float, int]) -> list[KeptFile]:
    """Return segments from 0 on, each (age in hours, size)."""
    return [
        KeptFile(
            file=SegmentFile(number=number, path=Path(f"{number}.ckt")),
            age_s=age * HOUR_S,
            size_bytes=size,
        )
        for number, (age, size) in enumerate(given)
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        ([(3, 10), (2, 10), (0.5, 10)], []),
        ([(30, 10), (25, 10), (23, 10)], [0, 1]),
        ([(3, 60), (2, 60), (1, 60)], [0, 1]),
        ([(3, 101)], [0]),
        # A file with a strange time keeps the later ones: the log never has a gap.
        ([(1, 10), (30, 10)], []),
        ([(30, 10), (1, 95), (1, 10)], [0, 1]),
    ],
)
def test_the_oldest_go_first(given: list[tuple[float, int]], expected: list[int]) -> None:
    """Removed ones are over the age, or older than the newest that fit the size; no gap results."""
    gone = find_outlived(files(*given), Keeping(age_s=24 * HOUR_S, size_bytes=100))
    assert [file.number for file in gone] == expected


def test_without_limits_all_stay() -> None:
    """A loader without configured limits works like this."""
    assert find_outlived(files((10_000, 10**15)), Keeping()) == []
