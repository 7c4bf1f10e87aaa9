"""A run of several pipelines without servers: what it starts, says, starts again, and its end.

The command that it forks is a function of this file, which does what the pipeline file says.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.pipeline import penstock

GROUP = """
import json, signal, sys, time
from pathlib import Path
from penstock.control.pipeline.diagnostics import configure_diagnostics
from penstock.control.run import group
from penstock.model import PenstockError

configure_diagnostics(verbose=False)
group.preload = lambda configs: None  # not needed for what this command does
group.RESTART_WAIT_FIRST_S = 0.2
group.HOST_WAIT_S = 0.2

def command(arguments):
    word = arguments[0]
    text = " ".join(arguments)
    if word == "web":
        sys.stderr.write("timestamp=1 event=quiet\\\\n")
        print(json.dumps({"type": "web", "text": text}), flush=True)
        time.sleep(60)
    does = Path(arguments[1]).read_text()
    print(json.dumps({"type": "began", "text": does}), flush=True)
    if does == "wait":
        time.sleep(60)
    if does == "hold":
        ends = []
        signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
        print(json.dumps({"type": "holds"}), flush=True)
        while len(ends) < 2:
            time.sleep(0.05)
        raise SystemExit(130)
    if does == "fail":
        sys.stderr.write(json.dumps({"code": "XX01", "error": "it fails", "hint": "fix it"}))
        sys.stderr.write("\\\\n")
        raise SystemExit(1)
    if does == "crash":
        raise ValueError("a defect")

class View:
    def event(self, pipeline, fields):
        print(json.dumps([pipeline, fields["type"], fields.get("text", "")]), flush=True)
    def error(self, pipeline, error):
        print(json.dumps([pipeline, "error", error["code"]]), flush=True)
    def text(self, pipeline, line):
        print(json.dumps([pipeline, "text", line]), flush=True)

web = ["--port", "0"] if sys.argv[1] == "web" else None
given = [Path(one) for one in sys.argv[2:]]
group.load_config = lambda path: fake(path)

class fake:
    has_target = has_base = False
    merge = object()
    def __init__(self, path):
        if "broken" in path.name:
            raise PenstockError("wrong file")

try:
    group.run_group(group.GroupOptions(given=given, command=command, web=web), View())
except PenstockError as error:
    print(json.dumps(["", "ended", f"{error.code} {error.message}"]), flush=True)
    sys.exit(1)
""".replace("\\\\n", "\\n")


class Run:
    """A running group, and the lines that it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[list[str]] = []

    def until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """Read lines until one fits."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))
            if condition(self.lines[-1]):
                return self.lines[-1]
        raise AssertionError(
            f"not in {self.lines}, {self.process.stderr and self.process.stderr.read()}"
        )

    def find(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """Return a line that fits, of those read already or of later ones."""
        known = [line for line in self.lines if condition(line)]
        return known[0] if known else self.until(condition)

    def rest(self, *codes: int) -> list[list[str]]:
        """Wait for its end, with one of these exit codes; return all lines."""
        assert self.process.stdout is not None
        self.lines += [json.loads(line) for line in self.process.stdout]
        assert self.process.wait(30) in codes
        return self.lines


@contextmanager
def group(*files: Path, web: str = "") -> Iterator[Run]:
    """Run a group; kill it after the block if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-c", GROUP, web or "-", *map(str, files)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Run(process)
        finally:
            process.kill()


def write(folder: Path, **files: str) -> list[Path]:
    """Write pipeline files, with what the command does for each."""
    for name, does in files.items():
        (folder / f"{name}.toml").write_text(does)
    return [folder / f"{name}.toml" for name in files]


def test_all_end_well(tmp_path: Path) -> None:
    """The group ends with 0 as soon as all have ended."""
    with group(*write(tmp_path, shop="done", bank="done")) as run:
        lines = run.rest(0)
    assert ["shop", "began", "done"] in lines
    assert ["bank", "began", "done"] in lines


def test_one_that_fails_is_started_again(tmp_path: Path) -> None:
    """A failed one is started again while another one runs, with growing pauses."""
    with group(*write(tmp_path, shop="wait", bank="fail")) as run:
        run.until(lambda line: line[:2] == ["bank", "error"])
        first = run.until(lambda line: line[1] == "pipeline failed")
        run.until(lambda line: line == ["bank", "began", "fail"])
        second = run.until(lambda line: line[1] == "pipeline failed")
        assert first[0] == second[0] == "bank"
        assert "XX01: it fails; it is started again in 0 s, and the others go on" in first[2]
        (tmp_path / "bank.toml").write_text("wait")
        run.until(lambda line: line == ["bank", "began", "wait"])
        assert run.lines[-2] == ["", "pipelines", "2 of 2 pipelines run"]
        run.process.send_signal(signal.SIGTERM)
        lines = run.rest(0)
    assert ["", "pipelines", "1 of 2 pipelines run; bank needs attention"] in lines


def test_the_end_when_none_runs_any_more(tmp_path: Path) -> None:
    """The last one that fails is not started again: the group ends with its error."""
    with group(*write(tmp_path, shop="done", bank="crash")) as run:
        lines = run.rest(1)
    assert lines[-1] == [
        "",
        "ended",
        "CT05 1 of 2 pipelines failed: bank: the process ended with exit code 1",
    ]
    assert ["bank", "text", "ValueError: a defect"] in lines


def test_sighup_reads_a_directory_again(tmp_path: Path) -> None:
    """A new file is started, one that has ended is started again, and one that runs stays."""
    write(tmp_path, shop="wait", bank="done")
    with group(tmp_path, web="web") as run:
        run.until(lambda line: line[1] == "pipelines" and line[2].startswith("1 of 2"))
        write(tmp_path, bank="wait", broken="fail", third="wait")
        run.process.send_signal(signal.SIGHUP)
        run.find(lambda line: line == ["bank", "began", "wait"])
        run.find(lambda line: line[:2] == ["broken", "error"])
        shown = run.find(lambda line: line[1] == "web" and "third" in line[2])
        run.process.send_signal(signal.SIGTERM)
        lines = run.rest(0, 1)  # broken.toml may just run
    assert lines.count(["shop", "began", "wait"]) == 1
    assert shown[2].endswith("third.toml --port 0 --json")
    assert "broken" not in shown[2]
    assert not [line for line in lines if "timestamp" in line[2]]


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    """Each run gets both signals, and the exit code is that of an interrupted run."""
    with group(*write(tmp_path, shop="hold", bank="done")) as run:
        run.until(lambda line: line[:2] == ["shop", "holds"])
        run.process.send_signal(signal.SIGTERM)
        run.until(lambda line: line == ["", "stopping", "stopping"])
        time.sleep(0.3)
        run.process.send_signal(signal.SIGTERM)
        run.rest(130)


def test_kill_of_the_group_ends_all(tmp_path: Path) -> None:
    """After kill -9 no process of it goes on."""
    with group(*write(tmp_path, shop="wait", bank="wait"), web="web") as run:
        run.until(lambda line: line == ["bank", "began", "wait"])
        pid = run.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) >= 2
        run.process.kill()
        end_s = time.monotonic() + 20
        while any(_lives(child) for child in children):
            assert time.monotonic() < end_s
            time.sleep(0.05)


def _lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_the_command_line(tmp_path: Path) -> None:
    """Each error names its pipeline; files of one name are named by their path."""
    first, second = tmp_path / "a" / "shop.toml", tmp_path / "b" / "shop.toml"
    for path in (first, second):
        path.parent.mkdir()
        path.write_text("[sorce]\n")
    ran = penstock("run", first, second)
    assert ran.code == 1
    assert f"error CF04: {first}: " in ran.err
    assert f"error CF04: {second}: " in ran.err
    assert "error CT05: 2 of 2 pipelines failed" in ran.err
    told: list[dict[str, Any]] = [
        json.loads(line) for line in penstock("run", tmp_path / "a", "--json").err.splitlines()
    ]
    assert [(one["code"], one.get("pipeline")) for one in told] == [
        ("CF04", "shop"),
        ("CT05", None),
    ]


@pytest.mark.parametrize("given", [[], ["empty"]])
def test_without_a_file(tmp_path: Path, given: list[str]) -> None:
    """Wrong usage, or a directory without pipeline files: nothing is started."""
    (tmp_path / "empty").mkdir()
    ran = penstock("run", *(tmp_path / one for one in given))
    assert ran.code == (1 if given else 2)
    assert ("CT06" in ran.err) == bool(given)
