"""Metrics of `penstock stage`: all published names, with the values of the databases."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.feeds.staging import SHOP, FakeStaging
from penstock.control.feeds.feed_process import Checks
from penstock.feeds.metrics import ApplyMetrics, MeteredStaging, Metrics, StagingMetrics
from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.ports.feeds import Mutation, StagedTable, batch_of

NAMES = Path(__file__).parents[1] / "data" / "staging" / "metric_names.txt"
ORDERS = StagedTable(SHOP, "orders")
NAME = "shop.public"


class Metered:
    """A staging database in memory whose calls are counted, and one session of it."""

    def __init__(self) -> None:
        self.staging = FakeStaging()
        self.metrics = Metrics()
        self.apply = ApplyMetrics(self.metrics.registry)
        self.of_staging = StagingMetrics(self.metrics.registry)
        database: Any = self.staging
        self.database = MeteredStaging(database, self.of_staging)
        with self.database.open_session() as session:
            self.session = session

    def value(self, name: str, **labels: str) -> float | None:
        """Return a metric."""
        found: float | None = self.metrics.registry.get_sample_value(name, labels)
        return found

    def of_orders(self, name: str) -> float | None:
        """Return a metric of the table orders."""
        return self.value(name, schema=NAME, table="orders")


@pytest.fixture
def metered_database() -> Metered:
    """A metered database; three rows are staged, and resolved up to the second."""
    made = Metered()
    rows = [Mutation(time=Hlc(n), key=f"[{n}]", after=None if n == 3 else b"{}") for n in (2, 3, 4)]
    made.session.stage({ORDERS: batch_of(rows)})
    made.session.advance(SHOP, NAME, Hlc(3))
    return made


def test_every_published_name_is_exposed() -> None:
    """Every name is exposed, also before any count."""
    page = Metered().metrics.expose().decode()
    exposed = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    published = set(NAMES.read_text(encoding="utf-8").split())
    assert len(published) == 51
    assert published - exposed == set()


def test_calls_are_counted(metered_database: Metered) -> None:
    """Rows are read, left out, marked, retired and committed."""
    session = metered_database.session
    (*_, last) = session.read([ORDERS], Hlc(1), Hlc(3), limit=10)
    assert last.through == Hlc(3)
    assert metered_database.of_orders("stage_select_mutations_total") == 2
    assert metered_database.of_orders("stage_read_rows") == 2
    assert (metered_database.of_orders("stage_read_lag_seconds") or 0) > 1e9
    assert (metered_database.value("stage_merge_lag_seconds", schema=NAME) or 0) > 1e9
    done = session.mark_applied_through([ORDERS], Hlc(3))
    metered_database.apply.note_loaded(done, Hlc(3))
    assert metered_database.of_orders("core_sweep_apply_count") == 2
    assert metered_database.of_orders("apply_mutation_age_seconds_count") == 1
    batch = batch_of([Mutation(time=Hlc(2), key="[2]", after=b"{}")])
    assert session.unapplied_of(ORDERS, batch).num_rows == 0
    assert metered_database.of_orders("stage_filter_mutation_count") == 1
    session.mark_applied(ORDERS, batch)
    assert metered_database.of_orders("stage_mark_duration_seconds_count") == 2
    session.commit(SHOP, Hlc(3))
    assert metered_database.value("checkpoint_commit_duration_seconds_count", schema=NAME) == 1
    session.retire(ORDERS, Hlc(3))
    assert metered_database.of_orders("stage_retire_duration_seconds_count") == 1


def test_retiring_that_fails_is_counted(
    metered_database: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised, too."""

    def fails(*_: Any) -> int:
        raise PenstockError("the disk is full")

    monkeypatch.setattr(metered_database.staging, "retire", fails)
    with pytest.raises(PenstockError):
        metered_database.session.retire(ORDERS, Hlc(3))
    assert metered_database.of_orders("stage_retire_errors_total") == 1
    assert metered_database.of_orders("stage_retire_duration_seconds_count") in (None, 0)


def test_ages_are_of_the_moment_and_missing_while_unknown(metered_database: Metered) -> None:
    """A group without a commit has no age of committed rows."""
    assert metered_database.value("checkpoint_proposed_time_seconds", schema=NAME) is None
    metered_database.session.window(SHOP)
    assert metered_database.value("checkpoint_proposed_time_seconds", schema=NAME) == 3e-9
    assert metered_database.value("checkpoint_committed_age_seconds", schema=NAME) is None
    metered_database.session.commit(SHOP, Hlc(3))
    metered_database.session.window(SHOP)
    age = metered_database.value("checkpoint_committed_age_seconds", schema=NAME)
    assert age is not None
    assert age > 1e9
    assert (
        metered_database.value("target_applied_timestamp_seconds", kind="stage", schema=NAME)
        == 3e-9
    )
    metered_database.of_staging.windows.clear()
    assert metered_database.value("checkpoint_committed_age_seconds", schema=NAME) is None


def test_checks_count_what_is_stale_and_out_of_order(
    metered_database: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stale rows are unapplied and older than retired ones. Order covers only unchecked rows."""
    checks = Checks(metered_database.database, {}, metered_database.of_staging, retire_after_s=0)
    metered_database.session.commit(SHOP, Hlc(3))
    checks.count_stale(metered_database.session, SHOP)
    assert metered_database.of_orders("stage_stale_mutations_count") == 1
    asked = []

    def count(_table: StagedTable, *, after: Hlc, limit: int) -> int:
        asked.append((after, limit))
        return 2

    monkeypatch.setattr(metered_database.staging, "inconsistent_count", count)
    checks.check_order(metered_database.session, SHOP)
    checks.check_order(metered_database.session, SHOP)
    assert asked == [(Hlc(0), 100_000), (Hlc(3), 100_000)]
    assert metered_database.of_orders("stage_consistency_error_count") == 4
