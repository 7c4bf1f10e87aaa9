"""Admission of requests: limited in number and in bytes together, in the order of arrival."""

from __future__ import annotations

import asyncio
import threading
from collections import deque


class Admission:
    """Places that tickets wait for. Any thread and any event loop may use it.

    A ticket with more bytes than the limit waits until it is alone.
    """

    def __init__(self, count_max: int, bytes_max: int = 0) -> None:
        """Admit count_max tickets of bytes_max bytes together."""
        self._count_max, self._bytes_max = count_max, bytes_max
        self._lock = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._inside: set[Ticket] = set()

    @property
    def count(self) -> int:
        """Number of tickets inside."""
        return len(self._inside)

    @property
    def bytes(self) -> int:
        """Number of bytes of the tickets inside."""
        with self._lock:
            return sum(one.size for one in self._inside)

    def ticket(self, size: int = 0) -> Ticket:
        """Make a ticket, which waits after all earlier ones. For a coroutine."""
        made = Ticket(self, min(size, self._bytes_max))
        with self._lock:
            self._waiting.append(made)
        self._admit()
        return made

    def _admit(self) -> None:
        with self._lock:
            held = sum(one.size for one in self._inside)
            while self._waiting and len(self._inside) < self._count_max:
                if held + self._waiting[0].size > self._bytes_max:
                    break
                ticket = self._waiting.popleft()
                self._inside.add(ticket)
                held += ticket.size
                ticket.admit()

    def _leave(self, ticket: Ticket) -> None:
        with self._lock:
            self._inside.discard(ticket)
            if ticket in self._waiting:
                self._waiting.remove(ticket)
        self._admit()


class Ticket:
    """Place, or the wait for one. size: its bytes."""

    def __init__(self, admission: Admission, size: int) -> None:
        """Make the ticket. For a coroutine: it belongs to the event loop that runs."""
        self.size = size
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._is_inside = asyncio.Event()

    async def inside(self) -> None:
        """Wait until the ticket is admitted."""
        await self._is_inside.wait()

    def admit(self) -> None:
        """Admit the ticket. From any thread."""
        self._loop.call_soon_threadsafe(self._is_inside.set)

    def leave(self) -> None:
        """Give up the place, or the wait for it. From any thread, also twice."""
        self._admission._leave(self)
