"""Connections that a worker keeps between tasks: one for each process, thread and URL.

No connection is used by two threads, nor closed under another's hands; a forked child opens its
own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """Connection as it is kept here."""

    def close(self) -> None:
        """Close the connection."""
        ...


C = TypeVar("C", bound=Closable)


class WorkerConnections(Generic[C]):
    """Connections of the workers of one engine."""

    def __init__(self, open_connection: Callable[[str], C]) -> None:
        """Keep the function that connects to a URL."""
        self._open = open_connection
        self._kept: dict[tuple[int, int, str], C] = {}

    def get(self, url: str) -> C:
        """Return the calling worker's connection; it is opened if there is none.

        A worker serves one target at a time, so its connections to others are closed.
        """
        place = _place(url)
        if place not in self._kept:
            for *here, other in list(self._kept):
                if tuple(here) == place[:2]:
                    self.forget(other)
            self._kept[place] = self._open(url)
        return self._kept[place]

    def forget(self, url: str) -> None:
        """Drop the calling worker's connection after an error."""
        connection = self._kept.pop(_place(url), None)
        if connection is not None:
            connection.close()


def _place(url: str) -> tuple[int, int, str]:
    return os.getpid(), threading.get_ident(), url
