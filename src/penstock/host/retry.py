"""Retries, with bounded waits.

What may be tried again is answered by the layer that knows (`PenstockError.retry`,
`errors.safe_to_retry`); here is only how often and how long to wait in between.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from penstock.host.errors import ConnectFailed, ConnectionLost, safe_to_retry

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that double from first_s up to longest_s, each shortened at random by up to jitter.

    attempts: how often the work is tried in all; at least 1. The jitter keeps many workers that
    lost the same server from coming back at the same instant.
    """

    first_s: float = 0.2
    longest_s: float = 30.0
    attempts: int = 10
    jitter: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings that would never try, or wait for ever."""
        if self.attempts < 1 or self.first_s < 0 or self.longest_s < self.first_s:
            raise ValueError(f"not a usable back-off: {self}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter outside 0..1: {self.jitter}")

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        """The seconds to wait between attempts: attempts - 1 values."""
        rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        wait_s = self.first_s
        for _ in range(self.attempts - 1):
            yield wait_s * (1 - self.jitter * rng.random())
            wait_s = min(wait_s * 2, self.longest_s)


DEFAULT_BACKOFF = Backoff()
# For a server that was there before: work waits for it, so it is to be found soon after it is back.
# Bounded all the same: four days and more.
RECONNECT = Backoff(first_s=0.2, longest_s=5.0, attempts=100_000)


def is_outage(error: BaseException) -> bool:
    """Whether a server is away and may come back by itself; one that refuses us is not."""
    return isinstance(error, ConnectFailed | ConnectionLost) and error.retry == "backoff"


class Patience:
    """How long to wait before the next try, by what went wrong."""

    def __init__(self, backoff: Backoff = DEFAULT_BACKOFF, away: Backoff = RECONNECT) -> None:
        """backoff: for all but a server that is away."""
        self._backoffs = (backoff, away)
        self.worked()

    def worked(self) -> None:
        """The work made progress: the next failure counts as the first."""
        self._waits, self._away = (backoff.waits() for backoff in self._backoffs)

    def wait_s(self, error: BaseException) -> float | None:
        """The seconds to wait; None when it was tried often enough.

        Only a server that accepts no connection is waited for without limit: one that breaks
        connections may do so because of our statements.
        """
        waited_for = isinstance(error, ConnectFailed) and is_outage(error)
        return next(self._away if waited_for else self._waits, None)


def retrying(
    work: Callable[[], T],
    *,
    backoff: Backoff = DEFAULT_BACKOFF,
    may_retry: Callable[[BaseException], bool] = safe_to_retry,
    on_wait: Callable[[BaseException, int, float], None] | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Call work until it returns, fails for good, or was tried backoff.attempts times.

    on_wait is called with the error, the number of the attempt that failed (from 1) and the seconds
    that follow: the place for a log line. sleep may be an Event's wait, so that a stop is obeyed;
    when it returns true the error is raised at once. Raises what work raised last.
    """
    attempt = 0
    waits = backoff.waits()
    while True:
        attempt += 1
        try:
            return work()
        except Exception as error:
            wait_s = next(waits, None)
            if wait_s is None or not may_retry(error):
                raise
            if on_wait is not None:
                on_wait(error, attempt, wait_s)
            if sleep(wait_s):
                raise
