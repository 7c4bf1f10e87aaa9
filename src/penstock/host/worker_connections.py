"""Connections that a worker keeps between tasks: one for each process, thread and URL.

No connection is used by two threads, nor closed under another's hands; a forked child opens its
own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """Connection as it is kept here."""

    def close(self) -> None:
        """Close the connection."""
        ...


C = TypeVar("C", bound=Closable)
IDLE_S = 60.0  # Spark ends a worker that had no task for as long


class WorkerConnections(Generic[C]):
    """Connections of the workers of one engine."""

    def __init__(
        self,
        open_connection: Callable[[str], C],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep the function that connects to a URL. clock_s: returns the time in seconds."""
        self._open = open_connection
        self._clock_s = clock_s
        self._kept: dict[tuple[int, int, str], C] = {}
        self._used_s: dict[tuple[int, int, str], float] = {}

    def get(self, url: str) -> C:
        """Return the calling worker's connection; it is opened if there is none.

        A worker of several pipelines has one to each target. Those that it has not used for a
        minute are closed.
        """
        place, now_s = _place(url), self._clock_s()
        for kept in list(self._kept):
            is_idle = now_s - self._used_s[kept] > IDLE_S
            if kept[:2] == place[:2] and kept != place and is_idle:
                self.forget(kept[2])
        if place not in self._kept:
            self._kept[place] = self._open(url)
        self._used_s[place] = now_s
        return self._kept[place]

    def forget(self, url: str) -> None:
        """Drop the calling worker's connection after an error."""
        place = _place(url)
        self._used_s.pop(place, None)
        connection = self._kept.pop(place, None)
        if connection is not None:
            connection.close()


def _place(url: str) -> tuple[int, int, str]:
    return os.getpid(), threading.get_ident(), url
