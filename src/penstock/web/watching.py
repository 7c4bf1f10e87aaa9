"""A thread that looks at one pipeline: often while somebody watches, seldom otherwise."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import structlog

from penstock.control.outages import Outage
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.waits import Waits

logger = structlog.get_logger()
WATCHED_INTERVAL_S = 1.0
IDLE_INTERVAL_S = 5.0
WATCHED_FOR_S = 30.0  # after the last request for this pipeline
HISTORY_S = 900.0
"""How far back the plots' points are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why something could not be read just now: an error as `--json` prints it."""

    code: str
    error: str
    hint: str
    since_us: int = 0


def trouble_of(error: PenstockError) -> Trouble:
    """An error as it is shown."""
    shown = error.as_dict()
    return Trouble(code=str(shown["code"]), error=str(shown["error"]), hint=error.hint)


def trouble_of_outage(outage: Outage) -> Trouble:
    """A server that cannot be asked, as it is shown."""
    said = f"{outage.words}: {outage.error}"
    return Trouble(code=outage.code, error=said, hint=outage.hint, since_us=outage.since_us)


def troubles_of_waits(waits: Waits | None) -> list[Trouble]:
    """Return what a process waits for at the source, as it is shown."""
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
    """What readings of every kind have. number: of the look, from 1; 0: before the first.

    They are dataclasses.
    """

    @property
    def number(self) -> int:
        """See above."""
        ...

    @property
    def at_us(self) -> int:
        """When it was read, microseconds since 1970 UTC."""
        ...

    @property
    def at_s(self) -> float:
        """The same, monotonic."""
        ...

    @property
    def status_at_us(self) -> int:
        """When the servers were last read; 0: never."""
        ...

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """What could not be read."""
        ...


R = TypeVar("R", bound=AnyReading)


class Watch(Generic[R]):
    """Looks at one pipeline. `latest` may be read by any thread; it is replaced whole."""

    def __init__(self, config: Config, empty: R, *, clock: Clock = REAL_CLOCK) -> None:
        """Nothing is read before start()."""
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
        """Close what is open; called on the thread that looks."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def want(self) -> bool:
        """Somebody watches: look often for a while. Returns whether nobody did until now, so that
        `latest` is old and a newer one is on its way.
        """
        idle = not self._is_watched
        self._wanted_at_s = self._clock.monotonic_s()
        if idle:
            self._wake.set()
        return (idle or self._is_due) and self._thread.is_alive()

    def look_now(self) -> None:
        """Something was done: look at once, and requests that come before that wait."""
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
        """How long to wait behind a look, which took so long."""
        del took_s
        return WATCHED_INTERVAL_S if self._is_watched else IDLE_INTERVAL_S

    @property
    def _is_watched(self) -> bool:
        return self._clock.monotonic_s() - self._wanted_at_s < WATCHED_FOR_S

    def _look_safely(self) -> None:
        """A defect is shown like any other trouble: a page that no longer changes would mislead."""
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
