"""Frequency of looks at the catalogue: the cheaper a look is, the more there are."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.engines.postgres.source.table_actions import TableActions
from penstock.model import TableName


class Watch:
    """Fake catalogue: each look takes its time."""

    pending_count = 0
    changed = False

    def awaiting(self) -> dict[TableName, str]:
        """Return no table that has to be read again."""
        return {}

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s
        self.now_s = 100.0
        self.looks: list[float] = []

    def poll(self) -> int:
        """Note the time of this look, which takes `cost_s`; return that nothing was found."""
        self.looks.append(self.now_s)
        self.now_s += self.cost_s
        return 0

    def monotonic_s(self) -> float:
        """Return the time: it is the clock, too."""
        return self.now_s


@pytest.mark.parametrize(
    ("cost_s", "interval_s", "expected_s"),
    [(0.004, 10.0, 1.0), (0.05, 10.0, 5.0), (3.0, 10.0, 10.0), (0.004, 0.1, 0.1)],
)
def test_looks_take_a_hundredth_of_the_time(
    cost_s: float, interval_s: float, expected_s: float
) -> None:
    """Looks are between a second and the interval apart; a requested one is immediate."""
    watch: Any = Watch(cost_s)
    actions = TableActions(
        "", watch, watch, save=lambda _: None, interval_s=interval_s, clock=watch
    )
    actions.look()
    while len(watch.looks) < 3:
        watch.now_s += expected_s / 50
        actions.look()
    pauses = [after - before for before, after in zip(watch.looks, watch.looks[1:], strict=False)]
    assert pauses == [pytest.approx(expected_s, rel=0.05)] * 2
    actions.look(at_once=True)
    assert len(watch.looks) == 4
