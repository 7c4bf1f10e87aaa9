"""Work that the thread that decodes does between two transactions.

A visit is a generator. Each position that it yields is waited for: it goes on when all transactions
that commit before that position were decoded, and none behind it. Which moments these are, an
engine's assembler knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

A = TypeVar("A")


@dataclass(slots=True, kw_only=True, eq=False)
class Visit(Generic[A]):
    """One visit to an assembler. trx: the last transaction's number when it was finished."""

    steps: Callable[[A], Iterator[int]]
    finished: bool = False
    trx: int = 0
    running: Iterator[int] | None = None


class Visits(Generic[A]):
    """Visits in line. `add` may be called from any thread, the rest by the one that decodes.

    queue: whoever waits for the end of a transaction or for a position. waits_for: that position, 0
    for none.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self.waits_for = 0
        self.queue: deque[Visit[A]] = deque()

    def add(self, visit: Visit[A]) -> None:
        """Let it be done as soon as it may."""
        self.queue.append(visit)

    def go_on(self, assembler: A, trx: Callable[[], int]) -> None:
        """Begin the visit in line, or resume it: what it waits for is reached."""
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
        """The stream is over: what a visit holds is let go."""
        while self.queue:
            running = self.queue.popleft().running
            if isinstance(running, Generator):
                running.close()
