"""Executors of a cluster are killed in the middle of a task: the load goes on and ends equal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.faults.kills import POSTGRES, BankPipeline, Half
from harness.pipelines.bulk import rows
from harness.pipelines.mysql_bulk import fill_orders
from harness.pipelines.pipeline import pipeline
from penstock.load.ledger import read_ledger
from penstock.load.loader_state import read_loader_state
from plugins.cluster import CLUSTER, CONF
from plugins.mysql import MySQLServer, database_of

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("cluster_home"),
]

TIMEOUT_S = 300.0
SUMS = "count(*), count(distinct note), sum(id), min(id), sum(total)"
LONG = pytest.mark.long
POINTS = (
    "load.copy.before",
    "load.copy.after",  # rows are committed, but no process knows
    "bulk.chunk.copied",
    "bulk.chunk.committed",
)


def kill_executors(half: Half) -> None:
    """Kill all executors and nothing else: the session goes on."""
    driver, *executors = half.descendants("java")
    assert executors
    for executor in executors:
        executor.kill()
    assert driver.is_running()


def begun_anew(directory: Path) -> bool:
    """Return whether a snapshot was lost, according to load's log; a table truncated alone is not
    one.
    """
    log = (directory / "run" / "load.log").read_text()
    assert "bulk table copied" in log
    return "loaded again from the start" in log


def batch_count(pipeline: BankPipeline) -> int:
    """Return the number of batches that the load process has applied."""
    state = read_loader_state(pipeline.directory / "run")
    return state.batch_count if state is not None else 0


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    "target", [POSTGRES, pytest.param("mariadb", marks=LONG), pytest.param("mysql", marks=LONG)]
)
def test_all_executors_are_killed_in_a_task(tmp_path: Path, point: str, target: str) -> None:
    """The load goes on without any action, and no table is loaded again."""
    sections = {"spark": CLUSTER, "spark.conf": CONF}
    with BankPipeline(tmp_path, 1901, target=target, sections=sections) as pipeline:
        pipeline.extract.start()
        log = pipeline.directory / "log"  # created once the slot exists, which load checks
        pipeline.until(lambda: log.is_dir() and any(log.iterdir()), "the log")
        pipeline.load.start(f"{point}:1:sleep")
        pipeline.until(lambda: pipeline.load.has_reached, point, TIMEOUT_S)
        kill_executors(pipeline.load)
        pipeline.transactions_go_on()
        before = batch_count(pipeline)
        pipeline.until(lambda: batch_count(pipeline) > before + 1, "more batches")
        assert pipeline.load.running
        assert not begun_anew(pipeline.directory)
        pipeline.finish()


def test_executors_come_with_work_and_go_without_it(tmp_path: Path) -> None:
    """Dynamic allocation: there are no executors between batches, and two while there is work."""
    allocation = {
        "enabled": "true",
        "shuffleTracking.enabled": "true",
        "minExecutors": "0",
        "maxExecutors": "2",
        "executorIdleTimeout": "1s",
        "schedulerBacklogTimeout": "1s",
        "sustainedSchedulerBacklogTimeout": "1s",
    }
    conf = {f"spark.dynamicAllocation.{name}": value for name, value in allocation.items()}
    sections = {"spark": CLUSTER, "spark.conf": {**CONF, **conf}}
    with BankPipeline(tmp_path, 1904, sections=sections) as pipeline:

        def executors() -> int:
            return len(pipeline.load.descendants("java")[1:])

        pipeline.extract.start()
        log = pipeline.directory / "log"  # created once the slot exists, which load checks
        pipeline.until(lambda: log.is_dir() and any(log.iterdir()), "the log")
        pipeline.load.start()
        pipeline.until(lambda: executors() == 2, "two executors for the first tasks", TIMEOUT_S)
        pipeline.bank.pause_s = 10.0
        for _ in range(2):
            before = batch_count(pipeline)
            pipeline.until(lambda n=before: batch_count(pipeline) > n, "a batch", TIMEOUT_S)
            pipeline.until(lambda: executors() == 0, "executors are given back", TIMEOUT_S)
        pipeline.finish()


@pytest.mark.parametrize("source", ["mariadb", "mysql"])
def test_executors_that_read_through_the_driver_are_killed(
    tmp_path: Path, lending: dict[str, str], source: str
) -> None:
    """Executors that read MySQL and MariaDB through sessions at this machine's address are
    replaced.
    """
    sections = {"spark": {**CLUSTER, **lending}, "spark.conf": CONF}
    with BankPipeline(tmp_path, 1903, source=source, sections=sections) as pipeline:
        pipeline.extract.start()
        handover = pipeline.directory / "state" / "handover.json"
        pipeline.until(lambda: handover.exists() and "snapshot_id" in handover.read_text(), "point")
        pipeline.load.start("bulk.chunk.reading:1:sleep")
        pipeline.until(lambda: pipeline.load.has_reached, "rows that are read", TIMEOUT_S)
        assert f'"{lending["snapshotAddress"]}:' in handover.read_text()
        kill_executors(pipeline.load)
        state = pipeline.directory / "state"
        pipeline.until(lambda: read_ledger(state).finished, "all rows", TIMEOUT_S)
        assert not begun_anew(pipeline.directory)
        pipeline.transactions_go_on()
        pipeline.finish()


@pytest.fixture
def landing(mysql: MySQLServer) -> Iterator[str]:
    """A database to load into; it and penstock's own database are dropped afterwards."""
    url = mysql.make_database("landing")
    yield url
    mysql.drop_database(url)
    mysql.execute("drop database if exists wirekite")


def read_while_killed(
    tmp_path: Path, mysql: MySQLServer, urls: tuple[str, str], sections: dict[str, dict[str, Any]]
) -> list[tuple[str, ...]]:
    """Load orders, kill the executors in the middle of it, and return the expected rows."""
    source_url, target_url = urls
    name = database_of(source_url)
    fill_orders(mysql, name)
    expected = mysql.execute(f"select {SUMS} from orders", name)
    config = pipeline(
        tmp_path,
        source_url,
        target_url,
        mode="data",
        tables=[f"{name}.*"],
        sections={"spark.conf": CONF, "dataLoader": {"chunkMegabytes": 1}, **sections},
    )
    load = Half("load", config.path)
    load.start("bulk.chunk.reading:2:sleep")
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not load.has_reached:
            assert load.running, load.read_output()
            assert time.monotonic() < deadline, load.read_output()
            time.sleep(0.1)
        mysql.execute("insert into orders (id) values (-1)", name)  # after the point
        kill_executors(load)
        assert load.finish(TIMEOUT_S) == 0, load.read_output()
    finally:
        if load.running:
            load.kill()
    assert "the session is kept" in (config.layout.run / "load.log").read_text()
    assert not begun_anew(config.directory)
    return [tuple(map(str, row)) for row in expected]


def test_a_result_that_a_killed_executor_was_in_the_middle_of(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path, lending: dict[str, str]
) -> None:
    """The session reads the chunk again for another task: the table is not loaded again."""
    sections = {"spark": {**CLUSTER, **lending}, "target.types": {"*": "error"}}
    expected = read_while_killed(tmp_path, mysql, (mysql_url, target_url), sections)
    found = rows(target_url, f'select {SUMS} from "{database_of(mysql_url)}".orders')
    assert [tuple(map(str, row)) for row in found] == expected


@pytest.mark.long
def test_a_result_of_another_database_of_the_same_server(
    mysql: MySQLServer, mysql_url: str, landing: str, tmp_path: Path, lending: dict[str, str]
) -> None:
    """A chunk is read again for another task, into another database of the same engine, too."""
    sections: dict[str, dict[str, Any]] = {
        "spark": {**CLUSTER, **lending},
        "target.map": {database_of(mysql_url): database_of(landing)},
    }
    expected = read_while_killed(tmp_path, mysql, (mysql_url, landing), sections)
    found = mysql.execute(f"select {SUMS} from orders", database_of(landing))
    assert [tuple(map(str, row)) for row in found] == expected
