"""Retiring: in steps with rests, under the lease, with retries after errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.feeds.staging import FakeStaging
from harness.feeds.staging_database import GROUP, LINES, ORDERS, at, batch, change
from penstock.feeds.position import lease_lost
from penstock.feeds.retire import AGAIN_S, FROM_START_S, INTERVAL_S, REST, Retiring
from penstock.host.errors import ConnectionLost
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.feeds import StagedTable

DAY_S = 86_400


@dataclass
class Time:
    """A clock that advances with waits, and with work in the staging database."""

    now_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return round(self.now_s * 1e6)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class SlowStaging(FakeStaging):
    """A database whose deletions take a second. retired: start and row count of each deletion.

    Like a session, it continues where it was; fails: errors that the next deletions raise.
    """

    time: Time = field(default_factory=Time)
    retired: list[tuple[float, int]] = field(default_factory=list)
    fails: list[Exception] = field(default_factory=list)

    def retire(self, table: StagedTable, before: Hlc) -> int:
        if self.fails:
            raise self.fails.pop()
        began_s = self.time.now_s
        count = super().retire(table, before)
        if count:
            self.time.now_s += 1.0
            self.retired.append((began_s, count))
        return count


def run(
    staging: SlowStaging, until_s: float, check: Callable[[], None] = lambda: None
) -> list[float]:
    """Retire until a time; return when each rest began."""
    retiring = Retiring(staging, GROUP, after_s=DAY_S, check=check, clock=staging.time)
    rests = []

    def wait(seconds: float) -> bool:
        rests.append(staging.time.now_s)
        staging.time.sleep(seconds)
        return staging.time.now_s >= until_s

    retiring.run(wait)
    return rests


def stage_days(through: Hlc) -> SlowStaging:
    """Return rows of days, all applied through a time."""
    staging = SlowStaging(retire_rows_max=2)
    old = [change(number, key=number) for number in range(1, 6)]
    young = [change(6, key=6), change(DAY_S, key=7)]
    staging.stage({ORDERS: batch(*old, *young), LINES: batch(change(1))})
    staging.advance(GROUP, "shop.public", through)
    staging.mark_applied_through([ORDERS, LINES], through, after=ZERO)
    staging.commit(GROUP, through)
    return staging


def list_left(staging: FakeStaging) -> list[str]:
    """Return the keys of orders that are there."""
    return [row.mutation.key for row in staging.tables[ORDERS].values()]


def test_retiring_rests() -> None:
    """A step deletes few rows of each table, then rests several times as long as it took."""
    staging = stage_days(at(DAY_S + 6))
    run(staging, until_s=INTERVAL_S)
    assert list_left(staging) == ["[6]", "[7]"]
    assert [count for _, count in staging.retired] == [1, 2, 2, 1]
    (_, _), (first_s, _), (second_s, _), (third_s, _) = staging.retired
    assert second_s - (first_s + 1) >= 2 * REST
    assert third_s - (second_s + 1) >= REST


def test_what_is_committed_later_is_retired_later() -> None:
    """Retiring runs each minute, and follows the checkpoint, not the clock."""
    staging = stage_days(at(DAY_S + 3))
    run(staging, until_s=INTERVAL_S)
    assert list_left(staging) == ["[3]", "[4]", "[5]", "[6]", "[7]"]
    staging.commit(GROUP, at(DAY_S + 3))
    run(staging, until_s=3 * INTERVAL_S)
    assert len(list_left(staging)) == 5
    staging.advance(GROUP, "shop.public", at(DAY_S + 7))
    staging.commit(GROUP, at(DAY_S + 7))
    run(staging, until_s=5 * INTERVAL_S)
    assert list_left(staging) == ["[7]"]


def test_an_error_of_the_staging_database_is_tried_again() -> None:
    """The retry has a new session."""
    staging = stage_days(at(DAY_S + 6))
    staging.fails = [ConnectionLost("gone", hint="Wait."), ConnectionLost("gone", hint="Wait.")]
    run(staging, until_s=2 * AGAIN_S + INTERVAL_S)
    assert staging.fails == []
    assert list_left(staging) == ["[6]", "[7]"]


def test_without_the_lease_nothing_is_retired() -> None:
    """The holder of the lease retires."""
    staging = stage_days(at(DAY_S + 6))

    def check() -> None:
        if staging.retired:
            raise lease_lost("sequtil.Lease.shop.public", "another instance has taken it away")

    run(staging, until_s=10 * INTERVAL_S, check=check)
    assert len(staging.retired) == 2  # of two tables, in one step
    assert staging.time.now_s < INTERVAL_S


def test_now_and_then_everything_is_looked_at() -> None:
    """A new session does it: a row that a feed sends again may be older than retired ones."""
    opened = []

    class Counting(SlowStaging):
        def open_session(self):  # type: ignore[no-untyped-def]
            opened.append(self.time.now_s)
            return super().open_session()

    staging = Counting()
    run(staging, until_s=3 * FROM_START_S)
    assert len(opened) == 3


def test_old_checkpoints_are_forgotten() -> None:
    """Checkpoints are kept as long as rows; otherwise the table would grow for ever."""
    staging = stage_days(at(3))
    for day in (1, 2, 3):
        staging.advance(GROUP, "shop.public", at(day * DAY_S))
        staging.commit(GROUP, at(day * DAY_S))
    run(staging, until_s=INTERVAL_S)
    times = sorted(time for _, time, _ in staging.checkpoints["shop.public"] if time > Hlc(1, 1))
    assert times == [at(2 * DAY_S), at(3 * DAY_S)]
    assert staging.window(GROUP).committed == at(3 * DAY_S)
