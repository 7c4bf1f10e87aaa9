"""The notebooks of examples/ run from top to bottom, on servers that they start themselves."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

import pytest

from harness.modules.facts import ROOT
from plugins.java import OPTIONS

PROGRAM = ROOT / ".ci/notebooks.py"
WITHOUT_JAVA = {"read-the-log", "search-index"}
WITHIN_S = 900


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in WITHOUT_JAVA else [pytest.mark.spark])
        for name in (path.stem for path in runpy.run_path(str(PROGRAM))["notebooks"]())
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_a_notebook_runs_and_has_the_results_of_its_file(name: str) -> None:
    """No cell raises; results that are text are those that the file shows."""
    # Java says what does not fit its archive of classes, which only tests have (`plugins/java.py`).
    environment = {key: value for key, value in os.environ.items() if key != OPTIONS}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--check", name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout == ""
