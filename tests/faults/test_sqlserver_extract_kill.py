"""An extractor of SQL Server is killed at every kind of moment, and its server fails, without any
effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.faults.extract_bench import (
    MOMENTS,
    Bench,
    cases_of,
    fail_and_go_on,
    kill_and_start_again,
    kill_at_random,
)
from harness.servers.sqlserver_place import SQLServerPlace
from plugins.sqlserver import SimServer

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
OWN_MOMENTS = (
    "changes.read.before:2",
    "changes.confirm.before:1",
    "changes.confirm.after:2",
    "changes.acknowledge.after:1",
)


class SQLServerBench(Bench[SQLServerPlace]):
    """A captured table of SQL Server."""

    def in_transaction(self, *statements: str) -> None:
        """Run statements in one transaction."""
        self.place.run(f"BEGIN TRANSACTION; {'; '.join(statements)}; COMMIT TRANSACTION")

    def add_column(self) -> None:
        """Add the column c, and capture it by a second instance."""
        super().add_column()
        self.place.capture("t", "dbo_t_2")

    def wait_written(self) -> None:
        """Wait until all changes are captured."""
        self.place.wait_captured()


@pytest.fixture
def bench(sqlserver: SimServer, tmp_path: Path) -> Iterator[SQLServerBench]:
    """A table, and a log that begins before its first row."""
    made = SQLServerBench(SQLServerPlace(sqlserver), tmp_path, "sqlserver-tables.json")
    assert made.extract() == 0
    yield made
    made.place.drop()


@pytest.mark.promise
@pytest.mark.parametrize(("moment", "is_exact"), cases_of((*MOMENTS, *OWN_MOMENTS)))
def test_killed_and_started_again(bench: SQLServerBench, moment: str, *, is_exact: bool) -> None:
    """Every row comes once and in order, even if only an older state is left."""
    kill_and_start_again(bench, moment, is_exact=is_exact)


@pytest.mark.promise
def test_killed_again_and_again(bench: SQLServerBench) -> None:
    """Every row comes once and in order after kills at random moments."""
    kill_at_random(bench)


FAILURES: dict[str, Callable[[SQLServerPlace], Any]] = {
    "deadlock victim": lambda place: place.run(
        "EXEC sim.fail_next @number = 1205, @like = N'_CT', @times = 2"
    ),
    "connection cut while rows are read": lambda place: place.run(
        "EXEC sim.fail_next @number = 0, @like = N'_CT', @times = 2"
    ),
    "connection cut at the check": lambda place: place.run(
        "EXEC sim.fail_next @number = 0, @like = N'change_tables', @times = 2, @after = 3"
    ),
    "fail-over": lambda place: place.run("EXEC sim.fail_over 0"),
    "Agent stopped and started": lambda place: place.run("EXEC sim.stop_agent"),
    "range refused": lambda place: place.run(
        "EXEC sim.fail_next @number = 313, @like = N'_CT', @times = 1"
    ),
}


@pytest.mark.promise
@pytest.mark.parametrize("failure", list(FAILURES))
def test_a_server_that_fails(bench: SQLServerBench, failure: str) -> None:
    """The extraction continues without a new start, and every row comes once and in order."""

    def fail() -> None:
        run = bench.place.run
        FAILURES[failure](bench.place)
        if failure == "Agent stopped and started":
            run("insert into t values (90001, 'unseen', null)")
            time.sleep(1.5)
            run("EXEC sim.start_agent")
        if failure == "fail-over":
            run(
                "EXEC sys.sp_cdc_add_job @job_type = N'capture'; "
                "EXEC sys.sp_cdc_add_job @job_type = N'cleanup'"
            )

    fail_and_go_on(bench, fail)
