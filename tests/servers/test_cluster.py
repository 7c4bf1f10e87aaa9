"""Executors as processes of their own: looked at before rows go there, and who does not come."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from fix_cluster import CONF, MASTER, standalone_master
from fix_pipeline import penstock, pipeline
from penstock.control.cluster import check_cluster
from penstock.load import session as sessions
from penstock.load.cluster import ClusterUnfit
from penstock.load.session import ExecutorMissing, SessionOptions, start_session

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("no_spark", "cluster_home")]


def test_every_executor_is_looked_at(tmp_path: Path, source_url: str, target_url: str) -> None:
    """Two executors that have all they need; then a file that they cannot read, and a socket."""
    config = pipeline(tmp_path, source_url, target_url)
    options = SessionOptions(work_directory=tmp_path / "spark", master=MASTER, conf=CONF)
    with start_session(options) as session:
        found = check_cluster(config, session)
        assert len(found) == 2
        for url, said in (
            (f"{target_url}?sslrootcert=/no/ca.pem", r"cannot read /no/ca\.pem"),
            ("postgresql://u@/d?host=/run/postgresql", "socket file"),
        ):
            with pytest.raises(ClusterUnfit, match=said):
                check_cluster(pipeline(tmp_path, source_url, url), session)


def test_executors_have_all_from_the_archive(
    tmp_path: Path, source_url: str, target_url: str
) -> None:
    """Their Python has neither penstock nor pyspark: both come with Spark, one in the archive."""
    python = os.path.realpath(sys.executable)
    for name in ("penstock", "pyspark"):
        command = [python, "-c", f"import {name}"]
        done = subprocess.run(command, env={}, cwd=tmp_path, capture_output=True, check=False)
        assert b"ModuleNotFoundError" in done.stderr, "a Python of its own is needed here"
    archive = tmp_path / "penstock-cluster.tar.gz"
    told = penstock("cluster-archive", archive, "--json")
    assert told.code == 0, told.err
    config = pipeline(tmp_path, source_url, target_url)
    options = SessionOptions(
        work_directory=tmp_path / "spark",
        master=MASTER,
        python=python,
        conf={**CONF, **told.result["conf"]},
    )
    with start_session(options) as session:
        assert len(check_cluster(config, session)) == 2
        [[path, compiled]] = session.run([[0]], where_penstock_is())
    assert "site-packages" not in path
    assert "work" in Path(path).parts
    assert compiled


def where_penstock_is() -> Callable[[Iterator[int]], Iterable[tuple[str, bool]]]:
    """Where a worker imports it from, and whether its kernels are there."""

    def work(_tasks: Iterator[int]) -> Iterable[tuple[str, bool]]:
        from penstock.codec.kernels import all_compiled
        from penstock.load import job

        yield job.__file__, all_compiled()

    return work


def test_without_the_archive_it_is_said(tmp_path: Path) -> None:
    """Executors whose Python has no penstock."""
    options = SessionOptions(
        work_directory=tmp_path / "spark",
        master=MASTER,
        python=os.path.realpath(sys.executable),
        conf={**CONF, "spark.executorEnv.PYTHONPATH": "nowhere"},
    )
    with pytest.raises(ExecutorMissing, match=r"No module named '?penstock"):
        start_session(options)


def test_nobody_takes_a_task(
    tmp_path: Path, cluster_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master without workers: said so, not waited for ever."""
    monkeypatch.setattr(sessions, "EXECUTOR_WAIT_S", 25.0)
    with standalone_master(cluster_home) as master:
        options = SessionOptions(
            work_directory=tmp_path / "spark",
            master=master,
            conf={"spark.driver.host": "127.0.0.1"},
        )
        with pytest.raises(ExecutorMissing, match=r"within 25 s: .*not accepted any resources"):
            start_session(options)
