"""What an extraction is asked to do, and what it counts."""

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
    """What the operator wants: the word in the action table."""

    def word(self) -> str:
        """RUN, PAUSE or STOP; called about every five seconds, from one thread."""
        ...


class Ended(StrEnum):
    """Why an extraction ended."""

    IDLE = "idle"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions:
    """The parameters of document 000, and what belongs to one engine.

    events_per_flush: rows after which what was read is made durable and acknowledged.
    flush_interval_s: the longest that rows wait for that, and the age at which a segment is
    rotated. apply_interval_s: how often that is done at most while less than events_per_flush rows
    come, so that a loader can apply them; None: nobody reads the open segment. idle_wait_s: how
    long nothing must come before exit_when_idle ends the extraction. slot_wait_s: how long to wait
    for a slot that somebody else reads. table_interval_s: how long at most until the catalogue is
    looked at again for changes that send no rows; sooner where a look is cheap. catch_up_bytes: how
    far behind the server, in WAL, ranges of catch_up_range_bytes are read by COPY before streaming;
    0: never; None: BEHIND_BYTES, and never where the server is near. heartbeat_s: how often one is
    committed at the source; 0: never. server_id: ours, where the source's readers are replicas; 0:
    one that is made from the pipeline's name and place. keeping: limits for keeping segments that
    consumers have linked; None: a loader removes them. full_before_images: updates and deletes with
    the whole old row, where the source's settings do not decide that.
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

    problem: why the stream broke, since problem_since_us, to be tried again at next_try_us;
    empty and 0 once it flows again. last_error: the last of these, also after that.
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
        """The stream broke, and is tried again after a while."""
        self.problem = self.last_error = problem
        self.problem_since_us = self.problem_since_us or now_us
        self.next_try_us = now_us + round(wait_s * 1e6)

    def note_progress(self) -> None:
        """It flows again."""
        self.problem, self.problem_since_us, self.next_try_us = "", 0, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it ended. end: the last flush point, all of it in closed segments."""

    ended: Ended
    end: FlushPoint


@dataclass(slots=True, kw_only=True)
class Pace:
    """What the loop remembers between two runs; times are monotonic seconds."""

    rows_since_flush: int = 0
    flushed_s: float = 0.0
    data_s: float = 0.0
    segment_open: int = -1
    target_position: int = 0
