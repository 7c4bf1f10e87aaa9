"""Shared state of one server's connections: log, slots, blocks, publications, clients."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import structlog

from penstock.base.held import Holder
from penstock.codec.postgres.pgwire_server import Refused
from penstock.host.clock import REAL_CLOCK
from penstock.model import PenstockError, Relation, TableName
from penstock.serve.blocks import Blocks, Place, find_place
from penstock.serve.catalog.answers import ConnectionRow, SenderRow, SlotRow
from penstock.serve.catalog.publications import (
    Publication,
    Publications,
    everything,
    find_publications,
)
from penstock.serve.encode import Views
from penstock.serve.forms import Form, StreamOptions
from penstock.serve.hybrid import Anchor, HybridTimes, hybrid_time
from penstock.serve.saved_state import Shapes
from penstock.serve.sender import Sender
from penstock.serve.settings import YUGABYTE, ServeSettings
from penstock.serve.slots import Retention, Slot, Slots
from penstock.serve.snapshots import Snapshot, Snapshots
from penstock.serve.source_log import Head, SegmentGone, SourceLog
from penstock.serve.statistics import Client, connection_row, sender_row, slot_row

_VIEWS_KEPT = 64
_TAIL_S = 0.5
_LOOK_S = 5.0
_BASE_S = 1.0
T = TypeVar("T")
logger = structlog.get_logger(__name__)


class Ended(Protocol):
    """Connection that others can end."""

    @abstractmethod
    def cancel(self) -> None:
        """Abort the running command, if there is one."""
        ...

    @abstractmethod
    def terminate(self) -> None:
        """End the connection."""
        ...


class Serving:
    """Everything but the sockets. The event loop's thread uses it unless stated otherwise."""

    def __init__(
        self,
        settings: ServeSettings,
        log: SourceLog,
        slots: Slots,
        retention: Retention,
        publications: Publications,
        *,
        shapes: Shapes,
        table_oid: Callable[[TableName], int],
        on_shapes: Callable[[], None] = lambda: None,
        answering: ThreadPoolExecutor | None = None,
        holder: Holder | None = None,
        known_us: Callable[[], int] = lambda: 0,
    ) -> None:
        """Set the parts.

        Args:
            settings: of the server.
            log: the log.
            slots: the slots.
            retention: the links.
            publications: the publications.
            shapes: the newest ones; learnt from the log as it grows.
            table_oid: returns the catalogue's number of a table; called from any thread.
            on_shapes: called after new shapes.
            answering: the catalogue's one thread.
            holder: holds states of the base; None if there is none.
            known_us: returns up to when the log has all commits of the source, from its extractor;
                called from any thread, 0 for unknown.
        """
        self.settings, self.log, self.slots = settings, log, slots
        self.retention, self.publications = retention, publications
        self._hybrid = HybridTimes(log, lambda: slots.anchor)
        self.blocks = Blocks(log, hybrid=self._hybrid)
        self.snapshots = Snapshots(holder, self.in_thread)
        self._holder, self._base_s = holder, 0.0
        self.known_us = known_us
        self.head: Head = log.head()
        self.changed = asyncio.Event()
        self.senders: dict[int, Sender] = {}
        self.clients: dict[int, Client] = {}
        self.sessions: dict[int, Ended] = {}
        self._shapes, self._on_shapes = shapes, on_shapes
        self._table_oid = table_oid
        self._views: OrderedDict[tuple[tuple[Publication, ...], Form], Views] = OrderedDict()
        self._process_ids = itertools.count(1)
        self._save_wanted = asyncio.Event()
        self._linking = asyncio.Lock()
        self._answering = answering or ThreadPoolExecutor(1, thread_name_prefix="catalog")
        self._ended = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._tail: threading.Thread | None = None
        self._learnt = 0  # the last segment that was searched for shapes
        self.loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self.loop.create_future()

    async def __aenter__(self) -> Serving:
        """Begin to follow the log."""
        await self.in_thread(self._settle_links)
        await self.snapshots.clear()
        if await self.in_thread(self._learn_kept):
            await self.answer(self._on_shapes)
        loop = asyncio.get_running_loop()
        self._tail = threading.Thread(target=self._follow, args=(loop,), name="tail", daemon=True)
        self._tail.start()
        for work in (self._save_again, self._look_again):
            task = asyncio.create_task(work())
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End; confirmations are saved."""
        self._ended.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.slots.save()
        if self._tail is not None:
            await self.in_thread(self._tail.join)
        await self.in_thread(self.blocks.close)
        await self.in_thread(self._answering.shutdown)
        await self.in_thread(self.slots.close)
        self.log.close()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run blocking work in a thread."""
        return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)

    async def answer(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work in the catalogue's own thread, one piece at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._answering, work, *arguments)

    def next_process_id(self) -> int:
        """Return a number that no connection has had."""
        return next(self._process_ids)

    # -- the log ---------------------------------------------------------------------------------

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for more of the log, and report it; runs in a thread."""
        seen: Head | None = None
        while not self._ended.is_set():
            try:
                head = self.log.head()
                if head != seen:
                    loop.call_soon_threadsafe(self._note_head, head)
                    self._learn(loop)
                    seen = head
                self._learn_base(loop)
                self.log.wait(_TAIL_S)
            except PenstockError as error:
                logger.warning("the log's end is not readable", error=error.message)
                self._ended.wait(_TAIL_S)
            except Exception as error:
                # Without this thread clients would wait forever: end, to be started again.
                loop.call_soon_threadsafe(self._fail, error)
                return

    def _learn_kept(self) -> bool:
        """Learn the shapes of the segments that exist at the start."""
        first = self.log.first_kept()
        head = self.log.head()
        new = False
        for number in range(head.number if first is None else first, head.number + 1):
            with suppress(SegmentGone), self.log.segment(number, head) as segment:
                new |= self._shapes.learn(segment)
            self._learnt = number
        return new

    def _learn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Learn new shapes of the log before their rows are requested; runs in the
        tail's thread.
        """
        head, new = self.log.head(), False
        for number in range(self._learnt, head.number + 1):
            # No slot needs a segment that was removed meanwhile.
            with suppress(SegmentGone), self.log.segment(number, head) as segment:
                new |= self._shapes.learn(segment)
            self._learnt = number
        if new:
            loop.call_soon_threadsafe(self._show_shapes)

    def _learn_base(self, loop: asyncio.AbstractEventLoop) -> None:
        """Learn the base's tables that have no rows in the log yet."""
        if self._holder is None or time.monotonic() - self._base_s < _BASE_S:
            return
        self._base_s = time.monotonic()
        found = self._holder.shapes()
        if found is not None and self._shapes.begin(found):
            loop.call_soon_threadsafe(self._show_shapes)

    def _show_shapes(self) -> None:
        task = asyncio.create_task(self.answer(self._on_shapes))
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _note_head(self, head: Head) -> None:
        if head.is_before(self.head):
            return  # two threads look, and the later look may be reported first
        self.head = head
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def look(self) -> Head:
        """Return the present end of the log."""
        head = await self.in_thread(self.log.head)
        if head != self.head:
            self._note_head(head)
        return head

    def views(self, publications: Sequence[Publication], form: Form) -> Views:
        """Return the views of some publications in a form, the same for equal ones."""
        key = (tuple(publications), form)
        found = self._views.get(key)
        if found is None:
            found = Views(
                publications,
                self.head.engine,
                form=form,
                choices=self.settings.choices,
                last_known=self._shapes.of,
                table_oid=self._table_oid,
            )
            self._views[key] = found
            if len(self._views) > _VIEWS_KEPT:
                _, old = self._views.popitem(last=False)
                self.blocks.forget(old)
        self._views.move_to_end(key)
        return found

    def views_at(
        self, options: StreamOptions, place: Place, at: int
    ) -> tuple[Views, frozenset[int]]:
        """Return the views of the publications after a place, and where they change.

        Raises Refused.

        Args:
            options: of the stream.
            place: the place.
            at: LSN up to which the client has everything.
        """
        form = options.form
        if not form.by_publication:
            return self.views([everything(form.actions)], form), frozenset()
        # Changes before the client's position are skipped, whatever was published there.
        position = max(place.counted.position, at)
        then = self.publications.at(position)
        # A later publication publishes nothing up to there; a dropped one is refused.
        known = self.publications.current() | then
        names = [name for name in options.publications if name in then or name not in known]
        chosen = find_publications(then, names)
        later = frozenset(v.position for v in self.publications.versions if v.position > position)
        return self.views(chosen, form), later

    def shape_of(self, table: TableName) -> Relation | None:
        """Return a table's newest shape, as the log has it; None if it is unknown."""
        return self._shapes.of(table)

    def signal(self, process_id: int, *, terminates: bool) -> bool:
        """End a connection or its command; return whether the connection exists."""
        session = self.sessions.get(process_id)
        if session is None:
            return False
        if terminates:
            session.terminate()
        else:
            session.cancel()
        return True

    # -- slots -----------------------------------------------------------------------------------

    def save_soon(self) -> None:
        """Request a save after a confirmation."""
        self._save_wanted.set()

    async def _save_again(self) -> None:
        while True:
            await self._save_wanted.wait()
            self._save_wanted.clear()
            began_s = time.monotonic()
            await self.slots.save()
            await self.release()
            # One write for many confirmations, and at most half of the time for writing.
            await asyncio.sleep(max(0.05, time.monotonic() - began_s))

    async def release(self) -> None:
        """Remove links of segments that no slot needs; confirmations are saved."""
        async with self._linking:
            lowest = self.slots.lowest()
            await self._move_anchor(lowest)
            if lowest is None:
                await self.in_thread(self.retention.let_go)
            else:
                await self.in_thread(self.retention.release, lowest)

    async def _move_anchor(self, lowest: int | None) -> None:
        """Move the anchor, so that HYBRID_TIME needs no segment that is released next."""
        if not self.slots.needs_anchor or lowest is None:
            self.slots.set_anchor(None)
        else:
            with suppress(SegmentGone):  # the slot has lost it, which is detected elsewhere
                self.slots.set_anchor(await self.in_thread(self._anchor_at, lowest))
        await self.slots.save()

    def _anchor_at(self, position: int) -> Anchor:
        place = find_place(self.log, position)
        return self._hybrid.anchor_at(place.number, self.log.head())

    async def hybrid_end(self, number: int, trx: int) -> int:
        """Return the END of a transaction in HYBRID_TIME; see `HybridTimes`."""
        return await self.in_thread(self._hybrid.end_at, number, trx, self.head)

    async def hybrid_head(self) -> int:
        """Return the END of the log's last transaction in HYBRID_TIME."""
        return await self.in_thread(self._hybrid.head, self.head)

    async def create_slot(
        self,
        name: str,
        plugin: str,
        *,
        failover: bool,
        temporary: int,
        with_snapshot: bool = False,
        hybrid: bool = False,
    ) -> tuple[Slot, Snapshot | None]:
        """Create a durable slot at the log's end, and a snapshot of all tables there.

        The snapshot has the transactions up to the slot's position, its stream those after it.
        With `hybrid` its LSNs are commit times. Raises Refused.
        """
        snapshot: Snapshot | None = None
        if with_snapshot:  # wait for a base here, where no client waits for us
            await self.snapshots.release((await self.snapshots.take(self.look))[0])
        try:
            async with self._linking:
                # First the links: segments that are closed from here on stay. Then the end is read.
                await self.in_thread(self.retention.hold)
                if not await self.in_thread(self.retention.is_linking):
                    raise Refused(
                        "55000",
                        "segments are not held for slots: links are disabled for all consumers",
                        hint="Enable them: penstock consumers enable FILE --all",
                    )
                if with_snapshot:
                    snapshot, head = await self.snapshots.take_now(self.look)
                else:
                    head = await self.look()
                if hybrid and not self.slots.needs_anchor:
                    self.slots.set_anchor(await self.in_thread(self._hybrid.first_anchor, head))
                    self.blocks.renumber()
                slot = self.slots.create(
                    name,
                    plugin,
                    head.position,
                    failover=failover,
                    temporary=temporary,
                    hybrid_lsn=await self.in_thread(self._hybrid.head, head) if hybrid else 0,
                    time_us=head.end.commit_time_us,
                )
                try:
                    await self.slots.save()
                except BaseException:
                    self.slots.remove(slot)
                    raise
        except BaseException:
            if snapshot is not None:
                await self.snapshots.release(snapshot)
            raise
        return slot, snapshot

    async def drop_slot(self, name: str, process_id: int, *, wait: bool = False) -> None:
        """Drop a slot, durably, and release its segments. Raises Refused; see `Slots.drop`."""
        await self.slots.drop(name, process_id, wait=wait)
        await self.snapshots.slot_begins(name)
        await self.release()

    def _settle_links(self) -> None:
        if self.slots.lowest() is None:
            self.retention.let_go()
        else:
            self.retention.hold()

    async def _look_again(self) -> None:
        """Look, at intervals, for slots that have lost segments, and for orphans of tables'
        copies.
        """
        while True:
            for slot in await self.in_thread(self.retention.over, self.slots.all()):
                if slot.dropped or slot.saved.lost:
                    continue
                self.slots.lose(slot, "wal_removed")
                sender = self.senders.get(slot.owner)
                if sender is not None:
                    sender.end(Refused("55000", "terminating: the slot has held too much"))
            limit_us = round(self.settings.sync_slot_s * 1e6)
            now_us = REAL_CLOCK.now_us()
            for slot in self.slots.all():
                unasked_us = now_us - slot.saved.asked_us
                if slot.is_sync and not slot.owner and unasked_us > limit_us:
                    logger.warning("slot of an abandoned copy dropped", slot=slot.saved.name)
                    self.slots.remove(slot)
                    await self.snapshots.slot_begins(slot.saved.name)
            if not self.slots.is_saved:
                await self.slots.save()
                await self.release()
            await asyncio.sleep(_LOOK_S)

    # -- rows for a DBA: `answers.ServerState`, from any thread ------------------------------------

    def slot_rows(self) -> Sequence[SlotRow]:
        """Return all slots."""
        is_yugabyte = self.settings.dialect == YUGABYTE
        keep = self.settings.keep_bytes
        return [
            slot_row(
                slot,
                held_bytes=self.retention.held_bytes(slot.saved.confirmed),
                keep_bytes=keep,
                restart_ht=self._restart_ht(slot) if is_yugabyte else None,
            )
            for slot in self.slots.all()
        ]

    def _restart_ht(self, slot: Slot) -> int:
        """Return the hybrid time up to which a slot has confirmed everything.

        Before its first stream that is its snapshot's name. If it has all of the log, it moves on
        with the extractor's time, even while the source is idle.
        """
        snapshot = self.snapshots.time_of(slot.saved.name)
        if snapshot is not None:
            return snapshot
        known_us = self.known_us()  # before the log's end is read, which may grow meanwhile
        if slot.saved.confirmed >= self.log.head().position:
            return hybrid_time(max(known_us, slot.saved.confirmed_us))
        return hybrid_time(slot.saved.confirmed_us)

    def sender_rows(self) -> Sequence[SenderRow]:
        """Return all clients that stream."""
        return [
            sender_row(self.clients[pid], sender.progress)
            for pid, sender in list(self.senders.items())
            if pid in self.clients
        ]

    def connection_rows(self) -> Sequence[ConnectionRow]:
        """Return all connections."""
        return [connection_row(client) for client in list(self.clients.values())]
