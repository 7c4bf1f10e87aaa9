"""The thread that decodes a source's log: its queue of runs to the extractor, and its visits.

Besides runs the queue carries the place with nothing pending, for an idle source whose position
moves.

A visit is work that the decoding thread does between two transactions: a generator. It waits for
each position that it yields: it continues when all transactions that commit before that position
were decoded, and no later one. An engine's assembler knows these moments.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import FlushPoint, Run

WAIT_S = 0.25

RUN_COUNT_MAX = 64

BYTE_COUNT_MAX = 128 * 1024 * 1024


class RunQueue:
    """Runs of one stream, in order. `put` and `idle` belong to one thread, the rest to another."""

    def __init__(
        self,
        *,
        position: int,
        idle_flush_s: float,
        run_count_max: int = RUN_COUNT_MAX,
        byte_count_max: int = BYTE_COUNT_MAX,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Begin after position. idle_flush_s: how often an idle stream emits an empty run."""
        self.closing = threading.Event()
        self._idle_flush_s = idle_flush_s
        self._run_count_max = run_count_max
        self._byte_count_max = byte_count_max
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[tuple[Run, int]] = deque()
        self._queued_bytes = 0
        self._idle: FlushPoint | None = None
        self._idle_given_s = 0.0
        self._given_end = position
        self._known_end = position
        self._mid_transaction = False
        self._urgent = False
        self._error: BaseException | None = None

    # -- the thread that decodes -------------------------------------------------------------

    def put(self, run: Run, byte_count: int) -> None:
        """Add a run, waiting for room; while the queue is being closed it takes every run."""
        with self._changed:
            while not self._has_room(byte_count) and not self.closing.is_set():
                self._changed.wait(WAIT_S)
            self._queue.append((run, byte_count))
            self._queued_bytes += byte_count
            if run.end is not None:
                self._known_end = run.end.position
            self._changed.notify_all()

    def _has_room(self, byte_count: int) -> bool:
        if not self._queue:
            return True
        return (
            len(self._queue) < self._run_count_max
            and self._queued_bytes + byte_count <= self._byte_count_max
        )

    def idle(self, end: FlushPoint) -> None:
        """Note that nothing is pending, and the source is at end."""
        with self._changed:
            self._idle = end
            self._known_end = end.position
            self._changed.notify_all()

    def hurry(self) -> None:
        """Emit the position of `idle` at once, because the source waits for it."""
        with self._changed:
            self._urgent = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Keep the error that broke the stream: `next` raises it after the runs in the queue."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # -- the extractor's ---------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Return whether runs wait to be taken."""
        return bool(self._queue)

    @property
    def is_broken(self) -> bool:
        """Return whether the stream has failed."""
        return self._error is not None

    @property
    def known_end(self) -> int:
        """Position up to which the stream has arrived."""
        return self._known_end

    def close(self) -> None:
        """Let a thread that waits for room continue."""
        self.closing.set()
        with self._changed:
            self._changed.notify_all()

    def has_given(self, position: int) -> bool:
        """Return whether the stream is past position and all before it was taken."""
        with self._changed:
            return not self._queue and not self._mid_transaction and self._known_end >= position

    def next(self, timeout_s: float) -> Run | None:
        """Return the next run, or None if there is none in time; raises the stream's error."""
        deadline = self._clock.monotonic_s() + timeout_s
        with self._changed:
            while True:
                run = self._take()
                if run is not None:
                    self._mid_transaction = run.end is None
                    if run.end is not None:
                        self._given_end = run.end.position
                    return run
                if self._error is not None:
                    raise self._error
                left_s = deadline - self._clock.monotonic_s()
                if left_s <= 0:
                    return None
                self._changed.wait(min(left_s, WAIT_S))

    def _take(self) -> Run | None:
        if self._queue:
            run, byte_count = self._queue.popleft()
            self._queued_bytes -= byte_count
            self._changed.notify_all()
            return run
        idle, now_s = self._idle, self._clock.monotonic_s()
        if (
            idle is None
            or self._mid_transaction
            or idle.position <= self._given_end
            or not (self._urgent or now_s - self._idle_given_s >= self._idle_flush_s)
        ):
            return None
        self._idle, self._idle_given_s, self._urgent = None, now_s, False
        return Run(end=idle)


A = TypeVar("A")


@dataclass(slots=True, kw_only=True, eq=False)
class Visit(Generic[A]):
    """Visit to an assembler. trx: the last transaction's number when it was finished."""

    steps: Callable[[A], Iterator[int]]
    finished: bool = False
    trx: int = 0
    running: Iterator[int] | None = None


class Visits(Generic[A]):
    """Queue of visits. Any thread may call `add`, the decoding thread calls the rest.

    Attributes:
        waits_for: The position that the first one waits for, 0 for none.
        queue: Visits that wait for the end of a transaction or for a position.
    """

    def __init__(self) -> None:
        """Begin with an empty queue."""
        self.waits_for = 0
        self.queue: deque[Visit[A]] = deque()

    def add(self, visit: Visit[A]) -> None:
        """Add a visit, to be done as soon as possible."""
        self.queue.append(visit)

    def go_on(self, assembler: A, trx: Callable[[], int]) -> None:
        """Begin the first visit, or resume it: the position that it waits for is reached."""
        visit = self.queue[0]
        if visit.running is None:
            visit.running = visit.steps(assembler)
        try:
            self.waits_for = next(visit.running)
        except StopIteration:
            self.waits_for = 0
            self.queue.popleft()
            visit.trx = trx()
            visit.finished = True

    def close(self) -> None:
        """End all visits, because the stream is over."""
        while self.queue:
            running = self.queue.popleft().running
            if isinstance(running, Generator):
                running.close()
