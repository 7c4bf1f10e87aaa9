"""Counts of measured values by bucket, in the form that Prometheus has."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

LATENCY_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
)


@dataclass(slots=True)
class Histogram:
    """Counts of values at or below each bound, and above all bounds.

    Attributes:
        bounds: Upper bounds of the buckets, rising.
        counts: Number of values in each bucket; the last one is for values above all bounds.
        sum: Sum of all values.
        last: The newest value.
    """

    bounds: tuple[float, ...] = LATENCY_BOUNDS_S
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0
    last: float = 0.0

    def __post_init__(self) -> None:
        """Begin with empty buckets. Raises ValueError for counts that the bounds do not have."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.counts)} counts for {len(self.bounds)} bounds")

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.last = value

    @property
    def count(self) -> int:
        """Number of observed values."""
        return sum(self.counts)

    def cumulative(self, divisor: float = 1.0) -> list[tuple[str, int]]:
        """Return Prometheus's buckets: upper bound, and the number of values up to it.

        divisor: turns a value into Prometheus's unit.
        """
        names = [*(str(bound / divisor) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))

    def quantile(self, share: float) -> float | None:
        """Return the quantile at this share, interpolated linearly; None before the first value.

        The result is at most the last bound.
        """
        wanted, before = share * self.count, 0
        if not self.count:
            return None
        for number, count in enumerate(self.counts[:-1]):
            if count and before + count >= wanted:
                low = self.bounds[number - 1] if number else 0.0
                return low + (self.bounds[number] - low) * (wanted - before) / count
            before += count
        return self.bounds[-1]
