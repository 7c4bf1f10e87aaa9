"""`penstock demo` as a user runs it: until it ends, and ended by a signal at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import psutil
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

EXIT_INTERRUPTED = 130


class Demo:
    """A demo in a process of its own, with a temporary folder and a mark of its own."""

    def __init__(self, temporary: Path, *options: str, directory: Path | None = None) -> None:
        self.temporary = temporary
        self.mark = uuid.uuid4().hex
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "demo", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary), "PENSTOCK_TEST_MARK": self.mark},
            cwd=directory,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the demo, so that a failed test leaves nothing running."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            self.lines.extend(line.rstrip("\n") for line in stream)

    def wait_for(self, words: str, seconds: float = 240) -> None:
        """Wait until a line contains these words."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            if any(words in line for line in self.lines):
                return
            time.sleep(0.05)
        raise AssertionError(f"{words!r} was not said:\n" + "\n".join(self.lines))

    def end(self, seconds: float = 300) -> int:
        """Wait until it ends, and return the exit code."""
        code = self.process.wait(seconds)
        self._reader.join(30)
        return code

    def remains(self) -> list[str]:
        """Return the processes and files of this demo that still exist."""
        left = [str(path) for path in self.temporary.iterdir()]
        for process in psutil.process_iter(["pid", "cmdline"]):
            command = " ".join(process.info["cmdline"] or [])
            try:
                ours = process.environ().get("PENSTOCK_TEST_MARK") == self.mark
            except psutil.Error:  # it ended meanwhile
                continue
            if ours or str(self.temporary) in command:
                left.append(f"process {process.info['pid']}: {command[:200]}")
        return left

    def nothing_remains(self, seconds: float = 20) -> bool:
        """Return whether all of it is gone within some seconds."""
        deadline = time.monotonic() + seconds
        while self.remains() and time.monotonic() < deadline:
            time.sleep(0.2)
        return not self.remains()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder that the servers' unprivileged user can enter, unlike pytest's own."""
    with TemporaryDirectory(prefix="penstock-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.promise
def test_demo_ends_with_equal_tables(temporary: Path) -> None:
    """The demo prints the handover steps, live figures, and in plain words that both sides are
    equal.
    """
    with Demo(temporary, "--seconds", "30") as demo:
        code = demo.end(500)
        said = "\n".join(demo.lines)
        assert code == 0, said
        assert "tables are copied as of it, changes from it on follow them" in said
        assert "bulk load done" in said
        assert "/s), lag" in said
        assert demo.lines[-1].startswith("source and target are equal: 12 tables"), said
        assert demo.nothing_remains(), demo.remains()


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_demo_fills_a_lake_that_can_be_read(temporary: Path, tmp_path: Path, lake: str) -> None:
    """Another library has read the lake for the comparison; the printed lines read it, too."""
    with Demo(temporary, "--target", lake, "--seconds", "20", directory=tmp_path) as demo:
        assert demo.end(500) == 0, "\n".join(demo.lines)
        assert demo.nothing_remains(), demo.remains()
    *_, verdict, place, first, second, third = demo.lines
    assert verdict.startswith("source and target are equal: 12 tables"), demo.lines
    assert f"penstock-demo-{lake}" in place
    code = "\n".join((first, second, third))
    read = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    for state in ("new", "paid", "sent", "returned"):
        assert state in read.stdout, read.stdout
    again = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", "--target", lake, "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert again.returncode == 1
    error = json.loads(again.stderr.splitlines()[-1])
    assert "exists already" in error["error"]
    assert "rm -r" in error["hint"]


def test_demo_as_json_ends_with_one_object(temporary: Path) -> None:
    """Every line is an object with --json, and the last one says whether all is equal."""
    with Demo(temporary, "--json", "--seconds", "10") as demo:
        assert demo.end(500) == 0, "\n".join(demo.lines)
        outcome = [json.loads(line) for line in demo.lines][-1]
        assert outcome["equal"] is True
        assert outcome["transactions"] > 0


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("starting two", signal.SIGINT),
        ("customers are at work", signal.SIGINT),
        ("tables are copied as of it", signal.SIGTERM),
        ("bulk load done", signal.SIGINT),
    ],
)
def test_demo_ends_cleanly_at_any_moment(
    temporary: Path, words: str, number: signal.Signals
) -> None:
    """After one Ctrl-C servers, Spark, both halves and every folder are gone."""
    with Demo(temporary, "--seconds", "120") as demo:
        demo.wait_for(words)
        demo.process.send_signal(number)
        assert demo.end(90) == EXIT_INTERRUPTED, "\n".join(demo.lines)
        assert demo.nothing_remains(), demo.remains()


def test_killed_demo_takes_everything_with_it(temporary: Path) -> None:
    """After kill -9 the servers and both halves notice it and end."""
    with Demo(temporary, "--seconds", "120") as demo:
        demo.wait_for("bulk load done")
        demo.process.kill()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if not any(line.startswith("process") for line in demo.remains()):
                return
            time.sleep(0.5)
        raise AssertionError(demo.remains())
