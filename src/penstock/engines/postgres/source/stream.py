"""The stream of one connection: runs out of a socket, acknowledgements back into it.

Two threads. The receiver reads whole blocks, decodes and puts runs into a bounded queue; the pulse
sends the server a status at intervals, however long the receiver waits for room in the queue, for
the catalogue or for a side file, and looks for standstills (`standstill.py`). The caller's thread
takes runs, makes them durable and acknowledges. A broken connection ends the object; the caller
opens the next one at its last flush point.

Measured: the server's walsender makes one send() per message and is the bottleneck; waking a client
that waits costs it more than the message. So while data flows the receiver naps between reads, and
the server sends into the socket's buffer undisturbed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from penstock.codec.postgres import pgwire
from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgoutput import make_decoder
from penstock.codec.postgres.pgoutput_messages import LogicalMessage, RelationMessage
from penstock.engines.postgres.source import slot
from penstock.engines.postgres.source.assemble import Assembler, Spill
from penstock.engines.postgres.source.assembly import Counted, Limits, Shapes
from penstock.engines.postgres.source.client import ReplicationConnection, open_replication
from penstock.engines.postgres.source.source_identity import ServerIdentity, checked_server
from penstock.engines.postgres.source.standstill import TICK_S, ServerSilent, StandstillWatch
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import ConnectionLost
from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, Files
from penstock.host.socket import NARROW_BYTES, WIDE_BYTES
from penstock.model import FlushPoint, Run
from penstock.ports.source import SourceStream
from penstock.sql.decoding import BYTE_COUNT_MAX, RUN_COUNT_MAX, RunQueue, Visit

logger = structlog.get_logger()
BUFFER_BYTES = 8 * 1024 * 1024
FLOW_GAP_S = 0.012  # reads closer than this belong to one flow,
FLOW_READ_COUNT = 8  # which starts with this many: more than a small transaction comes in
# With an open TCP window the server sends each message in a packet of its own. While we nap the
# window fills and it collects messages: that takes it half the CPU.
NAP_S = 0.005
NAP_BYTES = (
    128 * 1024
)  # naps are shorter where more than this arrives meanwhile: the buffer is small
LIGHT_BYTES = 16 * 1024  # naps are longer where a read brings less than this,
LATE_FACTOR = 4  # by so many times the delay with which a busy machine ends a nap,
NAP_S_MAX = 0.025  # up to this
FLOOD_BYTES = 192 * 1024  # what a read brings where the narrow window was full,
FLOOD_READ_COUNT = 50  # and so many of them in a row are a backlog
COALESCE_S = 0.01  # while caught up, small transactions of this time share a run
RUN_AGE_S = 0.05  # and while they come without a pause, those of this time
WAIT_S = 1.0
PULSE_S_MAX = 10.0
SILENCE_S = 300.0  # nothing at all from the server, though asked again and again
DRAIN_S = 1.0

declare("stream.start.before", "stream.acknowledge.before", "stream.acknowledge.after")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of a stream.

    Attributes:
        origin: `any`, or `none` to leave out what other replications applied.
        keep_messages: logical messages become markers.
        slot_wait_s: how long to wait for a slot that is in use.
        idle_flush_s: how often an idle stream returns an empty run that moves the position.
        queue_byte_count, queue_run_count: limits of what is decoded ahead of the caller.
    """

    slot: str
    publication: str
    origin: str = "any"
    keep_messages: bool = False
    slot_wait_s: float = 90.0
    idle_flush_s: float = 5.0
    queue_run_count: int = RUN_COUNT_MAX
    queue_byte_count: int = BYTE_COUNT_MAX
    limits: Limits = field(default_factory=Limits)


def protocol_options(server_version: int, options: StreamOptions) -> list[tuple[str, str]]:
    """Return the options of START_REPLICATION for a server's major version. Pure."""
    version = 2 if server_version < 15 else 3 if server_version < 16 else 4
    chosen = [
        ("proto_version", str(version)),
        ("publication_names", pgwire.quoted_name(options.publication)),
        ("messages", "true"),
        ("streaming", "on"),
    ]
    if options.origin != "any" and server_version >= 16:
        chosen.append(("origin", options.origin))
    return chosen


class PostgresSource(SourceStream):
    """One connection's stream, as a context manager: entering connects and starts.

    Raises on entering: the errors of `penstock.engines.postgres.connect` and of `slot`. `next_run`
    and `acknowledge` belong to one thread.
    """

    def __init__(
        self,
        url: str,
        *,
        options: StreamOptions,
        start: FlushPoint,
        shapes: Shapes,
        spill_directory: Path,
        expected: ServerIdentity | None = None,
        on_relation: Callable[[RelationMessage], None] | None = None,
        on_message: Callable[[LogicalMessage], None] | None = None,
        before_run: Callable[[], None] | None = None,
        files: Files = REAL_FILES,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Keep the position to continue from.

        start: the last flush point of the log; position 0 begins at the slot's. expected: the
        server that the log was filled from. on_relation, on_message: called in the receiver's
        thread, with every Relation message and with logical messages of our own prefix. before_run:
        called in that thread before each run is emitted.
        """
        self._url = url
        self._options = options
        self._start = start
        self._expected = expected
        self._before_run = before_run
        self._clock = clock
        self._queue = RunQueue(
            position=start.position,
            idle_flush_s=options.idle_flush_s,
            run_count_max=options.queue_run_count,
            byte_count_max=options.queue_byte_count,
            clock=clock,
        )
        self._flushed = start.position
        self._heard_s = 0.0
        self._pulse_s = PULSE_S_MAX
        self._threads: list[threading.Thread] = []
        self._connection: ReplicationConnection | None = None
        self.identity: ServerIdentity | None = None
        self._spill = Spill(spill_directory, files)
        decoder = make_decoder(gsn=start.gsn, trx=start.trx)
        self._assembler = Assembler(
            decoder=decoder,
            shapes=shapes,
            spill=self._spill,
            start=start,
            emit=self._put,
            on_idle=self._queue.idle,
            on_reply=self._answer,
            on_relation=on_relation,
            on_message=on_message,
            keep_messages=options.keep_messages,
            slot=options.slot,
            limits=options.limits,
        )

    # -- opening and closing -----------------------------------------------------------------

    def __enter__(self) -> Self:
        """Connect, check that nothing was lost, start the stream."""
        connection = open_replication(self._url, application_name=slot.APPLICATION_NAME)
        try:
            self._begin(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._heard_s = self._clock.monotonic_s()
        for name, work in (("receiver", self._receive), ("pulse", self._pulse)):
            thread = threading.Thread(
                target=self._run_guarded, args=(work,), name=f"penstock-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return self

    def _begin(self, connection: ReplicationConnection) -> None:
        options, position = self._options, self._start.position
        self.identity = self._check(connection)
        self._pulse_s = _pulse_interval_s(connection)
        command = pgwire.start_replication(
            options.slot, str(Lsn(position)), self._protocol(connection)
        )
        point("stream.start.before")
        slot.start_when_free(
            lambda: connection.start_copy(command, doing=f"starting slot {options.slot}"),
            lambda: slot.read_slot(connection, options.slot),
            name=options.slot,
            wait_s=options.slot_wait_s,
        )
        connection.wire.limit_window(WIDE_BYTES)
        logger.info("stream started", slot=options.slot, position=str(Lsn(position)))

    def _check(self, connection: ReplicationConnection) -> ServerIdentity:
        """Check that the server can continue where the log ends; a dialect overrides this."""
        options, position = self._options, self._start.position
        identity = checked_server(connection, self._expected, position)
        slot.check_publication(connection, options.publication)
        slot.check_slot(
            slot.read_slot(connection, options.slot),
            options.slot,
            database=identity.database,
            position=position,
        )
        slot.check_not_ahead(connection, position)
        return identity

    def _protocol(self, connection: ReplicationConnection) -> list[tuple[str, str]]:
        """Return the options of START_REPLICATION."""
        return protocol_options(connection.server_version, self._options)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Tell the server what is saved, end the stream and the threads."""
        self._queue.close()
        connection = self._connection
        if connection is not None:
            connection.wire.interrupt()
        for thread in self._threads:
            thread.join()
        self._spill.close()
        if connection is None:
            return
        connection.wire.resume()
        try:
            if not self._queue.is_broken:
                self._say_good_bye(connection)
        except ConnectionLost as lost:
            logger.info("connection broke while closing", error=lost.message)
        finally:
            connection.close()

    def _say_good_bye(self, connection: ReplicationConnection) -> None:
        """Send the last status and the end of copy, and read on for a moment: otherwise the server
        never sees them.
        """
        self._send_status()
        connection.wire.send(pgwire.COPY_DONE + pgwire.TERMINATE)
        scratch = memoryview(bytearray(BUFFER_BYTES))
        deadline = self._clock.monotonic_s() + DRAIN_S
        try:
            while (left_s := deadline - self._clock.monotonic_s()) > 0:
                connection.wire.receive_into(scratch, left_s)
        except ConnectionLost:
            return  # it closed, as it was asked to

    def _run_guarded(self, work: Callable[[], None]) -> None:
        """Run a thread's work; next_run raises its error again."""
        try:
            work()
        except BaseException as error:
            self._queue.fail(error)

    # -- the receiver ------------------------------------------------------------------------

    @property
    def _wire(self) -> ReplicationConnection:
        assert self._connection is not None
        return self._connection

    def _receive(self) -> None:
        buffer = bytearray(BUFFER_BYTES)
        first = self._wire.leftover()
        buffer[: len(first)] = first
        start, end = 0, len(first)
        untidy = bool(first)  # something came that is not emitted yet
        cut_at_s, overdue_s = 0.0, 0.0
        flow = Flow()
        while not self._queue.closing.is_set():
            if end > start or self._assembler.has_visits:
                start = self._assembler.feed(memoryview(buffer), start, end)
                if self._clock.monotonic_s() >= overdue_s and not self._assembler.cut_when_whole():
                    overdue_s = self._clock.monotonic_s() + RUN_AGE_S
            buffer, start, end = make_room(buffer, start, end)
            if flow.nap_s:
                flow.nap(self._clock)
            wait_s = WAIT_S
            if untidy:
                wait_s = min(max(cut_at_s - self._clock.monotonic_s(), 0.0), WAIT_S)
            count = self._wire.wire.receive_into(memoryview(buffer)[end:], wait_s)
            now_s = self._clock.monotonic_s()
            if flow.read(count, now_s):
                self._wire.wire.limit_window(WIDE_BYTES if flow.floods else NARROW_BYTES)
            if count:
                end += count
                untidy = True
                self._heard_s = now_s
            elif untidy and now_s >= cut_at_s:
                untidy = self._assembler.cut_when_whole()
                cut_at_s = now_s + COALESCE_S

    def _put(self, run: Run, byte_count: int) -> None:
        """Give a run to the caller, waiting for room."""
        if self._before_run is not None:
            self._before_run()
        self._queue.put(run, byte_count)

    def _answer(self) -> None:
        """Answer the server's request for a status: it may be shutting down and wait for our
        position.
        """
        self._send_status()
        self._queue.hurry()

    # -- the pulse ---------------------------------------------------------------------------

    def _pulse(self) -> None:
        ticks = max(1, round(self._pulse_s / TICK_S))
        tick_s = self._pulse_s / ticks
        watch = StandstillWatch(self._clock, tick_s=tick_s)
        for number in itertools.count(1):
            if self._queue.closing.wait(tick_s):
                return
            receiver_waits = self._queue.is_waiting
            if watch.look(self._heard_s, is_reading=not receiver_waits):
                self.ask_for_position()
            if number % ticks:
                continue
            silent_s = self._clock.monotonic_s() - self._heard_s
            if silent_s > max(SILENCE_S, 6 * self._pulse_s) and not receiver_waits:
                raise ServerSilent(
                    f"the server has sent nothing for {silent_s:.0f} s",
                    hint="Do nothing: the stream is opened again automatically.",
                )
            # An idle server answers with its position, so that the slot can follow it.
            self._send_status(reply_now=silent_s >= self._pulse_s / 2)

    def _send_status(self, *, reply_now: bool = False) -> None:
        self._wire.wire.send(
            pgwire.standby_status(
                write=max(self._assembler.counts.received_position, self._flushed),
                flush=self._flushed,
                apply=self._flushed,
                time_us=self._clock.now_us(),
                reply_now=reply_now,
            )
        )

    # -- the caller --------------------------------------------------------------------------

    @property
    def counts(self) -> Counted:
        """Counters of what has been received so far."""
        return self._assembler.counts

    @property
    def spilled_byte_count(self) -> int:
        """Bytes on disk that transactions in progress take."""
        return self._spill.size_bytes

    @property
    def has_ready(self) -> bool:
        """Return whether a run is ready."""
        return self._queue.is_waiting

    def has_given(self, position: int) -> bool:
        """Return whether the server has passed position and everything that it sent before was
        taken.

        Received or decoded data that was not taken yet does not count.
        """
        return self._queue.has_given(position)

    def next_run(self, timeout_s: float) -> Run | None:
        """Return the next run; None if there is none in time.

        A run without rows whose end is set only moves the position. If the stream has broken, the
        earlier runs are returned first, then its error is raised.
        """
        return self._queue.next(timeout_s)

    def visit(self, steps: Callable[[Assembler], Iterator[int]]) -> Visit[Assembler]:
        """Have work done between transactions by the thread that decodes; see Visit.

        What steps raises ends the stream, and is raised by next_run.
        """
        visit = Visit(steps=steps)
        self._assembler.visit(visit)
        return visit

    @property
    def is_closing(self) -> bool:
        """Return whether the stream is being ended: work that waits should give up."""
        return self._queue.closing.is_set()

    def ask_for_position(self) -> None:
        """Ask the server for a keepalive, which says how far it has read its log."""
        self._send_status(reply_now=True)

    def runs(self) -> Iterator[Run]:
        """Yield every run as it arrives, without end. Raises the errors of `next_run`."""
        while True:
            run = self.next_run(WAIT_S)
            if run is not None:
                yield run

    def acknowledge(self, position: int) -> None:
        """Let the server forget the WAL before position, which is on our disk. Never goes back.

        position: the end of a run that was emitted and durably written.
        """
        if position <= self._flushed:
            return
        point("stream.acknowledge.before")
        self._flushed = position
        self._send_status()
        point("stream.acknowledge.after")


class Flow:
    """Flow of the data.

    Attributes:
        nap_s: how long to leave the server alone before the next read.
        floods: data arrives faster than the narrow window lets it through.
    """

    def __init__(self) -> None:
        """Begin without data; a backlog may follow."""
        self.nap_s = 0.0
        self.floods = True
        self._late_s = self._longer_s = (
            0.0  # of the nap since the last read: than asked, than NAP_S
        )
        self._full_count = FLOOD_READ_COUNT
        self._read_count = 0
        self._last_s = float("-inf")

    def nap(self, clock: Clock) -> None:
        """Leave the server alone for a while."""
        began_s = clock.monotonic_s()
        clock.sleep(self.nap_s)
        took_s = clock.monotonic_s() - began_s
        self._late_s = max(0.0, took_s - self.nap_s)
        self._longer_s = max(0.0, took_s - NAP_S)

    def read(self, byte_count: int, now_s: float) -> bool:
        """Note the bytes of one read; return whether `floods` has changed."""
        change = 1 if byte_count >= FLOOD_BYTES else -1
        self._full_count = min(max(self._full_count + change, 0), FLOOD_READ_COUNT)
        flooded, still = self.floods, 1 if self.floods else FLOOD_READ_COUNT
        self.floods = self._full_count >= still
        if byte_count == 0:
            self.nap_s = self._late_s = self._longer_s = 0.0
            return flooded != self.floods
        gap_s = now_s - self._last_s - self._longer_s
        self._read_count = self._read_count + 1 if gap_s < FLOW_GAP_S else 0
        self._last_s = now_s
        flows = self._read_count >= FLOW_READ_COUNT
        nap_s = NAP_S * min(1.0, NAP_BYTES / byte_count)
        if byte_count < LIGHT_BYTES:
            nap_s = min(NAP_S_MAX, max(NAP_S, LATE_FACTOR * self._late_s))
        self.nap_s = nap_s if flows else 0.0
        self._late_s = self._longer_s = 0.0
        return flooded != self.floods


def make_room(buffer: bytearray, start: int, end: int) -> tuple[bytearray, int, int]:
    """Move an incomplete frame to the front; grow for one that is larger than the buffer."""
    if start == end:
        if len(buffer) > BUFFER_BYTES:
            buffer = bytearray(BUFFER_BYTES)
        return buffer, 0, 0
    if end < len(buffer) and start < len(buffer) // 2:
        return buffer, start, end
    size = len(buffer)
    if start == 0 and end == size:
        size *= 2
    elif size > BUFFER_BYTES and end - start < BUFFER_BYTES // 2:
        size = BUFFER_BYTES
    room = buffer if size == len(buffer) else bytearray(size)
    room[: end - start] = buffer[start:end]
    return room, 0, end - start


def _pulse_interval_s(connection: ReplicationConnection) -> float:
    """Return a third of the time after which the server drops a silent client."""
    row = connection.query(
        "select setting from pg_settings where name = 'wal_sender_timeout'",
        doing="reading wal_sender_timeout",
    )[0]
    timeout_s = int(row["setting"] or 0) / 1000
    return min(PULSE_S_MAX, timeout_s / 3) if timeout_s > 0 else PULSE_S_MAX
