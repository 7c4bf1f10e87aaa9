"""Progress and outcome of an extraction, and run/extract.json, which reports them."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol

from penstock.extract.bookkeeping import BackgroundTasks, Poll
from penstock.model import FlushPoint
from penstock.ports.source import SourceEngine, SourceStream

FLUSH_SHARE = 0.2  # of the time may pass in flushes,
FLUSH_INTERVAL_S_MAX = 0.5  # unless that needs a longer interval


class ControlGate(Protocol):
    """Operator's word in the action table."""

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
    """Memory of the loop between two runs; times are monotonic seconds.

    Attributes:
        slow_s: Duration of a flush, the shorter one of the last two: one may be slow by chance.
    """

    rows_since_flush: int = 0
    flushed_s: float = 0.0
    data_s: float = 0.0
    segment_open: int = -1
    target_position: int = 0
    slow_s: float = 0.0
    _last_s: float = 0.0

    def note_flush(self, began_s: float, now_s: float) -> None:
        """Note a flush that began and ended at these times."""
        self.rows_since_flush = 0
        self.flushed_s = now_s
        self.slow_s = min(self._last_s, now_s - began_s)
        self._last_s = now_s - began_s

    def flush_interval_s(self, shortest_s: float) -> float:
        """Return how long after the last flush the next one is due.

        If the machine or its disk is so busy that a flush takes long, flushes come less often:
        other processes that wait for the processor gain more than ours would.
        """
        return max(shortest_s, min(self.slow_s / FLUSH_SHARE, FLUSH_INTERVAL_S_MAX))


WATERMARK = "watermark_us"


def facts_of(
    progress: ExtractProgress,
    *,
    engine: SourceEngine,
    end: FlushPoint,
    segment: int,
    segment_row_count: int,
    source: SourceStream | None,
    background_tasks: BackgroundTasks,
    server: Poll | None,
    watermark_us: int,
    action: Poll | None,
    heartbeats: Poll | None,
    now_us: int,
) -> dict[str, Any]:
    """Return everything for display, fit for JSON; positions are in the source's notation.

    end is the last flush point. segment is the number of the open or next segment. server asks for
    the server's own position, action for the operator's action; heartbeats commits them.
    watermark_us: see `Watermark`. Times are microseconds since 1970.
    """
    position = server.value.position if server is not None else 0
    counted = source.counts if source is not None else None
    return {
        **asdict(progress),
        "pid": os.getpid(),
        "now_us": now_us,
        "slot": engine.name,
        "segment": segment,
        "segment_row_count": segment_row_count,
        "gsn": end.gsn,
        "trx": end.trx,
        "position": engine.text(end.position),
        "commit_time_us": end.commit_time_us,
        "server_position": engine.text(position),
        WATERMARK: watermark_us,
        "lag_bytes": engine.bytes_between(end.position, position),
        "spill_bytes": source.spilled_byte_count if source is not None else 0,
        "received_bytes": counted.byte_count if counted is not None else 0,
        "ignored_row_count": counted.ignored_row_count if counted is not None else 0,
        "recorder_error": background_tasks.error,
        "recorder_pending": background_tasks.pending_count,
        "source_error": server.error if server is not None else "",
        "heartbeat_error": heartbeats.error if heartbeats is not None else "",
        "action": action.value if action is not None else "RUN",
    }
