"""Time: the wall clock for what people read, the monotonic clock for intervals.

All code that waits or measures takes a `Clock`, so that tests can set the time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code may know about time."""

    def now_us(self) -> int:
        """Wall time: microseconds since 1970 UTC. May jump; never measure intervals with it."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait at least this long; returns at once for zero or less."""
        ...


class RealClock:
    """The machine's clock."""

    def now_us(self) -> int:
        """Wall time: microseconds since 1970 UTC."""
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        """Seconds since the machine started; goes on while the wall clock jumps."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait; signals' handlers run meanwhile."""
        if seconds > 0:
            time.sleep(seconds)


REAL_CLOCK: Clock = RealClock()
