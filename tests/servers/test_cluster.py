"""Executors as processes of their own: looked at before rows go there, and who does not come."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_cluster import CONF, MASTER, standalone_master
from fix_pipeline import pipeline
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
