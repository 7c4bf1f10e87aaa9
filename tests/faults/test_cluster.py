"""Executors of a cluster are killed in the middle of a task: it goes on, and ends equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_cluster import CLUSTER, CONF
from fix_kills import POSTGRES, BankPipeline
from penstock.load.loader_state import read_loader_state

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.usefixtures("cluster_home")]

LONG = pytest.mark.long
POINTS = (
    "load.copy.before",
    "load.copy.after",  # rows are committed, and nobody knows
    "bulk.chunk.copied",
    "bulk.chunk.committed",
)


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
        pipeline.until(lambda: pipeline.load.reached, point)
        driver, *executors = pipeline.load.descendants("java")
        assert executors
        for executor in executors:
            executor.kill()
        pipeline.transactions_go_on()
        before = batch_count(pipeline)
        pipeline.until(lambda: batch_count(pipeline) > before + 1, "more batches")
        assert pipeline.load.running
        assert driver.is_running(), "the session goes on"
        assert "loaded again" not in pipeline.load.told()
        pipeline.finish()
