"""Progress and outcome of an extraction, the loop's memory, and the operator's wish."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from penstock.model import FlushPoint


class ControlGate(Protocol):
    """Wish of the operator: the word in the action table."""

    @abstractmethod
    def word(self) -> str:
        """Return RUN, PAUSE or STOP; called about every five seconds, from one thread."""
        ...


class Ended(StrEnum):
    """Reason why an extraction ended."""

    IDLE = "idle"
    STOPPED = "stopped"


@dataclass(slots=True, kw_only=True)
class ExtractProgress:
    """Counters of one extraction, kept for display.

    Attributes:
        last_error: The last problem, also after it is over.
        problem: Why the stream broke; empty once it flows again.
        problem_since_us: When it broke; 0 once it flows again.
        next_try_us: When it is tried again; 0 once it flows again.
    """

    state: str = "connecting"
    reconnect_count: int = 0
    segment_count: int = 0
    row_count: int = 0
    transaction_count: int = 0
    byte_count: int = 0
    last_error: str = ""
    problem: str = ""
    problem_since_us: int = 0
    next_try_us: int = 0
    started_us: int = 0

    def note_failure(self, problem: str, *, now_us: int, wait_s: float) -> None:
        """Note that the stream broke, and is tried again after a while."""
        self.problem = self.last_error = problem
        self.problem_since_us = self.problem_since_us or now_us
        self.next_try_us = now_us + round(wait_s * 1e6)

    def note_progress(self) -> None:
        """Note that the stream flows again."""
        self.problem, self.problem_since_us, self.next_try_us = "", 0, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """End of an extraction. end: the last flush point, all of it in closed segments."""

    ended: Ended
    end: FlushPoint


@dataclass(slots=True, kw_only=True)
class Pace:
    """Memory of the loop between two runs; times are monotonic seconds."""

    rows_since_flush: int = 0
    flushed_s: float = 0.0
    data_s: float = 0.0
    segment_open: int = -1
    target_position: int = 0
