"""`[spark] log`: executors that cannot see the pipeline's directory, and executors that can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.faults.kills import POSTGRES, BankPipeline
from harness.pipelines.frames import NOTES, read_notes, task_of_log, work_of
from harness.pipelines.pipeline import pipeline
from harness.servers.mounts import python_that_sees
from penstock.control.doctor.cluster import check_cluster
from penstock.load import shipping
from penstock.load.cluster import ClusterUnfit
from penstock.load.session import Session, SessionOptions, start_session
from penstock.load.shipping import Freight, spread
from plugins.cluster import CLUSTER, CONF, MASTER

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

MYSQL = pytest.param("mysql", marks=pytest.mark.long)


@pytest.mark.parametrize("inline_max", [shipping.INLINE_BYTES_MAX, 0])
def test_spark_carries_frames(
    spark: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline_max: int
) -> None:
    """Frames go with the partitions or as broadcasts: the log is deleted when tasks run."""
    monkeypatch.setattr(shipping, "INLINE_BYTES_MAX", inline_max)
    monkeypatch.setattr(shipping, "PIECE_BYTES_MAX", 6000)
    task = task_of_log(tmp_path / "log")
    parts = [[work_of(task, Freight(task.frames))] for _ in range(3)]

    @contextmanager
    def spread_and_hide(*told: Any) -> Iterator[Any]:
        with spread(*told) as found:
            (tmp_path / "log").rename(tmp_path / "away")
            assert found.getNumPartitions() == 3
            yield found

    assert spark.run(parts, read_notes(), spread=spread_and_hide) == 3 * NOTES
    assert list(spark.context._pickled_broadcast_vars) == []


def spark_sections(python: Path, log: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the sections of a cluster with this Python."""
    return {"spark": {**CLUSTER, "python": str(python), "log": log}, "spark.conf": CONF}


def flow_and_end(bank: BankPipeline) -> None:
    """Load the bank, let changes flow, and compare."""
    bank.extract.start()
    log = bank.directory / "log"  # created once the slot exists, which load checks
    bank.until(lambda: log.is_dir() and any(log.iterdir()), "the log")
    bank.load.start()
    bank.until(lambda: bank.reader.read_count > 0, "the bank in the target", 400)
    bank.transactions_go_on(60)
    bank.finish()


@pytest.mark.usefixtures("no_spark", "cluster_home")
@pytest.mark.parametrize("target", [POSTGRES, MYSQL])
def test_executors_that_do_not_see_the_directory(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, target: str
) -> None:
    """Bulk load and changes are shipped; without shipping the start is refused."""
    python = python_that_sees(tmp_path_factory.mktemp("python"), hidden=tmp_path)
    sections = spark_sections(python, "ship")
    with BankPipeline(tmp_path, 1902, target=target, sections=sections) as bank:
        flow_and_end(bank)
        config = pipeline(tmp_path, bank.source_url, bank.target_url)
        options = SessionOptions(
            work_directory=tmp_path / "spark", master=MASTER, python=str(python), conf=CONF
        )
        with (
            start_session(options) as session,
            pytest.raises(ClusterUnfit, match="cannot read the pipeline's directory"),
        ):
            check_cluster(config, session)


@pytest.mark.usefixtures("no_spark", "cluster_home")
def test_executors_with_the_directory_mounted(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each executor is in its own mount namespace, which has only the directory of penstock's
    files.
    """
    python = python_that_sees(
        tmp_path_factory.mktemp("python"), hidden=tmp_path, shared=tmp_path / "bank"
    )
    sections = spark_sections(python, "shared")
    with BankPipeline(tmp_path, 1903, sections=sections) as bank:
        flow_and_end(bank)
