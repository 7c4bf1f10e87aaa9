"""Order of the list of pipelines: what needs attention comes first. Pure: readings in, words out.

The order follows from classes, not from figures that change constantly: a row moves only if its
pipeline's state changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum

from penstock.control.doctor.past_errors import PastError
from penstock.model.words import count_words
from penstock.web.feed_reading import StageReading, StageSample
from penstock.web.feed_reading import state_of as stage_state_of
from penstock.web.reading import Reading, Sample, state_of

AnyReading = Reading | StageReading
AnySample = Sample | StageSample

STATE_KINDS = {
    "following changes": "good",
    "done": "good",
    "bulk load": "busy",
    "starting": "busy",
    "being read": "busy",
    "paused": "held",
    "stopping": "held",
    "stopped": "held",
    "not started": "held",
    "applying": "good",
    "catching up": "busy",
    "nothing received yet": "held",
    "no instance works": "held",
}  # any other state is a server that is away
BEHIND_S = 60.0
BEHIND_FOR_S = 30.0
OLD_S = 20.0
ENDED_WITHIN_S = 60.0


class Rank(IntEnum):
    """Class of a pipeline in the list; the lowest comes first."""

    ERROR = 0
    ENDED = 1
    BEHIND = 2
    HELD = 3
    BUSY = 4
    GOOD = 5

    @property
    def needs_attention(self) -> bool:
        """Return whether an operator should look at it."""
        return self <= Rank.BEHIND


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Place of a pipeline in the list. reason: why an operator should look; empty if not."""

    rank: Rank
    reason: str = ""


def assess(reading: AnyReading, *, now_us: int) -> Attention:
    """Return how urgently a pipeline needs attention.

    Args:
        reading: The newest reading.
        now_us: Time of the newest reading of any pipeline, microseconds since 1970.
    """
    state = _state(reading)
    kind = STATE_KINDS.get(state, "bad")
    if wrong := _what_is_wrong(reading):
        return Attention(rank=Rank.ERROR, reason=wrong)
    if kind == "bad":
        return Attention(rank=Rank.ERROR)
    age_s = (now_us - reading.at_us) / 1e6
    if reading.number and age_s > OLD_S:
        return Attention(rank=Rank.BEHIND, reason=f"not read for {coarse_age(age_s)}")
    if state == "stopped" and reading.errors and _is_after_last_sign(reading):
        return Attention(rank=Rank.ENDED, reason=reading.errors[0].error)
    if kind in ("good", "busy") and _is_behind(reading):
        return Attention(rank=Rank.BEHIND, reason="lag of more than a minute")
    return Attention(rank={"held": Rank.HELD, "busy": Rank.BUSY, "good": Rank.GOOD}[kind])


def _state(reading: AnyReading) -> str:
    return stage_state_of(reading) if isinstance(reading, StageReading) else state_of(reading)


def _what_is_wrong(reading: AnyReading) -> str:
    """Return the present error in one line; empty if there is none."""
    if reading.status is not None and reading.status.outages:
        return reading.status.outages[0].error
    if reading.troubles:
        return reading.troubles[0].error
    if isinstance(reading, StageReading):
        schemas = () if reading.status is None else reading.status.schemas or ()
        problems = [
            one for one in schemas if one.note.problem is not None and not one.problem_is_over
        ]
        return f"schema {problems[0].name} is not applied" if problems else ""
    tables = [item for item in reading.tables if item.error]
    if len(tables) == 1:
        return f"table {tables[0].table} {tables[0].state}"
    if tables:
        return f"{count_words(len(tables), 'table')} with errors"
    consumers = [line for line in reading.consumers if line.error]
    return f"consumer {consumers[0].name} {consumers[0].state}" if consumers else ""


def _is_after_last_sign(reading: AnyReading) -> bool:
    """Return whether the newest error is not older than the last progress of the processes."""
    if isinstance(reading, StageReading):
        return False
    loader_us = reading.loader.updated_us if reading.loader is not None else 0
    log_us = reading.status.log.end.commit_time_us if reading.status is not None else 0
    at = error_time(reading.errors[0])
    last_us = max(loader_us, log_us) - round(ENDED_WITHIN_S * 1e6)
    return at is not None and at.timestamp() * 1e6 >= last_us


def _is_behind(reading: AnyReading) -> bool:
    """Return whether every lag that was known in the last BEHIND_FOR_S is over BEHIND_S."""
    lags = [
        lag_of(sample) for sample in reading.history if reading.at_s - sample.at_s <= BEHIND_FOR_S
    ]
    known = [lag for lag in lags if lag is not None]
    return bool(known) and min(known) >= BEHIND_S


def lag_of(sample: AnySample) -> float | None:
    """Return a sample's lag in seconds, the largest of several schemas; None if unknown."""
    if isinstance(sample, Sample):
        return sample.lag_s
    known = [lag for lag in sample.lags_s.values() if lag is not None]
    return max(known, default=None)


def error_time(error: PastError) -> datetime | None:
    """Return when an error ended a process; None if the file has another form."""
    try:
        at = datetime.fromisoformat(error.at)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def error_age(error: PastError, now_us: int) -> str:
    """Return the age of an error in words; empty if unknown."""
    at = error_time(error)
    if at is None:
        return ""
    now = datetime.fromtimestamp(now_us / 1e6, UTC)
    return coarse_age(max(now - at, timedelta()).total_seconds())


def coarse_age(seconds: float) -> str:
    """Return an age that does not change at every look: `< 1 min`, `3 min`, `2 h`, `5 days`."""
    if seconds < 60:
        return "< 1 min"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h"
    return f"{seconds // 86_400:.0f} days"


def count_sentence(ranks: Iterable[Rank]) -> str:
    """Return the sentence above the list: the number of pipelines, and of those that are urgent."""
    every = list(ranks)

    def count(is_counted: Callable[[Rank], bool]) -> int:
        return sum(map(is_counted, every))

    urgent = count(lambda rank: rank.needs_attention)
    whole = count_words(len(every), "pipeline")
    if not urgent:
        return f"{whole}. None needs attention."
    return f"{whole}. {urgent} {'needs' if urgent == 1 else 'need'} attention."
