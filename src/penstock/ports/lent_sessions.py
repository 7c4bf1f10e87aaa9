"""Sessions of a verify reader, each of which is lent for one query.

A server forgets a request to cancel that arrives before the query or between two queries. So after
a cancel no session is lent, and the request is repeated until each lent session is returned. Not
here: the requests, which differ between servers (the engines' `verify.py`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from penstock.host.clock import REAL_CLOCK
from penstock.ports.verify import read_cancelled

REPEAT_S = 0.05
GIVE_UP_S = 10.0  # a server that ends no query for so long does not follow the request

Session = TypeVar("Session")


class LentSessions(Generic[Session]):
    """Sessions that several threads share."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        """Keep the sessions, which the caller closes."""
        self._free: queue.SimpleQueue[Session] = queue.SimpleQueue()
        for session in sessions:
            self._free.put(session)
        self._lent: dict[int, tuple[Session, int]] = {}  # with the thread, by the session's id
        self._changed = threading.Condition()
        self._is_cancelled = False

    @contextmanager
    def lend(self) -> Iterator[Session]:
        """Lend a session for one query, for a with block; wait until one is free.

        Raises ReadCancelled after `refuse`.
        """
        session = self._free.get()
        try:
            with self._changed:
                self.check()
                self._lent[id(session)] = session, threading.get_ident()
            yield session
        finally:
            with self._changed:
                self._lent.pop(id(session), None)
                self._changed.notify_all()
            self._free.put(session)

    def check(self) -> None:
        """Raise ReadCancelled after `refuse`."""
        if self._is_cancelled:
            raise read_cancelled()

    def refuse(self) -> tuple[Session, ...]:
        """Lend no session from now on; return the sessions that are lent."""
        with self._changed:
            self._is_cancelled = True
            return tuple(session for session, _ in self._lent.values())

    def iterate_lent(self) -> Iterator[Session]:
        """Yield each lent session, again and again until it is returned.

        Sessions that this thread has lent are yielded once: it cannot return them meanwhile. The
        iteration ends after GIVE_UP_S seconds in any case.
        """
        thread, until_s = threading.get_ident(), REAL_CLOCK.monotonic_s() + GIVE_UP_S
        with self._changed:
            lent = list(self._lent.values())
        while lent:
            yield from (session for session, _ in lent)
            with self._changed:
                self._changed.wait(REPEAT_S)
                lent = [one for one in self._lent.values() if one[1] != thread]
            if REAL_CLOCK.monotonic_s() > until_s:
                return
