"""Retries of penstock: how often, and how long."""

from __future__ import annotations

import random

import pytest

from penstock.host.errors import ConnectionLost, StatementFailed
from penstock.host.retry import Backoff, retrying


class Flaky:
    """Work that fails a number of times before it succeeds."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.calls = 0
        self.failures = failures
        self.error = error

    def __call__(self) -> int:
        """Fail or return the number of the call."""
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return self.calls


def test_work_is_repeated_until_it_succeeds() -> None:
    """The caller sees only the result; each wait is reported."""
    waits: list[tuple[int, float]] = []
    slept: list[float] = []
    work = Flaky(3, ConnectionLost("gone"))
    result = retrying(
        work,
        on_wait=lambda _error, attempt, wait_s: waits.append((attempt, wait_s)),
        sleep=slept.append,
    )
    assert result == 4
    assert [attempt for attempt, _ in waits] == [1, 2, 3]
    assert slept == [wait_s for _, wait_s in waits]


def test_what_cannot_help_is_not_repeated() -> None:
    """An error that needs operator action is raised at once."""
    work = Flaky(1, StatementFailed("no"))
    with pytest.raises(StatementFailed):
        retrying(work, sleep=lambda _s: None)
    assert work.calls == 1


def test_attempts_are_bounded() -> None:
    """The last error is raised after the last attempt."""
    work = Flaky(99, ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        retrying(work, backoff=Backoff(attempts=4), sleep=lambda _s: None)
    assert work.calls == 4


def test_a_stop_ends_the_waiting() -> None:
    """A sleep that reports an interruption raises instead of retrying."""
    work = Flaky(99, ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        retrying(work, sleep=lambda _s: True)
    assert work.calls == 1


def test_waits_double_up_to_a_bound() -> None:
    """Waits are never longer than longest_s, never shorter than the jitter allows."""
    waits = list(Backoff(first_s=1, longest_s=5, attempts=6, jitter=0).waits())
    assert waits == [1, 2, 4, 5, 5]
    jittered = list(Backoff(first_s=1, longest_s=5, attempts=6).waits(random.Random(1)))
    assert all(w / 2 <= j <= w for w, j in zip(waits, jittered, strict=True))


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"longest_s": 0.1}, {"jitter": 2}])
def test_senseless_settings_are_refused(bad: dict[str, float]) -> None:
    """A back-off without attempts is a mistake in the code."""
    with pytest.raises(ValueError, match=r"usable|jitter"):
        Backoff(**bad)  # type: ignore[arg-type]
