"""Processes of a follower of an arena's log: restarted, and killed now and then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from harness.pipelines.ddl_child import Child

ERRORS_MAX = 5
DISTURBED = 0.15


class Mark(NamedTuple):
    """Facts that followers need about the DDL of a table.

    Attributes:
        fence: name of the table of fences.
        number: of its row after the last DDL that may concern the table.
    """

    fence: str
    number: int


class Processes:
    """Processes of a follower.

    Attributes:
        error: Last error, once too many processes ended with one.
    """

    def __init__(self, children: Sequence[Child], dice: random.Random) -> None:
        """Prepare; children are not started yet, dice chooses the kills."""
        self._children, self._dice = children, dice
        self._error_count = 0
        self.error = ""

    def start(self) -> None:
        """Start all processes."""
        for child in self._children:
            child.start()

    def tend(self) -> None:
        """Start ended processes again."""
        for child in self._children:
            if child.code is None or self.error:
                continue
            if child.code > 0:
                self._error_count += 1
                if self._error_count >= ERRORS_MAX:
                    self.error = f"{child.name}: {child.error['code']} {child.error['error']}"
                    return
            child.start()

    def disturb(self) -> None:
        """Kill one of them now and then."""
        if self._children and self._dice.random() < DISTURBED:
            self._dice.choice(self._children).kill()

    def close(self) -> None:
        """Kill all processes."""
        for child in self._children:
            child.kill()
