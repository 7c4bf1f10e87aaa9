"""A thread that looks at one pipeline: often while a page of it is open, seldom otherwise."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import structlog

from penstock.control.pipeline.outages import Outage
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.supervised import SupervisedThread
from penstock.host.waits import Waits
from penstock.model import PenstockError
from penstock.ports.config import Config

logger = structlog.get_logger()
WATCHED_INTERVAL_S = 1.0
IDLE_INTERVAL_S = 5.0
WATCHED_FOR_S = 30.0  # after the last request for this pipeline
HISTORY_S = 900.0
"""Age up to which the plots' points are kept, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Reason why something could not be read at the last look: an error as `--json` prints it."""

    code: str
    error: str
    hint: str
    since_us: int = 0


def trouble_of(error: PenstockError) -> Trouble:
    """Return the trouble to show for an error."""
    shown = error.as_dict()
    return Trouble(code=str(shown["code"]), error=str(shown["error"]), hint=error.hint)


def trouble_of_outage(outage: Outage) -> Trouble:
    """Return the trouble to show for a server that cannot be asked."""
    said = f"{outage.words}: {outage.error}"
    return Trouble(code=outage.code, error=said, hint=outage.hint, since_us=outage.since_us)


def troubles_of_waits(waits: Waits | None) -> list[Trouble]:
    """Return the sessions that a process waits for at the source, as they are shown."""
    if waits is None:
        return []
    return [
        Trouble(
            code="",
            error=f"{waits.what} waits for {one.what}",
            hint=one.command,
            since_us=waits.since_us,
        )
        for one in waits.holders
    ]


class AnyReading(Protocol):
    """Attributes that every kind of reading has. Readings are dataclasses."""

    @property
    def number(self) -> int:
        """Number of the look, from 1; 0 before the first."""
        ...

    @property
    def at_us(self) -> int:
        """Time of the look, microseconds since 1970 UTC."""
        ...

    @property
    def at_s(self) -> float:
        """Time of the look, monotonic seconds."""
        ...

    @property
    def status_at_us(self) -> int:
        """Time at which the servers were last read; 0: never."""
        ...

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """Reasons why something could not be read."""
        ...


R = TypeVar("R", bound=AnyReading)


class Watch(Generic[R]):
    """Watch of one pipeline. Any thread may read `latest`, which is replaced as a whole."""

    def __init__(self, config: Config, empty: R, *, clock: Clock = REAL_CLOCK) -> None:
        """Prepare; nothing is read before start()."""
        self.config = config
        self.latest: R = empty
        self._clock = clock
        self._wanted_at_s = float("-inf")
        self._wake = threading.Event()
        self._ended = False
        self._is_due = False
        self._thread = SupervisedThread("web-watch", self._run, wait=self._pause)

    def look(self) -> None:
        """Read everything once; `latest` is new afterwards."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Close what is open; called on the watching thread."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def want(self) -> bool:
        """Look often for a while, because a page is open.

        Returns whether the watch was idle until now, so that `latest` is old and a newer one will
        follow.
        """
        idle = not self._is_watched
        self._wanted_at_s = self._clock.monotonic_s()
        if idle:
            self._wake.set()
        return (idle or self._is_due) and self._thread.is_alive()

    def look_now(self) -> None:
        """Look at once, because something was done; requests that arrive before that wait."""
        self._is_due = True
        self._wake.set()

    def close(self) -> None:
        """End; does not wait for a server that hangs."""
        self._ended = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def _pause(self, seconds: float) -> bool:
        self._wake.wait(seconds)
        return self._ended

    def _run(self) -> None:
        while not self._ended:
            self._wake.clear()
            began_s = self._clock.monotonic_s()
            self._look_safely()
            self._is_due = self._wake.is_set()
            took_s = self._clock.monotonic_s() - began_s
            self._wake.wait(self.interval_s(took_s))
        self.let_go()

    def interval_s(self, took_s: float) -> float:
        """Return how long to wait after a look, which took so long."""
        del took_s
        return WATCHED_INTERVAL_S if self._is_watched else IDLE_INTERVAL_S

    @property
    def _is_watched(self) -> bool:
        return self._clock.monotonic_s() - self._wanted_at_s < WATCHED_FOR_S

    def _look_safely(self) -> None:
        """Look, and show a defect as trouble: a page that no longer changes would mislead."""
        try:
            self.look()
        except Exception as error:
            logger.error("pipeline not readable", exc_info=error)
            before: Any = self.latest
            self.latest = replace(
                before,
                number=before.number + 1,
                at_us=self._clock.now_us(),
                at_s=self._clock.monotonic_s(),
                troubles=(
                    Trouble(
                        code="PS99",
                        error=f"unexpected {type(error).__name__} while reading",
                        hint="This is a bug in penstock: report what --verbose prints.",
                    ),
                ),
            )
