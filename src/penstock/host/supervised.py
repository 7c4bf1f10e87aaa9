"""Threads whose errors are seen: shown, counted, tried again, and in the end an exit code.

Python lets a thread that dies leave the process running as if it worked. Every thread of penstock
is a `SupervisedThread`, unless its errors are handled elsewhere (`tests/unit/test_supervised.py`
lists those). Not here: retries of expected errors, which the work itself does (`retry.py`).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.retry import Backoff
from penstock.model import PenstockError

logger = structlog.get_logger(__name__)

TRIES = Backoff(first_s=0.5, longest_s=30.0, attempts=8)
"""Waits for work that fails again and again: about a minute in all."""
ONCE = Backoff(attempts=1)
"""Setting for work that cannot be repeated in the same process."""
STEADY_S = 60.0
"""After so many seconds of work its failures are counted from the beginning again."""
END_WITHIN_S = 60.0
EXIT_CODE = 1


class ThreadFailed(PenstockError):
    """Background work of penstock failed with an unexpected error."""

    code = "HS72"
    retry = "backoff"


class SupervisedThread:
    """Thread that calls `work` until it returns, and again after an error.

    Attributes:
        name: Shown with its errors.
        failures: Number of failures of the work.
        error: The error that ended the thread, for its owner.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        wait: Callable[[float], object],
        on_error: Callable[[PenstockError, float], object] | None = None,
        gives_up: bool = False,
        tries: Backoff = TRIES,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Make the thread; `start` begins it.

        Args:
            name: Name of the thread.
            work: Returns when its end was requested. It may be called again after an error.
            wait: Waits so many seconds before the next try; returns true if the end was requested.
            on_error: Shows an error to operators. Called with the error and the seconds until the
                next try.
            gives_up: If true, a PenstockError ends the thread; the owner reads `error`, or calls
                `check`. Otherwise it is tried again like any other error.
            tries: Number of tries, and the waits between them, before the process is ended.
            clock: Measures how long the work went on.
        """
        self.name = name
        self.failures = 0
        self.error: PenstockError | None = None
        self._work, self._wait, self._on_error = work, wait, on_error
        self._gives_up, self._tries, self._clock = gives_up, tries, clock
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin the work."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most so many seconds. A thread that was not started has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def is_alive(self) -> bool:
        """Return whether it works, or waits to try again."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise the error that ended the thread."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        waits = self._tries.waits()
        while True:
            began_s = self._clock.monotonic_s()
            try:
                self._work()
                return
            except BaseException as error:  # Python forgets SystemExit of a thread
                failure = error
            if self._gives_up and isinstance(failure, PenstockError):
                self.error = failure
                return
            if self._clock.monotonic_s() - began_s >= STEADY_S:
                waits = self._tries.waits()
            if not self._is_tried_again(failure, next(waits, None)):
                return

    def _is_tried_again(self, failure: BaseException, wait_s: float | None) -> bool:
        """Show a failure and wait; return whether to try again."""
        self.failures += 1
        error = failure if isinstance(failure, PenstockError) else self._wrap(failure)
        logger.error(
            "background work failed",
            thread=self.name,
            failures=self.failures,
            code=error.code,
            wait_s=wait_s,
            exc_info=failure,
        )
        if self._on_error is not None:
            try:
                self._on_error(error, wait_s or 0.0)
            except Exception as unseen:
                logger.error("error not shown", thread=self.name, exc_info=unseen)
        if wait_s is None:
            self.error = error
            end_process(error)
            return False
        return not self._wait(wait_s)

    def _wrap(self, failure: BaseException) -> ThreadFailed:
        return ThreadFailed(
            f"unexpected {type(failure).__name__} in the thread {self.name}: {failure}",
            hint="This is a bug in penstock: report it with what the log of this process shows. "
            "penstock tries again, and ends if that does not help.",
            thread=self.name,
        )


class _Run:
    """Run in this process, which ends if background work fails."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.end = end
        self.error: PenstockError | None = None


_failures: list[PenstockError] = []
_runs: list[_Run] = []
_is_own_process = False


def own_process() -> None:
    """Let failed background work end this process, because it is a command of penstock.

    In a program of a user only the runs of pipelines end, each with the error.
    """
    global _is_own_process
    _is_own_process = True


def end_process(error: PenstockError) -> None:
    """Ask this process to end in order; `raise_failure` turns the error into its exit code.

    A process that has not ended after END_WITHIN_S is ended at once. A process that is not ours
    goes on: `end_on_failure` ends its runs.
    """
    if _is_own_process and not _failures:
        _failures.append(error)
        hurried = threading.Timer(END_WITHIN_S, os._exit, (EXIT_CODE,))
        hurried.daemon = True
        hurried.start()
        os.kill(os.getpid(), signal.SIGTERM)
    for run in tuple(_runs):
        if run.error is None:
            run.error = error
            run.end()


@contextmanager
def end_on_failure(end: Callable[[], object]) -> Iterator[None]:
    """Call `end` if background work fails while the block runs, and raise its error afterwards.

    end: called in any thread.
    """
    run = _Run(end)
    _runs.append(run)
    try:
        yield
    finally:
        _runs.remove(run)
    if run.error is not None:
        raise run.error


def raise_failure() -> None:
    """Raise the error for which `end_process` was called, if it was."""
    if _failures:
        raise _failures[0]
