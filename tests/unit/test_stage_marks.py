"""Marking what the target has, and retiring in steps between two looks at the target."""

from __future__ import annotations

from dataclasses import dataclass, field

from fix_staging import FakeStaging
from fix_staging_database import GROUP, LINES, ORDERS, at, batch, change
from penstock.model.hlc import Hlc
from penstock.ports.progress import Applied
from penstock.ports.stage_groups import position_behind
from penstock.stage.consistent.marks import RETIRE_INTERVAL_S, RETIRE_REST, Marking

DAY_S = 86_400


@dataclass
class Time:
    """A clock that goes on when somebody waits, or works in the staging database."""

    now_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return round(self.now_s * 1e6)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Target:
    """The progress of a target that has everything through a time."""

    through: Hlc

    def read_shared(self, _log_id: str) -> Applied:
        return Applied(position=position_behind(self.through), segment=1, gsn=1, trx=1)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class SlowStaging(FakeStaging):
    """Deleting takes a second. retired: of each deletion when it began, and of how many rows."""

    time: Time = field(default_factory=Time)
    retired: list[tuple[float, int]] = field(default_factory=list)

    def retire(self, table, before):  # type: ignore[no-untyped-def]
        began_s = self.time.now_s
        count = super().retire(table, before)
        if count:
            self.time.now_s += 1.0
            self.retired.append((began_s, count))
        return count


def run(staging: SlowStaging, target: Target, until_s: float) -> list[float]:
    """Mark until a time; when marking had done a round."""
    marking = Marking(
        staging,  # type: ignore[arg-type]
        GROUP,
        "log",
        target=lambda: target,  # type: ignore[arg-type,return-value]
        retire_after_s=DAY_S,
        clock=staging.time,
    )
    rounds = []

    def wait(seconds: float) -> bool:
        rounds.append(staging.time.now_s)
        staging.time.sleep(seconds)
        return staging.time.now_s >= until_s

    marking.run(wait)
    return rounds


def test_retiring_rests_and_marking_goes_on() -> None:
    """A step deletes few rows of each table; then the work has several times as long as it took."""
    staging = SlowStaging(retire_rows_max=2)
    staging.prepare([ORDERS, LINES])
    old = [change(number, key=number) for number in range(1, 6)]
    young = [change(6, key=6), change(DAY_S, key=7)]
    staging.stage({ORDERS: batch(*old, *young), LINES: batch(change(1))})
    staging.advance(GROUP, "shop.public", at(DAY_S + 6))
    rounds = run(staging, Target(at(DAY_S + 6)), until_s=RETIRE_INTERVAL_S)
    assert staging.window(GROUP).committed == at(DAY_S + 6)
    assert [row.mutation for row in staging.tables[ORDERS].values()] == young
    assert [count for _, count in staging.retired] == [1, 2, 2, 1]
    (_, _), (first_s, _), (second_s, _), (third_s, _) = staging.retired
    assert second_s - (first_s + 1) >= 2 * RETIRE_REST
    assert third_s - (second_s + 1) >= RETIRE_REST
    assert sum(first_s + 1 <= one < second_s for one in rounds) > 2 * RETIRE_REST
