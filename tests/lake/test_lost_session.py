"""Spark stops in the middle of a lake's commit: the loader starts another session and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.lake.stopping import STOPS_AT

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_spark_stops_around_a_commit(kind: str, moment: str, tmp_path: Path) -> None:
    """The JVM runs on, and no Spark job tells the loader of it. Each row is there once."""
    command = [sys.executable, "-m", "harness.lake.stopping", kind, moment, str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["equal"] == ["orders", "people", "pairs", "events"], found
    assert found["restarts"] == 1
    assert found["commits"] > STOPS_AT
