"""Sessions of a database for the threads that work with it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from penstock.model import PenstockError

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Opens(Protocol[S_co]):
    """Database that has sessions."""

    def open_session(self) -> AbstractContextManager[S_co]:
        """Return a session, for a with block."""
        ...


class Sessions(Generic[S]):
    """Sessions, each opened when it is first needed and lent to one thread at a time."""

    def __init__(self, database: Opens[S], count: int) -> None:
        """Prepare. count: the greatest number of sessions; a thread that needs one more waits."""
        self._database = database
        self._free: queue.LifoQueue[tuple[ExitStack, S] | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)
        self._count = count
        self._closing = threading.Lock()

    def __enter__(self) -> Self:
        """Return itself; nothing is opened yet."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Wait until no thread has a session, and close them."""
        with self._closing, ExitStack() as stack:
            for _ in range(self._count):
                held = self._free.get()
                if held is not None:
                    stack.push(held[0])

    @contextmanager
    def session(self) -> Iterator[S]:
        """Lend a session; it is closed if the block fails, perhaps because of the connection."""
        held = self._free.get()
        kept = held
        try:
            if held is None:
                stack = ExitStack()
                held = stack, stack.enter_context(self._database.open_session())
            kept = held
            try:
                yield held[1]
            except BaseException as error:
                if not isinstance(error, PenstockError) or error.retry == "backoff":
                    kept = None
                    held[0].close()
                raise
        finally:
            self._free.put(kept)
