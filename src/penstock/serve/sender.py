"""START_REPLICATION: the log's transactions to one client, and its confirmations.

One task writes blocks, keepalives and the end, the other reads the client's status messages, so
neither waits for the other. Output is bounded: a client that does not read stops the writer, and a
client that stays silent for a while is disconnected.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import structlog

from penstock.codec.postgres import pgoutput_write as write
from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgwire_server import (
    COPY_BOTH,
    COPY_DONE,
    Refused,
    StandbyStatus,
    command_complete,
    standby_status,
)
from penstock.host.clock import REAL_CLOCK
from penstock.serve.blocks import Made, Place, find_place
from penstock.serve.encode import Block, Views
from penstock.serve.forms import StreamOptions
from penstock.serve.slots import Slot
from penstock.serve.source_log import SegmentGone
from penstock.serve.wire import Gone, Wire

if TYPE_CHECKING:
    from penstock.serve.serving import Serving

SENDER_TIMEOUT_S = 60.0  # wal_sender_timeout: a client that is silent this long is disconnected
_ASK_AFTER = 0.5  # share of that time
STATUS_BYTES_MAX = 1 << 16
_MARKS_MAX = 1024

logger = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Progress:
    """Progress of a client, as LSNs of its slot.

    Attributes:
        sent: everything up to here was given to the connection.
    """

    sent: int
    write: int = 0
    flush: int = 0
    apply: int = 0
    reply_us: int = 0


class _Mark(NamedTuple):
    """END that was sent: for the client, for the log, and its commit time."""

    lsn: int
    position: int
    time_us: int


class _Marks:
    """Sent and unconfirmed ENDs: they map a client's LSN to the log."""

    def __init__(self) -> None:
        self._found: list[_Mark] = []

    def add(self, lsn: int, position: int, time_us: int) -> None:
        """Add a mark after the others."""
        if self._found and position <= self._found[-1].position:
            return
        if len(self._found) >= _MARKS_MAX:
            # For a client that confirms nothing every second mark is enough: lower ones are safe.
            del self._found[1::2]
        self._found.append(_Mark(lsn, position, time_us))

    def take_confirmed(self, lsn: int) -> _Mark:
        """Return the last mark up to an LSN, and forget earlier ones."""
        at = bisect_right(self._found, lsn, key=lambda mark: mark.lsn)
        if not at:
            return _Mark(0, 0, 0)
        del self._found[: at - 1]
        return self._found[0]


class Sender:
    """One stream. It owns its slot from `run` on until `run` returns."""

    def __init__(
        self,
        serving: Serving,
        wire: Wire,
        slot: Slot,
        start: int,
        options: StreamOptions,
        *,
        timeout_s: float = SENDER_TIMEOUT_S,
    ) -> None:
        """Prepare a stream. Raises Refused.

        Args:
            serving: the server.
            wire: the connection.
            slot: the slot.
            start: the client has everything up to this LSN of the slot.
            options: of the stream.
            timeout_s: see SENDER_TIMEOUT_S.
        """
        self._serving, self._wire, self._slot = serving, wire, slot
        self._options = options
        self._timeout_s = timeout_s
        self.progress = Progress(sent=start)
        self._start = start
        # The same in the log's numbers; if those differ, the slot's confirmed position.
        self._at = slot.saved.confirmed if slot.saved.is_hybrid else start
        self._marks = _Marks()
        # The highest LSN that the client can have seen: it cannot confirm more.
        self._reach = start
        self._known: dict[int, bytes] = {}
        self._changed = asyncio.Event()
        self._done = False
        self._reply_wanted = False
        self._asked = False
        self._told = False
        self._end: Refused | None = None

    def end(self, reason: Refused) -> None:
        """End the stream, and tell the client why."""
        self._end = reason
        self._changed.set()

    async def run(self) -> None:
        """Stream until the client ends it. Raises Refused, Gone."""
        try:
            place = await self._serving.in_thread(find_place, self._serving.log, self._at)
        except SegmentGone as error:
            raise _make_lost(self._slot, error) from error
        self._views(place)  # unknown publications are refused before the client is answered
        self._wire.write(COPY_BOTH)
        self._wire.heard_s = time.monotonic()
        reader = asyncio.create_task(self._read())
        watch = asyncio.create_task(self._watch())
        try:
            await self._stream(place)
            if reader.done():
                reader.result()
        except SegmentGone as error:
            raise _make_lost(self._slot, error) from error
        finally:
            for task in (reader, watch):
                task.cancel()
            await asyncio.gather(reader, watch, return_exceptions=True)
        # Twice: libpq takes the first for the copy's, the second for the command's.
        self._wire.write(COPY_DONE + command_complete("COPY 0"))
        self._wire.write(command_complete("START_REPLICATION"))

    async def _stream(self, place: Place) -> None:
        ahead: asyncio.Task[Made | None] | None = None
        try:
            while not self._done:
                changed = self._serving.changed
                ahead = ahead or asyncio.create_task(self._next(place))
                is_made = await self._wait_made(ahead)
                if self._end is not None:
                    raise self._end
                if not is_made:
                    return
                made, ahead = ahead.result(), None
                if made is None:
                    await self._idle(place, changed)
                    continue
                place = made.behind
                if made.block is None:
                    continue
                if self._serving.blocks.has_room:
                    ahead = asyncio.create_task(self._next(place))
                await self._send(made.block)
                del made  # its bytes are not needed while the next one is made
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _wait_made(self, making: asyncio.Task[Made | None]) -> bool:
        """Wait for a block; return False if the stream ends first.

        A large block takes time, in which the client must get messages.
        """
        while not making.done() and not self._done and self._end is None:
            wake = asyncio.create_task(self._changed.wait())
            try:
                found, _ = await asyncio.wait(
                    [making, wake],
                    timeout=self._timeout_s / 4,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                wake.cancel()
            self._changed.clear()
            if making not in found and (self._reply_wanted or not found):
                self._keepalive()
                await self._wire.drain()
        return making.done() and not self._done

    async def _next(self, place: Place) -> Made | None:
        views, borders = self._views(place)
        head = self._serving.head
        return await self._serving.blocks.next(place, views, head, borders, self._at)

    def _views(self, place: Place) -> tuple[Views, frozenset[int]]:
        """Return the views after a place, and where publications change."""
        return self._serving.views_at(self._options, place, self._at)

    async def _send(self, block: Block) -> None:
        """Send a block from the first transaction that the client did not have at the start."""
        start = block.start_behind(self._start)
        self._reach = max(self._reach, block.lsn, int(block.ends[-1]) if len(block.ends) else 0)
        data = memoryview(block.data)
        shapes = {shape.table: shape for shape in block.shapes if shape.offset <= start}
        later = [shape for shape in block.shapes if shape.offset > start]
        if start < len(data):
            for shape in shapes.values():
                self._announce(shape.table, shape.message)
        stops = sorted({*block.cuts, *(shape.offset for shape in later), len(data)})
        for stop in stops:
            if stop <= start:
                continue
            while later and later[0].offset <= start:
                shape = later.pop(0)
                self._announce(shape.table, shape.message)
            await self._wire.send(data[start:stop])
            start = stop
            if self._done or self._end is not None:
                return
            if self._reply_wanted:
                self._keepalive()
        if block.position:
            self._has_sent(block.position, block.lsn, block.time_us)

    def _has_sent(self, position: int, lsn: int, time_us: int) -> None:
        """Note that all up to a place was sent; time_us is 0 if unknown."""
        self._at = max(self._at, position)
        self.progress.sent = max(self.progress.sent, lsn)
        self._marks.add(lsn, position, time_us)

    def _announce(self, table: int, message: bytes) -> None:
        if self._known.get(table) != message:
            self._known[table] = message
            self._wire.write(write.xlog_data(message, 0, REAL_CLOCK.now_us()))

    async def _idle(self, place: Place, changed: asyncio.Event) -> None:
        """Tell a client that it has everything, and wait for more."""
        position = place.counted.position
        if position > self._at or not self._told:
            lsn = position
            if self._slot.saved.is_hybrid:
                lsn = await self._serving.hybrid_end(place.number, place.counted.trx)
            self._has_sent(position, lsn, 0)
        is_new = self._slot.saved.lsn < self.progress.sent
        if is_new or self._reply_wanted or not self._told:
            # Always the first time: a client may wait for a position that it has. Also if
            # nothing was for this client: it confirms, and its slot moves on.
            self._reach = max(self._reach, self.progress.sent)
            self._keepalive()
        await self._wire.drain()
        waiting = [asyncio.create_task(one.wait()) for one in (changed, self._changed)]
        try:
            await asyncio.wait(
                waiting, timeout=self._timeout_s / 4, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in waiting:
                task.cancel()
        self._changed.clear()

    def _keepalive(self) -> None:
        asks, self._asked, self._reply_wanted = self._asked, False, False
        self._told = True
        now_us = REAL_CLOCK.now_us()
        self._wire.write(write.keepalive(self.progress.sent, now_us, reply_now=asks))

    async def _watch(self) -> None:
        """Ask a silent client for a reply, and disconnect it if it stays silent."""
        while True:
            silent_s = time.monotonic() - self._wire.heard_s
            if silent_s > self._timeout_s:
                logger.warning("client is silent", slot=self._slot.saved.name, seconds=silent_s)
                self._wire.abort()
                self._stop()
                return
            if silent_s > self._timeout_s * _ASK_AFTER:
                # A writer that waits for the client takes no message; wait for it.
                self._asked = self._reply_wanted = True
                self._changed.set()
            await asyncio.sleep(self._timeout_s / 8)

    def _stop(self) -> None:
        self._done = True
        self._changed.set()

    async def _read(self) -> None:
        """Read the client's messages until it ends the stream. Raises Refused, Gone."""
        try:
            while True:
                message = await self._wire.message(STATUS_BYTES_MAX)
                if message.kind == b"d":
                    status = standby_status(message.body)
                    if status is not None:
                        self._status(status)
                elif message.kind == b"c":
                    return
                elif message.kind == b"X":
                    raise Gone
                elif message.kind not in (b"H", b"S"):
                    raise Refused(
                        "08P01", f"unexpected message type 0x{message.kind[0]:02X} in a stream"
                    )
        finally:
            self._stop()

    def _status(self, status: StandbyStatus) -> None:
        progress = self.progress
        progress.write, progress.apply = status.write, status.apply
        progress.flush, progress.reply_us = status.flush, status.time_us
        lsn = min(status.flush, self._reach)
        mark = self._marks.take_confirmed(lsn)
        self._serving.slots.confirm(self._slot, lsn, mark.position, mark.time_us)
        self._serving.save_soon()
        if status.reply_now:
            self._reply_wanted = True
            self._changed.set()


def _make_lost(slot: Slot, error: SegmentGone) -> Refused:
    name, position = slot.saved.name, Lsn(slot.saved.lsn)
    return Refused(
        "55000",
        f'can no longer get changes from replication slot "{name}": what follows {position} is '
        "not in the log any more",
        hint=error.hint,
    )
