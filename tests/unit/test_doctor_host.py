"""Checks of doctor for this machine that need no server."""

from __future__ import annotations

import socket
from pathlib import Path

from harness.pipelines.pipeline import pipeline
from penstock.control.doctor.local_checks import spark_master
from penstock.ports.checks import Finding, Severity

URL = "postgresql://u@127.0.0.1:1/d"


def find_findings(folder: Path, master: str) -> list[Finding]:
    """Return what the check finds with this master."""
    return list(spark_master(pipeline(folder, URL, URL, sections={"spark": {"master": master}})))


def test_a_master_of_spark_that_does_not_answer(tmp_path: Path) -> None:
    """One of several is enough; a master that is not a spark:// URL is left to Spark."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        answers = f"127.0.0.1:{server.getsockname()[1]}"
        assert find_findings(tmp_path, f"spark://{answers}") == []
        assert find_findings(tmp_path, f"spark://127.0.0.1:1,{answers}") == []
    assert find_findings(tmp_path, "local[2]") == find_findings(tmp_path, "yarn") == []
    (finding,) = find_findings(tmp_path, "spark://127.0.0.1:1")
    assert (finding.code, finding.severity) == ("PK04", Severity.ERROR)
    assert "127.0.0.1:1: Connection refused" in finding.what
