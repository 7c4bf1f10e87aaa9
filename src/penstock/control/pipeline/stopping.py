"""Ending a process: the first SIGTERM or SIGINT ends it in order, the second at once.

Not here: the meaning of "in order": the extractor ends at a flush point, the loader at a batch.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from penstock.host.supervised import raise_failure

HURRIED_EXIT_CODE = 130


class StopRequest:
    """Request for an end. Any thread may make it and look."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._count = 0

    def __call__(self) -> bool:
        """Return whether to end now, in the form that loops take."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask for an end in order."""
        self._asked.set()

    def wait(self, seconds: float) -> bool:
        """Sleep, at most `seconds`; return True as soon as an end is requested."""
        return self._asked.wait(seconds)

    @property
    def is_hurried(self) -> bool:
        """True if it was requested twice by signal."""
        return self._count > 1

    def note_signal(self) -> None:
        """Count a signal and ask for an end."""
        self._count += 1
        self._asked.set()


@contextmanager
def stop_on_signals(stop: StopRequest, *, hurry: bool = True) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `stop` while the block runs.

    Raises the error of a thread that has ended the process (`host.supervised`).

    hurry: the second signal ends the process at once, with exit code 130: everything on disk is
    safe at any moment, so that costs only the work since the last flush point or batch.
    """

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.note_signal()
        if hurry and stop.is_hurried:
            os._exit(HURRIED_EXIT_CODE)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, on_signal) for number in numbers]
    try:
        yield
        raise_failure()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
