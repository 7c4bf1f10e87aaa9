"""A clock that tests set."""

from __future__ import annotations


class Hands:
    """Stands still until it is set; both clocks show the same moment."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def monotonic_s(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return int(self.now_s * 1e6)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
