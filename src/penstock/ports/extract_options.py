"""Options of an extraction, and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from penstock.model import FlushPoint
from penstock.model.keeping import Keeping

TABLE_INTERVAL_S = 10.0
RANGE_BYTES = 64 * 1024 * 1024
BEHIND_BYTES = 64 * 1024 * 1024


class ControlGate(Protocol):
    """Wish of the operator: the word in the action table."""

    def word(self) -> str:
        """Return RUN, PAUSE or STOP; called about every five seconds, from one thread."""
        ...


class Ended(StrEnum):
    """Reason why an extraction ended."""

    IDLE = "idle"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions:
    """Parameters of document 000, and those of one engine.

    Attributes:
        flush_interval_s: The longest time until rows are made durable, and the age at which a
            segment is rotated.
        apply_interval_s: The shortest time between flushes for a loader, while less than
            events_per_flush rows arrive; None: no reader reads the open segment.
        events_per_flush: Number of rows after which they are made durable and acknowledged.
        idle_wait_s: How long no row must arrive before exit_when_idle ends the extraction.
        full_before_images: Updates and deletes have the whole old row, if the source's settings do
            not decide that.
        keeping: Limits for keeping segments that consumers have linked; None: a loader removes
            them.
        slot_wait_s: How long to wait for a slot that another process reads.
        table_interval_s: The longest time until the catalogue is read again for changes that send
            no rows; shorter if that is cheap.
        catch_up_bytes: How far behind the server, in WAL, ranges of catch_up_range_bytes are read
            by COPY before streaming; 0: never; None: BEHIND_BYTES, and never if the server is near.
        server_id: Our id, if the source's readers are replicas; 0: one that is made from the
            pipeline's name and place.
        heartbeat_s: Seconds between heartbeats that are committed at the source; 0: none.
    """

    slot: str = "wirekite_replication_slot"
    publication: str = "wirekite_publication"
    flush_interval_s: float = 5.0
    apply_interval_s: float | None = 0.1
    events_per_flush: int = 5000
    exit_when_idle: bool = False
    idle_wait_s: float = 3.0
    process_commits: bool = False
    keep_messages: bool = False
    full_before_images: bool = False
    origin: str = "any"
    operation_count_max: int = 150_000
    extension: str = "ckt"
    keeping: Keeping | None = None
    slot_wait_s: float = 90.0
    table_interval_s: float = TABLE_INTERVAL_S
    catch_up_bytes: int | None = None
    catch_up_range_bytes: int = RANGE_BYTES
    server_id: int = 0
    heartbeat_s: float = 0.0


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
