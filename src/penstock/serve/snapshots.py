"""Snapshots of all tables: taken with a slot or for a transaction, exported, released.

A snapshot is the base with the log up to one position, held by links (`base/held.py`). It lives as
long as a transaction reads it or the session that exported it has given no other command.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from penstock.base.held import BaseNotReady, HeldState, Holder
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import PenstockError
from penstock.serve.catalog.answers import Session
from penstock.serve.hybrid import hybrid_time
from penstock.serve.source_log import Head

logger = structlog.get_logger(__name__)
READY_S = 30.0  # maximum wait for a base that is being read
_LOOK_S = 0.5
_REPEATABLE = ("repeatable read", "serializable")
InThread = Callable[..., Awaitable[Any]]


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """Held state.

    Attributes:
        position: its LSN.
        users: number of its users.
    """

    state: HeldState
    position: int
    users: int = 1


class Snapshots:
    """All snapshots of a server. For the event loop's thread."""

    def __init__(self, holder: Holder | None, in_thread: InThread) -> None:
        """Set the holder, None if the log has no base, and `in_thread`, which runs
        blocking work.
        """
        self._holder, self._in_thread = holder, in_thread
        self._exported: dict[str, Snapshot] = {}
        self._of_slots: dict[str, str] = {}
        self._numbers = itertools.count(1)

    async def clear(self) -> None:
        """Remove the states that an earlier process held."""
        if self._holder is not None:
            await self._in_thread(self._holder.clear)

    async def take(self, look: Callable[[], Awaitable[Head]]) -> tuple[Snapshot, Head]:
        """Return all tables at the log's end, which `look` returns. Raises Refused."""
        if self._holder is None:
            raise Refused(
                "0A000",
                "the log has no base of its tables that could be read",
                hint='A pipeline of mode "data+change" has one. Without it create the slot with '
                "SNAPSHOT 'nothing', a subscription with copy_data = false.",
            )
        loop = asyncio.get_running_loop()
        until_s = loop.time() + READY_S
        while True:
            try:
                return await self.take_now(look)
            except BaseNotReady as error:
                if loop.time() > until_s:
                    raise Refused("55000", error.message, hint=error.hint) from error
                await asyncio.sleep(_LOOK_S)

    async def take_now(self, look: Callable[[], Awaitable[Head]]) -> tuple[Snapshot, Head]:
        """Return the same without waiting for a base. Raises BaseNotReady."""
        head = await look()
        held = await self._in_thread(self._hold, head)
        return Snapshot(state=held, position=head.position), head

    def _hold(self, head: Head) -> HeldState:
        assert self._holder is not None
        return self._holder.hold(head.log_id, head.number, head.end, is_open=head.is_open)

    def export(self, snapshot: Snapshot, process_id: int) -> str:
        """Let other sessions use a snapshot; return its name."""
        name = f"{process_id:08X}-{next(self._numbers):08X}-1"
        self._exported[name] = snapshot
        return name

    def export_at_time(self, snapshot: Snapshot, slot: str) -> str:
        """Let others read at its hybrid time, until the slot is streamed from or dropped."""
        time = hybrid_time(snapshot.state.end.commit_time_us)
        while f"{time}" in self._exported:  # another snapshot, perhaps of the same moment
            time += 1
        self._exported[f"{time}"] = snapshot
        self._of_slots[slot] = f"{time}"
        return f"{time}"

    def time_of(self, slot: str) -> int | None:
        """Return the hybrid time of a slot's exported snapshot; None if it has none."""
        name = self._of_slots.get(slot)
        return None if name is None else int(name)

    async def slot_begins(self, slot: str) -> None:
        """Release the snapshot that was exported with a slot."""
        name = self._of_slots.pop(slot, None)
        if name is not None:
            await self.withdraw(name)

    def use_exported(self, name: str) -> Snapshot:
        """Return a snapshot that a session has exported, with one more user. Raises Refused."""
        found = self._exported.get(name)
        if found is None:
            raise Refused("42704", f'snapshot "{name}" does not exist')
        found.users += 1
        return found

    async def withdraw(self, name: str) -> None:
        """Withdraw an exported snapshot: no other session can begin to use it."""
        await self.release(self._exported.pop(name))

    async def release(self, snapshot: Snapshot) -> None:
        """Remove one user of a snapshot."""
        snapshot.users -= 1
        if not snapshot.users:
            try:
                await self._in_thread(snapshot.state.release)
            except PenstockError as error:
                # The next start removes the rest.
                logger.warning("snapshot not removed", error=error.message)


class SessionSnapshots:
    """Snapshots of one connection."""

    def __init__(self, snapshots: Snapshots, session: Session, process_id: int) -> None:
        """Hold nothing yet."""
        self._all, self._session, self._process_id = snapshots, session, process_id
        self._own: Snapshot | None = None
        self._exported = ""
        self._until_end: list[str] = []

    async def command_begins(self) -> None:
        """Withdraw what the previous command exported."""
        if self._exported:
            name, self._exported = self._exported, ""
            await self._all.withdraw(name)

    def export(self, snapshot: Snapshot) -> str:
        """Let other sessions use a snapshot until this one's next command; return its name."""
        self._exported = self._all.export(snapshot, self._process_id)
        return self._exported

    async def export_own(self, look: Callable[[], Awaitable[Head]]) -> str:
        """Let other sessions use this transaction's snapshot until it ends; return its name.

        Raises Refused.
        """
        name = self._all.export(await self.reading(look), self._process_id)
        self._until_end.append(name)
        return name

    async def use(self, snapshot: Snapshot) -> None:
        """Let this transaction read a snapshot."""
        await self.transaction_ends()
        self._own = snapshot

    async def statement_ends(self) -> None:
        """Take the snapshot of SET TRANSACTION; release it at a transaction's end.

        Raises Refused for one that does not exist.
        """
        session = self._session
        if session.transaction == "I":
            await self.transaction_ends()
        elif session.read_time is not None:
            time, session.read_time = session.read_time, None
            await self.transaction_ends()
            if int(time):
                await self.use(self._all.use_exported(time))
        elif session.snapshot is not None:
            name, session.snapshot = session.snapshot, None
            await self.use(self._all.use_exported(name))

    async def transaction_ends(self) -> None:
        """Release the transaction's snapshot."""
        while self._until_end:
            await self._all.withdraw(self._until_end.pop())
        if self._own is not None:
            own, self._own = self._own, None
            await self._all.release(own)

    async def reading(self, look: Callable[[], Awaitable[Head]]) -> Snapshot:
        """Return the snapshot for a query, which the caller releases. Raises Refused."""
        if self._own is None:
            taken, _ = await self._all.take(look)
            level = self._session.settings.get("transaction_isolation", "read committed")
            if self._session.transaction == "I" or level not in _REPEATABLE:
                return taken
            self._own = taken
        self._own.users += 1
        return self._own

    async def release(self, snapshot: Snapshot) -> None:
        """Release a query's snapshot."""
        await self._all.release(snapshot)

    async def close(self) -> None:
        """Release everything at the end of the connection."""
        with suppress(KeyError):
            await self.command_begins()
        await self.transaction_ends()
