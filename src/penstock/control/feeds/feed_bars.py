"""Progress of a target schema that is far behind, with rates and the time to go. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.control.feeds.feed_status import SchemaStatus
from penstock.control.pipeline.display import human_count, human_seconds

RATE_WINDOW_S = 15.0
NOT_YET_ALL = 0.99  # while something waits, even if it is a small part


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Applied share of staged rows. A value of None is not known.

    Attributes:
        staged_per_s: Over the last RATE_WINDOW_S.
        applied_per_s: Over the last RATE_WINDOW_S.
        eta_s: Until no row waits, at the pace at which waiting rows become fewer; None if they do
            not.
        is_estimate: The values are from a sample.
        is_far_behind: A bar is worth showing.
    """

    applied: int
    staged: int
    staged_per_s: float | None = None
    applied_per_s: float | None = None
    eta_s: float | None = None
    is_estimate: bool = False
    is_far_behind: bool = False

    @property
    def share(self) -> float:
        """Finished share, 0 to 1; 1 only if no row waits."""
        if self.applied >= self.staged:
            return 1.0
        return min(self.applied / self.staged, NOT_YET_ALL)

    @property
    def words(self) -> str:
        """Text for people: rows, rate and time to go."""
        about = "about " if self.is_estimate else ""
        rows = f"{human_count(self.applied)} of {about}{human_count(self.staged)} rows applied"
        return ", ".join(filter(None, (rows, _rate(self.applied_per_s), self.to_go)))

    @property
    def to_go(self) -> str:
        """Return the time to go for people; empty if it is not known."""
        if self.share == 1.0:
            return "nothing waits"
        return "" if self.eta_s is None else f"{human_seconds(self.eta_s)} to go"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "applied": self.applied,
            "staged": self.staged,
            "staged_per_s": self.staged_per_s,
            "applied_per_s": self.applied_per_s,
            "eta_s": self.eta_s,
            "is_estimate": self.is_estimate,
            "is_far_behind": self.is_far_behind,
        }


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{human_count(per_s)} rows/s"


class BarMeter:
    """Calculator of bars from readings at some moments."""

    def __init__(self) -> None:
        """Begin without readings."""
        self._seen: dict[str, deque[tuple[float, int, int]]] = {}

    def add(self, now_s: float, schemas: Sequence[SchemaStatus]) -> dict[str, Bar]:
        """Return one bar for each schema whose rows are known. now_s: monotonic."""
        bars = {}
        for schema in schemas:
            staged, waiting = schema.rows, schema.waiting
            if staged is None or waiting is None:
                self._seen.pop(schema.name, None)
                continue
            bars[schema.name] = self._bar(now_s, schema, staged, waiting)
        for name in self._seen.keys() - {schema.name for schema in schemas}:
            del self._seen[name]
        return bars

    def _bar(self, now_s: float, schema: SchemaStatus, staged: int, waiting: int) -> Bar:
        seen = self._seen.setdefault(schema.name, deque())
        if seen and staged < seen[-1][1]:
            seen.clear()  # rows were retired: rows staged and applied since are not known
        seen.append((now_s, staged, waiting))
        while len(seen) > 2 and now_s - seen[0][0] > RATE_WINDOW_S:
            seen.popleft()
        then_s, staged_then, waiting_then = seen[0]
        span_s = now_s - then_s
        bar = Bar(
            applied=staged - waiting,
            staged=staged,
            is_estimate=schema.is_estimate,
            is_far_behind=schema.is_far_behind,
        )
        if span_s <= 0:
            return bar
        staged_per_s = (staged - staged_then) / span_s
        fewer_per_s = (waiting_then - waiting) / span_s
        return replace(
            bar,
            staged_per_s=staged_per_s,
            applied_per_s=max(0.0, staged_per_s + fewer_per_s),
            eta_s=waiting / fewer_per_s if fewer_per_s > 0 else 0.0 if not waiting else None,
        )
