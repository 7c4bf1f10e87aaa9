"""Requests to a process: the words RUN, PAUSE and STOP in a table, and signals.

Both processes obey the word in `wirekite.wirekite_action`. The first SIGTERM or SIGINT ends a
process in order, the second at once. The extractor ends in order at a flush point, the loader after
a batch.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType

import structlog

from penstock.extract.report import ControlGate
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import ConnectFailed, ConnectionLost, StatementInterrupted
from penstock.host.supervised import end_on_failure
from penstock.ports.config import Config
from penstock.ports.progress import Progress, open_progress

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
        """Return whether the end was requested by a second signal."""
        return self._count > 1

    def note_signal(self) -> None:
        """Count a signal and ask for an end."""
        self._count += 1
        self._asked.set()


@contextmanager
def stop_on_signals(stop: StopRequest, *, hurry: bool = True) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `stop` while the block runs.

    Asks for the end if background work fails, too, and raises its error (`host.supervised`).
    Python gives signals to the main thread only: in another one they stay as they are.

    hurry: the second signal ends the process at once, with exit code 130: everything on disk is
    safe at any moment, so that costs only the work since the last flush point or batch.
    """

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.note_signal()
        if hurry and stop.is_hurried:
            os._exit(HURRIED_EXIT_CODE)

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = [signal.signal(number, on_signal) for number in numbers]
    try:
        with end_on_failure(stop.ask):
            yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


logger = structlog.get_logger()
CHECK_INTERVAL_S = 5.0  # Wirekite's guide: PAUSE sleeps 5 s between checks


def give_action(config: Config, word: str) -> None:
    """Write RUN, PAUSE or STOP into the target: both processes obey within CHECK_INTERVAL_S.

    Raises ActionUnknown, the errors of the target's connection, and StatementFailed if the
    pipeline has not created its tables yet.
    """
    with closing(open_progress(config.target.url, application_name="penstock action")) as target:
        target.set_action(word)


class ActionWatch(ControlGate):
    """Reader of the action, on a connection of its own, at most every `interval_s`.

    If the target cannot be reached, the last known word holds: an unreadable word must not
    stop an extraction. Used by one thread.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        interval_s: float = CHECK_INTERVAL_S,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the target's URL. The first look connects."""
        self._url = url
        self._name = name
        self._interval_s = interval_s
        self._clock = clock
        self._connection: Progress | None = None
        self._looked_at_s: float | None = None
        self._word = "RUN"

    def word(self, *, at_once: bool = False) -> str:
        """Return the action: RUN, PAUSE or STOP. at_once: look even if the last look was just now.

        Raises ActionUnknown for any other word in the table.
        """
        now = self._clock.monotonic_s()
        fresh = self._looked_at_s is not None and now - self._looked_at_s < self._interval_s
        if at_once or not fresh:
            self._looked_at_s = now
            self._look()
        return self._word

    def _look(self) -> None:
        try:
            if self._connection is None or self._connection.is_closed:
                self.close()
                self._connection = open_progress(self._url, application_name=self._name)
            word = self._connection.read_action()
        except (ConnectFailed, ConnectionLost, StatementInterrupted) as error:
            logger.warning("action not readable", error=str(error), last_known=self._word)
            self.close()
            return
        if word != self._word:
            logger.info("action changed", before=self._word, now=word)
        self._word = word

    def obey(self, stop: StopRequest, *, on_pause: Callable[[], None] | None = None) -> bool:
        """Sleep while the word is PAUSE; return True if work should end (STOP, or `stop` was
        asked).

        on_pause: called once per check while paused, to report it or keep a connection alive.
        """
        while True:
            word = self.word(at_once=self._word == "PAUSE")
            if word == "STOP":
                stop.ask()
            if stop() or word == "RUN":
                return stop()
            if on_pause is not None:
                on_pause()
            stop.wait(CHECK_INTERVAL_S)

    def close(self) -> None:
        """Close the connection; the next look opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
