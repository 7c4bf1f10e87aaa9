"""Executors in separate processes are checked before rows go there, and a missing one
is reported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from harness.pipelines.pipeline import penstock, pipeline, write_pipeline
from penstock.control.doctor.cluster import check_cluster
from penstock.control.doctor.doctor import examine
from penstock.load import session as sessions
from penstock.load.cluster import ClusterUnfit
from penstock.load.session import ExecutorMissing, SessionOptions, start_session
from plugins.cluster import CLUSTER, CONF, MASTER, standalone_master

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("no_spark", "cluster_home")]


def test_every_executor_is_looked_at(tmp_path: Path, source_url: str, target_url: str) -> None:
    """Two executors that have all they need are checked, then an unreadable file and a socket."""
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


def test_doctor_has_the_executors_look_around(
    tmp_path: Path, source_url: str, target_url: str, run: Callable[[str], None]
) -> None:
    """Each executor has a line, and so has each thing that it lacks; no process stays."""
    run("create table a (id int primary key)")
    spark = {"spark": CLUSTER, "spark.conf": CONF}

    def find_cluster_findings(target: str) -> list[Any]:
        path = write_pipeline(tmp_path, source_url, target, sections=spark)
        found = penstock("doctor", path, "--json").result["findings"]
        return [one for one in found if one["code"] == "PK24"]

    lines = find_cluster_findings(target_url)
    assert [one["severity"] for one in lines] == ["I", "I"]
    assert all("has all that it needs" in one["what"] for one in lines)
    assert all(f"pyspark {pyspark.__version__}" in one["why"] for one in lines)
    assert not (tmp_path / "shop").exists()
    lines = find_cluster_findings(f"{target_url}?sslrootcert=/no/ca.pem")
    assert [one["severity"] for one in lines] == ["E", "E", "I", "I"]
    assert "cannot read /no/ca.pem" in lines[0]["what"]


def test_doctor_tells_what_spark_did_not_take(
    tmp_path: Path, source_url: str, target_url: str
) -> None:
    """An executor's memory is reported, and a socket, which needs no executor."""
    socket_url = "postgresql://u@/d?host=/run/postgresql"
    conf = {"spark.executor.memory": "100g"}
    sections = {"spark": CLUSTER, "spark.conf": conf}
    config = pipeline(tmp_path, source_url, target_url, sections=sections)
    found = examine(config, executors=True, only=("PK24",)).findings
    assert ["LD15: Spark does not take spark.executor.memory" in one.what for one in found] == [
        True
    ]
    config = pipeline(tmp_path, socket_url, target_url, sections=sections)
    found = examine(config, executors=True, only=("PK24",)).findings
    assert [one.what for one in found if "source.url names a socket" in one.what]
    assert not [one for one in examine(config, only=("PK24",)).findings if one.code == "PK24"]


def test_executors_have_all_from_the_archive(
    tmp_path: Path, source_url: str, target_url: str
) -> None:
    """Their Python has neither penstock nor pyspark: Spark brings both, one in the archive."""
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
    """Return a task that yields a worker's path of penstock, and whether it has kernels."""

    def work(_tasks: Iterator[int]) -> Iterable[tuple[str, bool]]:
        from penstock.codec.kernels import all_compiled
        from penstock.load import job

        yield job.__file__, all_compiled()

    return work


def test_without_the_archive_it_is_said(tmp_path: Path) -> None:
    """Executors whose Python has no penstock are reported."""
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
    """A master without workers is reported instead of waited for forever."""
    monkeypatch.setattr(sessions, "EXECUTOR_WAIT_S", 25.0)
    with standalone_master(cluster_home) as master:
        options = SessionOptions(
            work_directory=tmp_path / "spark",
            master=master,
            conf={"spark.driver.host": "127.0.0.1"},
        )
        with pytest.raises(ExecutorMissing, match=r"within 25 s: .*not accepted any resources"):
            start_session(options)
