"""Standstills of this process or of its whole machine, and the stream after them.

A server that sends to a machine that stands still tries again later and later: after a pause of a
minute its next attempt may be another minute away. A new connection does not wait for that attempt.
So after a standstill the server is asked for an answer, once all that had arrived is read. If none
comes, the connection is given up.
"""

from __future__ import annotations

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError

TICK_S = 1.0
LATE_S = 2.0  # after a shorter standstill the server's next attempt is not later than this
ANSWER_S = 3.0


class ServerSilent(PenstockError):
    """The connection is open but the server sends nothing, not even answers."""

    code = "PG73"
    retry = "backoff"


class StandstillWatch:
    """Detector of standstills, and of servers that do not answer after one.

    A machine that stood still may have stopped either clock: the monotonic one of a laptop that
    slept, the other one of a virtual machine that was moved. So both are compared.
    """

    def __init__(self, clock: Clock = REAL_CLOCK, *, tick_s: float = TICK_S) -> None:
        """Begin. tick_s: interval of the calls of `look`."""
        self._clock = clock
        self._tick_s = tick_s
        self._looked = self._now()
        self._has_stood_still = False
        self._asked_s: float | None = None

    def _now(self) -> tuple[float, float]:
        return self._clock.monotonic_s(), self._clock.now_us() / 1e6

    def look(self, heard_s: float, *, is_reading: bool) -> bool:
        """Return whether to ask the server for an answer now.

        Args:
            heard_s: Monotonic time at which bytes arrived last.
            is_reading: False if bytes may have arrived that were not read.

        Raises:
            ServerSilent: The server was asked after a standstill and has not answered.
        """
        before, self._looked = self._looked, self._now()
        now_s = self._looked[0]
        passed = max(now - then for now, then in zip(self._looked, before, strict=True))
        if passed - self._tick_s >= LATE_S:
            self._has_stood_still, self._asked_s = True, None
            return False  # bytes that had arrived before must be read first: they do not answer
        if not self._has_stood_still:
            return False
        if not is_reading:
            self._asked_s = None
        elif self._asked_s is None:
            if now_s - heard_s >= self._tick_s:
                self._asked_s = now_s
                return True
        elif heard_s > self._asked_s:
            self._has_stood_still, self._asked_s = False, None
        elif now_s - self._asked_s >= ANSWER_S:
            raise ServerSilent(
                f"the server has sent nothing for {now_s - heard_s:.0f} s, since this process "
                "stood still",
                hint="Do nothing: the stream is opened again automatically.",
            )
        return False
