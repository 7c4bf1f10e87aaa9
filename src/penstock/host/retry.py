"""Retries, with bounded waits.

The layer that raises an error says whether to retry (`PenstockError.retry`,
`errors.safe_to_retry`); this module says how often, and how long to wait in between.
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

    The jitter spreads the retries of many workers that lost the same server at the same moment.

    Attributes:
        first_s: The first wait, in seconds.
        longest_s: The longest wait, in seconds.
        attempts: Number of all tries; at least 1.
        jitter: Share of a wait that may be cut off, 0 to 1.
    """

    first_s: float = 0.2
    longest_s: float = 30.0
    attempts: int = 10
    jitter: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings that never try, or wait for ever."""
        if self.attempts < 1 or self.first_s < 0 or self.longest_s < self.first_s:
            raise ValueError(f"not a usable back-off: {self}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter outside 0..1: {self.jitter}")

    def waits(self, rng: random.Random | None = None) -> Iterator[float]:
        """Yield the seconds to wait between attempts: attempts - 1 values."""
        rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        wait_s = self.first_s
        for _ in range(self.attempts - 1):
            yield wait_s * (1 - self.jitter * rng.random())
            wait_s = min(wait_s * 2, self.longest_s)


DEFAULT_BACKOFF = Backoff()
# For a server that was reachable before: work waits for it, so its return must be noticed soon.
# Still bounded: four days and more.
RECONNECT = Backoff(first_s=0.2, longest_s=5.0, attempts=100_000)


def is_outage(error: BaseException) -> bool:
    """Return whether a server is unreachable and may come back. A server that refuses us is
    reachable.
    """
    return isinstance(error, ConnectFailed | ConnectionLost) and error.retry == "backoff"


class Patience:
    """Waits before the next try, by the kind of error."""

    def __init__(self, backoff: Backoff = DEFAULT_BACKOFF, away: Backoff = RECONNECT) -> None:
        """Begin. backoff: for all errors except that a server is away, for which `away` is."""
        self._backoffs = (backoff, away)
        self.note_progress()

    def note_progress(self) -> None:
        """Note progress of the work: the next failure counts as the first."""
        self._waits, self._away = (backoff.waits() for backoff in self._backoffs)

    def wait_s(self, error: BaseException) -> float | None:
        """Return the seconds to wait; None if it was tried often enough.

        The waits for a server that accepts no connection have no practical limit. A server that
        breaks connections is different: our statements may be the reason.
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

    Args:
        work: The work.
        backoff: The waits.
        may_retry: Returns whether an error permits a retry.
        on_wait: Gets the error, the number of the failed attempt (from 1) and the seconds until the
            next: the place for a log line.
        sleep: May be an Event's wait, so that a stop is obeyed; if it returns true, the error is
            raised at once.

    Returns the result of work, or raises its last error.
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
