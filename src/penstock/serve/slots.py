"""Replication slots: the confirmed position of each client, and the links of segments it needs.

All slots are one part of the state file. It is replaced durably: before a slot that is created or
dropped is acknowledged, and before a segment that a client has confirmed is released. Only the
event loop's thread uses it, except for `save`.

The server is one consumer of the log, whatever the number of its slots. While it has no slot it
gets no links, so no segment is held needlessly.
"""

from __future__ import annotations

import asyncio
import re
import threading
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgwire_server import Refused
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.log import links
from penstock.log.layout import list_segments
from penstock.serve.hybrid import HYBRID_TIME, SEQUENCE, Anchor
from penstock.serve.saved_state import SLOTS, SavedState
from penstock.serve.source_log import SegmentGone, SourceLog

_SYNC_SLOT = re.compile(r"pg_\d+_sync_\d+_\d+")
faults.declare("serve.slots.before", "serve.slots.after")
logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSlot:
    """Slot as the state file has it. Positions are LSNs.

    Attributes:
        confirmed: the client has everything before it; never goes back. Always of SEQUENCE, as the
            log counts; for a slot of HYBRID_TIME no higher than what the client has.
        lost: why it cannot be streamed from; empty if it can.
        asked_us: when a client last used it.
        lsn_type: type of its clients' LSNs.
        confirmed_lsn: the confirmed LSN in its own numbers, 0 for SEQUENCE.
        confirmed_us: when the last transaction up to there was committed, 0 if unknown.
        stream_id: unique to this slot.
    """

    name: str
    plugin: str
    confirmed: int
    failover: bool = False
    lost: str = ""
    asked_us: int = 0
    lsn_type: str = SEQUENCE
    confirmed_lsn: int = 0
    confirmed_us: int = 0
    stream_id: str = ""

    @property
    def is_hybrid(self) -> bool:
        """Return whether its clients' LSNs are commit times."""
        return self.lsn_type == HYBRID_TIME

    @property
    def lsn(self) -> int:
        """Confirmed LSN, as clients write it."""
        return self.confirmed_lsn if self.is_hybrid else self.confirmed

    @property
    def lsn_text(self) -> str:
        """Return `lsn` as clients write it: `0/1000042`."""
        return str(Lsn(self.lsn))


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSlots:
    """Part of the state file.

    Attributes:
        anchor: of LSNs of HYBRID_TIME, if a slot has such.
    """

    slots: list[SavedSlot] = field(default_factory=list)
    anchor: Anchor | None = None


@dataclass(slots=True, kw_only=True)
class Slot:
    """Slot of the running server.

    Attributes:
        owner: process id of the connection that streams from it, 0 for none.
        temporary: process id of the connection that it ends with, 0 for a permanent one.
        free: set while it has no owner.
        dropped: it is gone; connections that wait for it see this.
    """

    saved: SavedSlot
    owner: int = 0
    temporary: int = 0
    inactive_us: int = 0
    dropped: bool = False
    free: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_sync(self) -> bool:
        """Return whether a subscriber created the slot to copy one table."""
        return _SYNC_SLOT.fullmatch(self.saved.name) is not None


class Slots:
    """All slots of one log."""

    def __init__(
        self,
        state: SavedState,
        *,
        slots_max: int,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Load the slots. Raises CheckpointCorrupt."""
        self._state, self._clock, self._slots_max = state, clock, slots_max
        saved = state.load(SLOTS, SavedSlots) or SavedSlots()
        now = clock.now_us()
        # While the server was stopped no client could ask, so ages start again.
        self.anchor = saved.anchor
        self._slots = {
            one.name: Slot(saved=replace(one, asked_us=now), inactive_us=now) for one in saved.slots
        }
        for slot in self._slots.values():
            slot.free.set()
        self._saving = asyncio.Lock()
        # One at a time, even if the task that waits for it was cancelled.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="slots")
        self._changes, self._written = 0, 0

    def all(self) -> list[Slot]:
        """Return all slots, by name; other threads call it, too."""
        return sorted(self._slots.values(), key=lambda slot: slot.saved.name)

    def get(self, name: str) -> Slot:
        """Return a slot, and note that it is used now. Raises Refused: 42704."""
        slot = self._slots.get(name)
        if slot is None:
            raise Refused("42704", f'replication slot "{name}" does not exist')
        slot.saved = replace(slot.saved, asked_us=self._clock.now_us())
        return slot

    def create(
        self,
        name: str,
        plugin: str,
        position: int,
        *,
        failover: bool = False,
        temporary: int = 0,
        hybrid_lsn: int = 0,
        time_us: int = 0,
    ) -> Slot:
        """Create a slot at a position; `save` makes it durable. Raises Refused: 42710, 53400.

        Args:
            name: the name.
            plugin: the output plugin.
            position: the position.
            failover: the option.
            temporary: as in Slot.
            hybrid_lsn: the position in numbers of HYBRID_TIME; 0 for a slot of SEQUENCE.
            time_us: when the last transaction up to there was committed.
        """
        if name in self._slots:
            raise Refused("42710", f'replication slot "{name}" already exists')
        if len(self._slots) >= self._slots_max:
            raise Refused("53400", "all replication slots are in use", hint="Free one.")
        now = self._clock.now_us()
        saved = SavedSlot(
            name=name,
            plugin=plugin,
            confirmed=position,
            failover=failover,
            asked_us=now,
            lsn_type=HYBRID_TIME if hybrid_lsn else SEQUENCE,
            confirmed_lsn=hybrid_lsn,
            confirmed_us=time_us,
            stream_id=uuid.uuid4().hex,
        )
        slot = Slot(saved=saved, temporary=temporary, inactive_us=now)
        slot.free.set()
        self._slots[name] = slot
        self._changes += 1
        return slot

    def own(self, name: str, process_id: int) -> Slot:
        """Take a slot for one stream. Raises Refused: 42704, 55006."""
        slot = self.get(name)
        self._check_mine(slot, process_id)
        if slot.owner:
            raise Refused("55006", f'replication slot "{name}" is active for PID {slot.owner}')
        slot.owner = process_id
        slot.free.clear()
        return slot

    def disown(self, slot: Slot) -> None:
        """Release a slot after its stream."""
        slot.owner, slot.inactive_us = 0, self._clock.now_us()
        slot.saved = replace(slot.saved, asked_us=slot.inactive_us)
        slot.free.set()

    async def drop(self, name: str, process_id: int, *, wait: bool) -> None:
        """Drop a slot, durably; with `wait` after its stream has ended.

        Raises Refused: 42704, 55006.
        """
        slot = self.get(name)
        self._check_mine(slot, process_id)
        while slot.owner:
            if not wait:
                raise Refused("55006", f'replication slot "{name}" is active for PID {slot.owner}')
            await slot.free.wait()
            if slot.dropped:
                raise Refused("42704", f'replication slot "{name}" does not exist')
        self.remove(slot)
        await self.save()

    def _check_mine(self, slot: Slot, process_id: int) -> None:
        if slot.temporary and slot.temporary != process_id:
            raise Refused(
                "55006",
                f'replication slot "{slot.saved.name}" is active for PID {slot.temporary}',
            )

    def remove(self, slot: Slot) -> None:
        """Remove a slot; `save` makes that durable."""
        slot.dropped = True
        del self._slots[slot.saved.name]
        slot.free.set()
        self._changes += 1

    def alter(self, name: str, *, failover: bool | None) -> None:
        """Change a slot; `save` makes it durable. Raises Refused: 42704, 55006."""
        slot = self.get(name)
        if slot.owner:
            raise Refused("55006", f'replication slot "{name}" is active for PID {slot.owner}')
        if failover is not None:
            slot.saved = replace(slot.saved, failover=failover)
            self._changes += 1

    def confirm(self, slot: Slot, lsn: int, position: int = 0, time_us: int = 0) -> None:
        """Note that the client has everything before an LSN of its own. It never goes back.

        Args:
            slot: the slot.
            lsn: the LSN.
            position: the known part of it in the log's numbers, for a slot of HYBRID_TIME.
            time_us: when the last transaction up to there was committed, 0 if unknown.
        """
        saved = slot.saved
        new = replace(
            saved,
            confirmed=max(saved.confirmed, position if saved.is_hybrid else lsn),
            confirmed_lsn=max(saved.confirmed_lsn, lsn) if saved.is_hybrid else 0,
            confirmed_us=max(saved.confirmed_us, time_us),
        )
        if new != saved:
            slot.saved = new
            self._changes += 1

    @property
    def needs_anchor(self) -> bool:
        """Return whether a slot of HYBRID_TIME exists that can be streamed from."""
        return any(one.saved.is_hybrid and not one.saved.lost for one in self._slots.values())

    def set_anchor(self, anchor: Anchor | None) -> None:
        """Set the start of the numbers of HYBRID_TIME; `save` makes it durable."""
        if anchor != self.anchor:
            self.anchor = anchor
            self._changes += 1

    def lose(self, slot: Slot, reason: str) -> None:
        """Mark a slot whose segments are gone, or which held too much."""
        slot.saved = replace(slot.saved, lost=reason)
        self._changes += 1
        logger.warning("slot lost", slot=slot.saved.name, reason=reason)

    @property
    def is_saved(self) -> bool:
        """Return whether the file has everything that is known here."""
        return self._written == self._changes

    async def save(self) -> None:
        """Write the file, durably, unless it has everything. Raises DiskFull, FileFailed."""
        async with self._saving:
            if self.is_saved:
                return
            changes = self._changes
            saved = SavedSlots(
                slots=[one.saved for one in self.all() if not one.temporary],
                anchor=self.anchor,
            )
            await asyncio.get_running_loop().run_in_executor(self._writer, self._write, saved)
            self._written = changes

    def close(self) -> None:
        """Wait for writing to end."""
        self._writer.shutdown()

    def _write(self, saved: SavedSlots) -> None:
        faults.point("serve.slots.before")
        self._state.save(SLOTS, saved)
        faults.point("serve.slots.after")

    def lowest(self, slots: Iterable[Slot] | None = None) -> int | None:
        """Return the lowest position that a slot needs; None if no slot needs any."""
        wanted = self._slots.values() if slots is None else slots
        return min((one.saved.confirmed for one in wanted if not one.saved.lost), default=None)


NAME = "serve"
"""Name of the server's directory among those of consumers."""


class Retention:
    """Links of the server. Blocking; for several threads."""

    def __init__(
        self, log: SourceLog, *, keep_bytes: int | None, files: Files = REAL_FILES
    ) -> None:
        """Set the limit of bytes that one slot may hold; None: no limit."""
        self._log, self._files = log, files
        self._keep_bytes = keep_bytes
        self._starts: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._lock = threading.RLock()

    @property
    def directory(self) -> Path:
        """Directory of the links."""
        return self._log.links

    def hold(self) -> None:
        """Let each segment that is closed from now on have a link."""
        with self._lock:
            known = links.load_consumer(self.directory, self._files)
            if known is None or not known.enabled:
                links.enable(self.directory, files=self._files)

    def is_linking(self) -> bool:
        """Return whether segments get links now, for which `cdc.disabled` must not be set."""
        return links.is_linking(self.directory, self._files)

    def let_go(self) -> None:
        """Remove all links, and get no more."""
        with self._lock:
            links.disable(self.directory, self._files)
            found = list_segments(self.directory, self._log.extension, self._files)
            if found:
                self._release(found[-1].number)

    def release(self, position: int) -> None:
        """Remove links before a position that is durably confirmed."""
        with self._lock:
            self._look()
            numbers = sorted(self._starts)
            # A segment is needed as long as the next one begins after the position.
            at = bisect_right([self._starts[n] for n in numbers], position) - 1
            if at > 0:
                self._release(numbers[at] - 1)

    def _release(self, through: int) -> None:
        links.release(
            self.directory,
            through=through,
            log_id="",  # compared when the slots were loaded
            extension=self._log.extension,
            files=self._files,
        )
        for number in [n for n in self._starts if n <= through]:
            del self._starts[number], self._sizes[number]

    def _look(self) -> None:
        for file in list_segments(self.directory, self._log.extension, self._files):
            if file.number not in self._starts:
                self._starts[file.number] = self._log.start_of(file.number)
                self._sizes[file.number] = file.path.stat().st_size

    def held_bytes(self, position: int) -> int:
        """Return the bytes that are held for a slot at a position."""
        with self._lock:
            numbers = sorted(self._starts)
            at = max(bisect_right([self._starts[n] for n in numbers], position) - 1, 0)
            return sum(self._sizes[n] for n in numbers[at:])

    def over(self, slots: Sequence[Slot]) -> list[Slot]:
        """Return the slots that cannot continue: their segments are gone, or they hold too much."""
        with self._lock:
            self._look()
        first = self._log.first_kept()
        head = self._log.head()
        found: list[Slot] = []
        for slot in slots:
            if slot.saved.lost:
                continue
            position = slot.saved.confirmed
            try:
                is_gone = position < self._log.start_of(head.number if first is None else first)
            except SegmentGone:
                is_gone = position < head.position  # the next segment has not begun
            limit = self._keep_bytes
            if is_gone or (limit is not None and self.held_bytes(position) > limit):
                found.append(slot)
        return found
