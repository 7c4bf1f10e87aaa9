"""Work that the decoding thread does between two transactions.

A visit is a generator. It waits for each position that it yields: it continues when all
transactions that commit before that position were decoded, and no later one. An engine's assembler
knows these moments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

A = TypeVar("A")


@dataclass(slots=True, kw_only=True, eq=False)
class Visit(Generic[A]):
    """Visit to an assembler. trx: the last transaction's number when it was finished."""

    steps: Callable[[A], Iterator[int]]
    finished: bool = False
    trx: int = 0
    running: Iterator[int] | None = None


class Visits(Generic[A]):
    """Queue of visits. Any thread may call `add`, the decoding thread calls the rest.

    Attributes:
        waits_for: The position that the first one waits for, 0 for none.
        queue: Visits that wait for the end of a transaction or for a position.
    """

    def __init__(self) -> None:
        """Begin with an empty queue."""
        self.waits_for = 0
        self.queue: deque[Visit[A]] = deque()

    def add(self, visit: Visit[A]) -> None:
        """Add a visit, to be done as soon as possible."""
        self.queue.append(visit)

    def go_on(self, assembler: A, trx: Callable[[], int]) -> None:
        """Begin the first visit, or resume it: the position that it waits for is reached."""
        visit = self.queue[0]
        if visit.running is None:
            visit.running = visit.steps(assembler)
        try:
            self.waits_for = next(visit.running)
        except StopIteration:
            self.waits_for = 0
            self.queue.popleft()
            visit.trx = trx()
            visit.finished = True

    def close(self) -> None:
        """End all visits, because the stream is over."""
        while self.queue:
            running = self.queue.popleft().running
            if isinstance(running, Generator):
                running.close()
