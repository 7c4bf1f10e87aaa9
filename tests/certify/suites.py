"""Suites of the project's tests, run by pytest on the server in place of a simulator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parents[1]
STOP_WAIT_S = 60.0


@dataclass(slots=True, kw_only=True)
class SuiteResult:
    """Result of the suites. failed: names of tests. skipped: names with their reasons."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    problem: str = ""


def run_suites(
    written: Path,
    environment: Mapping[str, str],
    *,
    chosen: str,
    files: Sequence[str],
    say: Callable[[str], None],
    adopt: Callable[[int], None],
) -> SuiteResult:
    """Run the suites.

    Args:
        written: File of pytest's results.
        environment: Names the server to the tests.
        chosen: What pytest selects by -k.
        files: Files of tests, in `tests`.
        say: Prints a line of progress.
        adopt: Called with pytest's process id at the end: it may have left something.
    """
    written.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider",
        "-k", chosen, f"--junitxml={written}", *(str(TESTS / one) for one in files),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=TESTS.parent, env={**os.environ, **environment}, stdout=subprocess.PIPE,
        text=True, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    last: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-20:], line.rstrip()]
            if line.rstrip().endswith("%]"):
                say(line.rstrip())
        process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # fixtures drop their databases
            try:
                process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        adopt(process.pid)
    if not written.exists():
        return SuiteResult(problem="pytest ended without a result: " + " | ".join(last[-5:]))
    return read_result(written)


def read_result(path: Path) -> SuiteResult:
    """Read pytest's file of results."""
    result = SuiteResult()
    for one in ElementTree.parse(path).iter("testcase"):
        name = f"{one.get('classname', '').rpartition('.')[2]}::{one.get('name', '')}"
        skipped = one.find("skipped")
        if one.find("failure") is not None or one.find("error") is not None:
            result.failed.append(name)
        elif skipped is not None:
            result.skipped.append(f"{name}: {skipped.get('message', '')}")
        else:
            result.passed += 1
    if not result.passed and not result.failed and not result.skipped:
        result.problem = "no test was chosen"
    return result
