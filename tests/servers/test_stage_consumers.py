"""Consumers beside `penstock stage`: each gets every change of a feed once and in order.

This holds in every mode, whichever instance applies, and under repeated kills.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock
from harness.feeds.stage import Instance, Stage
from penstock.consume.lock import LOCK_FILE
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.consumers import select_log
from penstock.host.process import holder_of

KEEPER = """
import json
from penstock.consume import CdcConsumer

class Keeper(CdcConsumer):
    def __init__(self, path):
        self.file = open(path, "a")

    def on_events(self, events):
        for one in events:
            value = None if one.value is None else dict(one.value)
            line = [one.gsn, one.position, one.table.partition(".")[2], list(one.key), value]
            self.file.write(json.dumps(line) + "\\n")
        self.file.flush()
        return True
"""
SETTLE_S = 90.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """A stack that ends servers after the test."""
    with ExitStack() as made:
        yield made


def _consuming(stage: Stage, folder: Path) -> None:
    """Add a consumer to the instances' files."""
    (folder / "keeper.py").write_text(KEEPER)
    for one in stage.instances:
        with one.file.open("a") as file:
            file.write(
                "[consumers.keep]\nclass = 'keeper:Keeper'\nkeepBinary = false\n"
                "checkFrequency = 100\n"
                f"options = {{ path = '{folder / one.name}.events' }}\n"
            )


def _record_messages(stage: Stage) -> list[dict[str, Any]]:
    """Return the list of the history's messages, which grows as they are made."""
    messages: list[dict[str, Any]] = []
    bodies = stage.feed.bodies

    def record_bodies(some: list[dict[str, Any]]) -> Iterator[str]:
        messages.extend(some)
        return bodies(some)

    stage.feed.bodies = record_bodies  # type: ignore[method-assign]
    return messages


def _events(folder: Path, one: Instance) -> list[list[Any]]:
    """Return a consumer's events [position, table, key, value], each once; check its
    GSNs for gaps.
    """
    path = folder / f"{one.name}.events"
    found: list[list[Any]] = []
    last = 0
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    for line in lines:
        if not line.endswith("\n"):
            continue
        gsn, *rest = json.loads(line)
        assert gsn <= last + 1, "events were passed over"
        if gsn == last + 1:
            last = gsn
            found.append(rest)
        else:
            assert found[gsn - 1] == rest, "an event came again as another one"
    return found


def _wait_for_events(folder: Path, one: Instance, count: int) -> None:
    deadline = time.monotonic() + SETTLE_S
    while len(_events(folder, one)) < count:
        assert time.monotonic() < deadline, f"a consumer lags\n{one.messages}"
        time.sleep(0.5)


def _expect_rows(messages: list[dict[str, Any]]) -> list[list[Any]]:
    rows = sorted(
        ((_time(one["updated"]), one["topic"], one["key"], one["after"]) for one in messages),
        key=lambda row: (row[0], row[1], json.dumps(row[2])),
    )
    return [[table, key, after] for _, table, key, after in rows]


def _time(text: str) -> tuple[int, int]:
    nanos, _, logical = text.partition(".")
    return int(nanos), int(logical)


def _feed(one: Instance) -> Path:
    return next((one.file.parent / one.name / "feeds").iterdir())


def _kill_consumer(one: Instance) -> None:
    if pid := holder_of(_feed(one) / "cdc" / "keep" / LOCK_FILE):
        os.kill(pid, signal.SIGKILL)


def _commands(one: Instance, count: int) -> None:
    """Run the commands and the Python calls that show a feed's consumers."""
    (line,) = _run_command(one, "consumers", "ls")
    assert line["consumer"] == "keep", line
    _run_command(one, "consumers", "pause", "keep")
    _run_command(one, "consumers", "disable", "keep")
    assert (
        _run_command(one, "consumers", "resume", "keep", "--group", "x", code=1)[-1]["code"]
        == "CN17"
    )
    _run_command(one, "consumers", "enable", "keep")
    _run_command(one, "consumers", "resume", "keep")
    assert "stage" in _run_command(one, "resend", "--tables", "public.mark", code=1)[-1]["hint"]
    numbers = [change.gsn for change in penstock.read_log(_feed(one))]
    assert numbers == list(range(count - len(numbers) + 1, count + 1))


def _run_command(one: Instance, *words: str, code: int = 0) -> list[dict[str, Any]]:
    command = [words[0], *words[1:2], str(one.file), *words[2:]]
    if words[0] == "resend":
        command = [words[0], str(one.file), *words[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *command, "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, (done.stdout, done.stderr)
    return [
        json.loads(text) for text in (done.stdout + done.stderr).splitlines() if text[:1] == "{"
    ]


@pytest.mark.promise
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mode", "target"),
    [
        ("rowwise", "postgres"),
        ("bestEffort", "postgres"),
        ("auto", "mariadb"),
        pytest.param("consistent", "postgres", marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
)
def test_consumers_get_every_change_once_and_in_order(
    stack: ExitStack, tmp_path: Path, mode: str, target: str
) -> None:
    """Each instance is killed and comes back in turn; each has its own consumer."""
    stage = Stage(stack, tmp_path, mode, target, 7)
    _consuming(stage, tmp_path)
    messages = _record_messages(stage)
    with stage:
        for one in stage.instances:
            _wait_for_events(tmp_path, one, 1)
        for number in range(4):
            time.sleep(4)
            one = stage.instances[number % 2]
            one.kill()
            _kill_consumer(stage.instances[1 - number % 2])
            time.sleep(3)
            one.start()
        time.sleep(3)
        stage.end_feed()
        expected = _expect_rows(messages)
        for one in stage.instances:
            _wait_for_events(tmp_path, one, len(expected))
            found = [rest for _, *rest in _events(tmp_path, one)]
            assert found == expected
        _commands(stage.instances[0], len(expected))
    config = select_log(load_config(stage.instances[0].file))
    assert config.layout.log == _feed(stage.instances[0]) / "log"
