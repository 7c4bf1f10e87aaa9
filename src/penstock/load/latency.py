"""How long it took until something was visible: a histogram as Prometheus has it."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

import msgspec

# Upper bounds in seconds; what is above the last one counts in one more bucket.
BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


class Histogram(msgspec.Struct):
    """Counts by bucket. sum_s: of all that was observed; last_s: the newest."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0
    last_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one. Less than nothing, which two clocks can give, counts as 0."""
        self.last_s = max(seconds, 0.0)
        self.sum_s += self.last_s
        self.counts[bisect_left(BOUNDS_S, self.last_s)] += 1

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """The buckets as Prometheus wants them: upper bound, and how many are not above it."""
        names = [*map(str, BOUNDS_S), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))

    def quantile(self, share: float) -> float | None:
        """The quantile at this share, interpolated linearly; None before the first.

        A quantile above the last bound is given as the last bound.
        """
        wanted, before = share * self.count, 0
        if not self.count:
            return None
        for number, count in enumerate(self.counts[:-1]):
            if count and before + count >= wanted:
                low = BOUNDS_S[number - 1] if number else 0.0
                return low + (BOUNDS_S[number] - low) * (wanted - before) / count
            before += count
        return BOUNDS_S[-1]
