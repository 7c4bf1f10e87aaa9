"""Time: the wall clock for times that people read, the monotonic clock for intervals.

All code that waits or measures takes a `Clock`, so that tests can set the time.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Protocol


class Clock(Protocol):
    """Operations that code may use to read time and wait."""

    @abstractmethod
    def now_us(self) -> int:
        """Return the wall time: microseconds since 1970 UTC. It may jump; never measure with it."""
        ...

    @abstractmethod
    def monotonic_s(self) -> float:
        """Return the seconds since some moment; they never go back."""
        ...

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Wait at least this long; return at once for zero or less."""
        ...


class RealClock(Clock):
    """Clock of this machine."""

    def now_us(self) -> int:
        """Return the wall time: microseconds since 1970 UTC."""
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        """Return the seconds since the machine started; steady while the wall clock jumps."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep. Signal handlers still run meanwhile."""
        if seconds > 0:
            time.sleep(seconds)


REAL_CLOCK: Clock = RealClock()


class Steps:
    """Seconds of each step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic_s()
        self.seconds: dict[str, float] = {}

    def end_step(self, name: str) -> None:
        """End a step and begin the next one."""
        now = self._clock.monotonic_s()
        self.seconds[name] = round(now - self._since, 4)
        self._since = now
