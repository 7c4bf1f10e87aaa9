"""Run work beside the extraction that must never stop it: progress rows, and the action.

Each runs on its own thread, because a target or a disk that hangs must not delay changes on their
way into the log. Calls that fail now are kept and retried. The segments themselves are
authoritative.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import structlog

from penstock.host.supervised import SupervisedThread

logger = structlog.get_logger()
RETRY_S = 5.0
CLOSE_WAIT_S = 10.0
PENDING_MAX = 10_000


class BackgroundTasks:
    """Calls that a thread makes in order, each until it succeeds.

    Attributes:
        error: reason why the first waiting call fails; empty if none fails.
        pending_count: number of waiting calls.
        dropped_count: number of calls that were dropped because too many waited.
    """

    def __init__(self, name: str) -> None:
        """Keep the settings; the thread starts when the with block is entered."""
        self.error = ""
        self.dropped_count = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = SupervisedThread(f"penstock-{name}", self._work, wait=self._pause)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give waiting calls another CLOSE_WAIT_S, then end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(CLOSE_WAIT_S)
        if self._waiting:
            logger.warning("progress was not recorded", pending=len(self._waiting))

    @property
    def pending_count(self) -> int:
        """Number of calls that were not made yet."""
        return len(self._waiting)

    def add(self, call: Callable[[], None]) -> None:
        """Make this call as soon as the earlier ones have succeeded."""
        with self._changed:
            if len(self._waiting) >= PENDING_MAX:
                self._waiting.popleft()
                self.dropped_count += 1
            self._waiting.append(call)
            self._changed.notify_all()

    def _pause(self, seconds: float) -> bool:
        with self._changed:
            self._changed.wait(seconds)
            return self._stopping

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if not self._waiting:
                    return
                call = self._waiting[0]
            try:
                call()
            except Exception as error:
                # Any exception: the recorder is another part's code, and extraction must go on.
                if not self.error:
                    logger.warning("progress could not be recorded", error=str(error))
                self.error = str(error)
                with self._changed:
                    if self._stopping:
                        return
                    self._changed.wait(RETRY_S)
                continue
            self.error = ""
            with self._changed:
                if self._waiting and self._waiting[0] is call:
                    self._waiting.popleft()


class Poll:
    """Question that a thread repeats; `value` is the last answer.

    If an answer raises, the value stays, and `error` has the reason.
    """

    def __init__(self, ask: Callable[[], Any], *, every_s: float, first: Any, name: str) -> None:
        """Keep the settings; the thread starts when the with block is entered."""
        self.value = first
        self.error = ""
        self._ask = ask
        self._every_s = every_s
        self._stopping = threading.Event()
        self._thread = SupervisedThread(f"penstock-{name}", self._work, wait=self._stopping.wait)

    def __enter__(self) -> Self:
        """Start asking."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop asking; wait at most CLOSE_WAIT_S for an answer that hangs."""
        self._stopping.set()
        self._thread.join(CLOSE_WAIT_S)

    def _work(self) -> None:
        while True:
            try:
                self.value = self._ask()
                self.error = ""
            except Exception as error:
                if not self.error:
                    logger.warning("could not be read", what=self._thread.name, error=str(error))
                self.error = str(error)
            if self._stopping.wait(self._every_s):
                return
