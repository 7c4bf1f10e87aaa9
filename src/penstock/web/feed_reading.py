"""Reading of a pipeline with [stage] for its page: from the staging database and the target."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.control.doctor.past_errors import PastError, past_errors
from penstock.control.feeds.feed_show import Bar, BarMeter
from penstock.control.feeds.feed_status import StageStatus, StageStatusReader
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.web.watching import HISTORY_S, Trouble, Watch, trouble_of, trouble_of_outage

LOOK_SHARE = 5  # a look takes a fifth of the time at most: tables may be large
PAUSE_MAX_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSample:
    """Point of the plots: lags of the target and of received changes, by schema."""

    at_s: float
    lags_s: Mapping[str, float | None] = field(default_factory=dict)
    received_lags_s: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReading:
    """State of a pipeline with [stage] at one moment; see `AnyReading`. bars: by schema, for
    schemas whose rows are known.
    """

    number: int
    at_us: int
    at_s: float
    status_at_us: int
    status: StageStatus | None
    troubles: tuple[Trouble, ...] = ()
    bars: Mapping[str, Bar] = field(default_factory=dict)
    errors: tuple[PastError, ...] = ()
    history: tuple[StageSample, ...] = ()


class StageWatch(Watch[StageReading]):
    """Watch of one pipeline with [stage]."""

    def __init__(self, config: Config, *, clock: Clock = REAL_CLOCK) -> None:
        """Prepare; nothing is read before start()."""
        empty = StageReading(number=0, at_us=0, at_s=0.0, status_at_us=0, status=None)
        super().__init__(config, empty, clock=clock)
        self._reader = StageStatusReader(config, clock=clock)
        self._meter = BarMeter()
        self._history: deque[StageSample] = deque()

    def interval_s(self, took_s: float) -> float:
        """Return the pause, longer after a slow look; see `Watch`."""
        return max(super().interval_s(took_s), min(PAUSE_MAX_S, (LOOK_SHARE - 1) * took_s))

    def let_go(self) -> None:
        """Close the servers' connections; see `Watch`."""
        self._reader.close()

    def look(self) -> None:
        """Read everything once; see `Watch`."""
        before = self.latest
        now_us, now_s = self._clock.now_us(), self._clock.monotonic_s()
        status = self._reader.read()
        troubles = [trouble_of_outage(one) for one in status.outages]
        errors = before.errors
        try:
            errors = past_errors(self.config)
        except PenstockError as error:
            troubles.append(trouble_of(error))
        self._remember(now_s, status)
        self.latest = StageReading(
            number=before.number + 1,
            at_us=now_us,
            at_s=now_s,
            status_at_us=before.status_at_us if status.schemas is None else now_us,
            status=status,
            troubles=tuple(troubles),
            bars=self._meter.add(now_s, status.schemas or ()),
            errors=errors,
            history=tuple(self._history),
        )

    def _remember(self, now_s: float, status: StageStatus) -> None:
        schemas = status.schemas or ()
        self._history.append(
            StageSample(
                at_s=now_s,
                lags_s={schema.name: schema.lag_s for schema in schemas},
                received_lags_s={schema.name: schema.proposed_lag_s for schema in schemas},
            )
        )
        while now_s - self._history[0].at_s > HISTORY_S:
            self._history.popleft()


def state_of(reading: StageReading) -> str:
    """Return the pipeline's state in a word or two."""
    status = reading.status
    if status is None:
        return "not known" if reading.troubles else "being read"
    if status.outages:
        return " and ".join(one.words for one in status.outages)
    schemas = status.schemas or ()
    if not schemas:
        return "nothing received yet"
    if any(one.note.problem is not None and not one.problem_is_over for one in schemas):
        return "trying again"
    if not all(one.holder for one in schemas):
        return "no instance works"
    behind = any(bar.is_far_behind for bar in reading.bars.values())
    return "catching up" if behind else "applying"


def rates_of(reading: StageReading) -> tuple[float | None, float | None]:
    """Return the rows staged and applied per second in all schemas; None if not known."""
    bars = list(reading.bars.values())
    if reading.status is None or len(bars) != len(reading.status.schemas or ()):
        return None, None
    staged = [bar.staged_per_s for bar in bars if bar.staged_per_s is not None]
    applied = [bar.applied_per_s for bar in bars if bar.applied_per_s is not None]
    if not bars or len(staged) != len(bars):
        return None, None
    return sum(staged), sum(applied)


def as_dict(reading: StageReading, config: Config) -> dict[str, Any]:
    """Return a reading as the JSON of `/api/pipelines/NAME`. Times are UTC microseconds."""
    return {
        "name": config.pipeline.name,
        "state": state_of(reading),
        "read_at_us": reading.at_us,
        "status_read_at_us": reading.status_at_us,
        "troubles": msgspec.to_builtins(reading.troubles),
        "status": reading.status.as_dict() if reading.status is not None else None,
        "bars": {name: bar.as_dict() for name, bar in reading.bars.items()},
        "errors": [error.as_dict() for error in reading.errors],
    }
