"""Executors of a cluster are killed in the middle of a task: it goes on, and ends equal."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fix_bulk import rows
from fix_cluster import CLUSTER, CONF
from fix_kills import POSTGRES, BankPipeline, Half
from fix_mysql import MySQLServer, database_of
from fix_mysql_bulk import between, fill_orders
from penstock.load.loader_state import read_loader_state

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("cluster_home"),
]

TIMEOUT_S = 300.0
LONG = pytest.mark.long
POINTS = (
    "load.copy.before",
    "load.copy.after",  # rows are committed, and nobody knows
    "bulk.chunk.copied",
    "bulk.chunk.committed",
)


def kill_executors(half: Half) -> None:
    """All of them, and nothing else: the session goes on."""
    driver, *executors = half.descendants("java")
    assert executors
    for executor in executors:
        executor.kill()
    assert driver.is_running()


def begun_anew(directory: Path) -> bool:
    """Whether a snapshot was lost, by the load's log: a table that was truncated does not count."""
    log = (directory / "run" / "load.log").read_text()
    assert "bulk table copied" in log
    return "loaded again from the start" in log


def batch_count(pipeline: BankPipeline) -> int:
    """How many batches the load process has applied."""
    state = read_loader_state(pipeline.directory / "run")
    return state.batch_count if state is not None else 0


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    "target", [POSTGRES, pytest.param("mariadb", marks=LONG), pytest.param("mysql", marks=LONG)]
)
def test_all_executors_are_killed_in_a_task(tmp_path: Path, point: str, target: str) -> None:
    """Nobody starts anything again, and no table is loaded anew."""
    sections = {"spark": CLUSTER, "spark.conf": CONF}
    with BankPipeline(tmp_path, 1901, target=target, sections=sections) as pipeline:
        pipeline.extract.start()
        log = pipeline.directory / "log"  # made by one who has the slot, which load looks at
        pipeline.until(lambda: log.is_dir() and any(log.iterdir()), "the log")
        pipeline.load.start(f"{point}:1:sleep")
        pipeline.until(lambda: pipeline.load.reached, point, TIMEOUT_S)
        kill_executors(pipeline.load)
        pipeline.transactions_go_on()
        before = batch_count(pipeline)
        pipeline.until(lambda: batch_count(pipeline) > before + 1, "more batches")
        assert pipeline.load.running
        assert not begun_anew(pipeline.directory)
        pipeline.finish()


@pytest.mark.parametrize("source", ["mariadb", "mysql"])
@pytest.mark.parametrize("target", [POSTGRES, pytest.param("mysql", marks=LONG)])
def test_executors_that_read_through_the_driver_are_killed(
    tmp_path: Path, lending: dict[str, str], source: str, target: str
) -> None:
    """From MySQL and MariaDB, through the sessions that this machine passes on at its address."""
    sections = {"spark": {**CLUSTER, **lending}, "spark.conf": CONF}
    with BankPipeline(tmp_path, 1903, source=source, target=target, sections=sections) as pipeline:
        pipeline.extract.start()
        handover = pipeline.directory / "state" / "handover.json"
        pipeline.until(lambda: handover.exists() and "snapshot_id" in handover.read_text(), "point")
        pipeline.load.start("bulk.chunk.reading:1:sleep")
        pipeline.until(lambda: pipeline.load.reached, "rows that are read", TIMEOUT_S)
        assert f'"{lending["snapshotAddress"]}:' in handover.read_text()
        kill_executors(pipeline.load)
        pipeline.until_read()
        pipeline.transactions_go_on()
        assert pipeline.load.running
        assert not begun_anew(pipeline.directory)
        pipeline.finish()


def test_a_result_that_a_killed_executor_was_in_the_middle_of(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path, lending: dict[str, str]
) -> None:
    """Its session reads the chunk again for another task: the table is not loaded anew."""
    name = database_of(mysql_url)
    fill_orders(mysql, name)
    spark = "".join(f'{key} = "{value}"\n' for key, value in {**CLUSTER, **lending}.items())
    conf = "".join(f'"{key}" = "{value}"\n' for key, value in CONF.items())
    more = f'[spark]\n{spark}[spark.conf]\n{conf}[target.types]\n"*" = "error"'
    config = between(mysql_url, target_url, tmp_path, more=more)
    load = Half("load", config.path)
    load.start("bulk.chunk.reading:2:sleep")
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not load.reached:
            assert load.running, load.told()
            assert time.monotonic() < deadline, load.told()
            time.sleep(0.1)
        mysql.execute("insert into orders (id) values (-1)", name)  # behind the point
        kill_executors(load)
        assert load.finish() == 0, load.told()
    finally:
        if load.running:
            load.kill()
    assert "the session is kept" in (config.layout.run / "load.log").read_text()
    assert not begun_anew(config.directory)
    [found] = rows(target_url, f'select count(*), count(distinct id), min(id) from "{name}".orders')
    assert found == (60_000, 60_000, 0)
