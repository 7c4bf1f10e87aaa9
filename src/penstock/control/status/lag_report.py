"""Lag of a pipeline for programs, and the wait until present commits are applied.

Not here: computing the lag (`lag.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from penstock.control.status.lag import Lag
from penstock.control.status.status import Status, StatusReader
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.verify import VERIFY_PART, verifier_of

LOOK_INTERVAL_S = 0.5


class NotAppliedInTime(PenstockError):
    """Changes of the source are not in the target after the time that was given."""

    code = "CT85"
    retry = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagReport:
    """Lag of a pipeline, or the reason why it is not known.

    Attributes:
        status: The status that the lag is part of.
    """

    status: Status

    @property
    def lag(self) -> Lag | None:
        """Lag with positions and bytes; None if a server could not be asked."""
        return self.status.lag

    @property
    def seconds(self) -> float | None:
        """Age of the oldest commit that is not visible in the target; 0 if there is none.

        Returns None if it is not known.
        """
        return self.lag.seconds if self.lag is not None else None

    @property
    def at_most(self) -> bool:
        """Return whether the lag can be less: the latest writes may not be of a captured table."""
        return self.lag is not None and self.lag.at_most

    @property
    def unknown(self) -> str:
        """Reason why `seconds` is None; empty if it is known."""
        return self.status.why_no_lag if self.seconds is None else ""

    @property
    def rows(self) -> int | None:
        """Row changes in the change log that are not applied; None if that is not known."""
        return self.lag.rows if self.lag is not None else None

    def __str__(self) -> str:
        return self.status.lag_words

    def as_dict(self) -> dict[str, Any]:
        """Return the lag as `penstock lag --json` prints it."""
        return self.status.lag_dict()


def wait_until_applied(
    config: Config,
    *,
    timeout_s: float,
    check: Callable[[], object] = lambda: None,
    clock: Clock = REAL_CLOCK,
) -> Status:
    """Wait until everything that was committed at the source before the call is in the target.

    The lag is an age by the source's clock: once it is less than the time since the call, every
    commit before the call is visible. So the wait ends while the source is written, too. Without a
    target it ends when the commits are in the change log. The source gets a mark in its log first
    where an idle one would not say otherwise that there is nothing more.

    Args:
        config: The pipeline; another process may run it.
        timeout_s: Longest wait in seconds.
        check: Called before each look; raises what ends the wait.
        clock: Measures the time.

    Raises:
        NotAppliedInTime: The time is over.
        ConnectFailed: The source cannot be reached at the beginning.
    """
    began_s = clock.monotonic_s()
    for one in config.inputs or (config,):
        if VERIFY_PART in one.source.engine.parts:
            verifier_of(one.source.url).nudge(one.source.url)
    with closing(StatusReader(config, clock=clock)) as reader:
        while True:
            check()
            waited_s = clock.monotonic_s() - began_s
            status = reader.read()
            seconds = LagReport(status=status).seconds
            if seconds is not None and seconds <= waited_s:
                return status
            if waited_s >= timeout_s:
                raise _late(status, timeout_s)
            clock.sleep(LOOK_INTERVAL_S)


def _late(status: Status, timeout_s: float) -> NotAppliedInTime:
    place = "target" if status.has_target else "change log"
    running = ", ".join(status.running) or "no process"
    return NotAppliedInTime(
        f"the {place} does not have all earlier commits of the source after {timeout_s:g} s; "
        f"lag: {status.lag_words}; running: {running}",
        hint="See what holds it up: penstock status FILE"
        if status.running
        else "Start the pipeline: penstock run FILE",
        lag_seconds=status.lag.seconds if status.lag is not None else None,
    )
