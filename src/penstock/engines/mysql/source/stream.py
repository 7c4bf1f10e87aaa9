"""Read the stream of one connection: runs from a replica's socket.

One thread reads whole blocks, decodes and puts runs into a bounded queue; the caller's takes them,
makes them durable and acknowledges them. The server gets no feedback, as it keeps its log by its
own rules. A broken connection ends the object; the caller opens the next one at its last flush
point.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import structlog

from penstock.engines.mysql.source.assemble import Assembler, Counted, StreamMark
from penstock.engines.mysql.source.client import BinlogConnection
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.faults import declare, point
from penstock.model import FlushPoint, Run
from penstock.ports.source import SourceStream
from penstock.sql.decoding import RunQueue, Visit

logger = structlog.get_logger()
BUFFER_BYTES = 8 * 1024 * 1024
COALESCE_S = 0.01  # while caught up, small transactions of this time share a run
RUN_AGE_S = 0.05  # and while they arrive without a pause, those of this time
WAIT_S = 1.0

declare("binlog.start.before", "binlog.acknowledge.before", "binlog.acknowledge.after")

MakeAssembler = Callable[
    [
        Callable[[Run, int, StreamMark | None], None],
        Callable[[FlushPoint, StreamMark], None],
        Callable[[bytes], None],
    ],
    Assembler,
]


class BinlogSource(SourceStream):
    """Stream of one connection, as a context manager: entering starts it."""

    def __init__(
        self,
        open_connection: Callable[[], BinlogConnection],
        make_assembler: MakeAssembler,
        *,
        start: FlushPoint,
        keep: Callable[[], None],
        on_durable: Callable[[StreamMark], None],
        spilled: Callable[[], int],
        idle_flush_s: float,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the settings.

        start: the last flush point of the log. keep: called in the decoding thread before a run or
        position is emitted, to make the state that it depends on durable. on_durable: called in the
        caller's thread with the position up to which the log is durable. spilled: returns the
        number of bytes in side files.
        """
        self._open_connection = open_connection
        self._keep = keep
        self._on_durable = on_durable
        self._spilled = spilled
        self._clock = clock
        self._queue = RunQueue(position=start.position, idle_flush_s=idle_flush_s, clock=clock)
        self._marks: deque[StreamMark] = deque()
        self._assembler = make_assembler(self._put, self._idle, self._other)
        self._connection: BinlogConnection | None = None
        self._thread = threading.Thread(target=self._work, name="penstock-receiver", daemon=True)

    def __enter__(self) -> Self:
        """Ask for the binlog and begin to receive."""
        point("binlog.start.before")
        self._connection = self._open_connection()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the stream and its thread."""
        self._queue.close()
        self._thread.join()
        if self._connection is not None:
            self._connection.close()

    def _work(self) -> None:
        try:
            self._receive()
        except BaseException as error:
            try:
                self._assembler.give_up()
            finally:
                self._queue.fail(error)
        finally:
            self._assembler.close()

    # -- the receiver ------------------------------------------------------------------------

    def _receive(self) -> None:
        assert self._connection is not None
        buffer = bytearray(BUFFER_BYTES)
        start = end = 0
        untidy = False  # bytes have arrived that are not emitted yet
        cut_at_s, overdue_s = 0.0, 0.0
        while not self._queue.closing.is_set():
            if end > start:
                start = self._assembler.feed(memoryview(buffer), start, end)
                if self._clock.monotonic_s() >= overdue_s and not self._assembler.cut_when_whole():
                    overdue_s = self._clock.monotonic_s() + RUN_AGE_S
            else:
                self._assembler.between()
            buffer, start, end = make_room(buffer, start, end)
            wait_s = WAIT_S
            if untidy:
                wait_s = min(max(cut_at_s - self._clock.monotonic_s(), 0.0), WAIT_S)
            with memoryview(buffer) as view:
                count = self._connection.receive_into(view[end:], wait_s)
            now_s = self._clock.monotonic_s()
            if count:
                end += count
                untidy = True
            elif untidy and now_s >= cut_at_s:
                untidy = self._assembler.cut_when_whole()
                cut_at_s = now_s + COALESCE_S

    def _put(self, run: Run, byte_count: int, mark: StreamMark | None) -> None:
        self._keep()
        if mark is not None:
            self._marks.append(mark)
        self._queue.put(run, byte_count)

    def _idle(self, end: FlushPoint, mark: StreamMark) -> None:
        self._keep()
        self._marks.append(mark)
        self._queue.idle(end)

    def _other(self, payload: bytes) -> None:
        assert self._connection is not None
        self._connection.end(payload)

    def fail(self, error: BaseException) -> None:
        """End the stream for a reason that was found elsewhere."""
        self._queue.fail(error)

    # -- the caller --------------------------------------------------------------------------

    @property
    def counts(self) -> Counted:
        """Counts of the rows, bytes and transactions received so far."""
        return self._assembler.counts

    @property
    def spilled_byte_count(self) -> int:
        """Bytes of prepared transactions on disk."""
        return self._spilled()

    @property
    def known_end(self) -> int:
        """Position that the stream has reached."""
        return self._queue.known_end

    def next_run(self, timeout_s: float) -> Run | None:
        return self._queue.next(timeout_s)

    def has_given(self, position: int) -> bool:
        return self._queue.has_given(position)

    def visit(self, steps: Callable[[Assembler], Iterator[int]]) -> Visit[Assembler]:
        """Queue work to be done between transactions by the decoding thread; see Visit.

        An error of steps ends the stream, and next_run raises it.
        """
        visit = Visit(steps=steps)
        self._assembler.visit(visit)
        return visit

    @property
    def is_closing(self) -> bool:
        """Return whether the stream is being ended, so waiting work should give up."""
        return self._queue.closing.is_set()

    def ask_for_position(self) -> None:
        """Do nothing: the server sends its end without being asked."""

    def mark_at(self, position: int) -> StreamMark | None:
        """Return the state at an end that was emitted and is not acknowledged yet."""
        return next((mark for mark in tuple(self._marks) if mark.position == position), None)

    def acknowledge(self, position: int) -> None:
        """Note that everything before position is on our disk."""
        last: StreamMark | None = None
        while self._marks and self._marks[0].position <= position:
            last = self._marks.popleft()
        if last is not None:
            point("binlog.acknowledge.before")
            self._on_durable(last)
            point("binlog.acknowledge.after")


def make_room(buffer: bytearray, start: int, end: int) -> tuple[bytearray, int, int]:
    """Move an incomplete packet to the front; grow for one that is larger than the buffer."""
    if start == end:
        if len(buffer) > BUFFER_BYTES:
            buffer = bytearray(BUFFER_BYTES)
        return buffer, 0, 0
    if end < len(buffer) and start < len(buffer) // 2:
        return buffer, start, end
    size = len(buffer)
    if start == 0 and end == size:
        size *= 2
    room = buffer if size == len(buffer) else bytearray(size)
    room[: end - start] = buffer[start:end]
    return room, 0, end - start
