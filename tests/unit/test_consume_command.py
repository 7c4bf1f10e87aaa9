"""`penstock consume` as a process: signals, exit codes, a stand-by; `run` inside a program."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.consumer import NAME, Feed, Noting, plain_pipeline, read_notes
from penstock.consume import run
from penstock.consume.position import ConsumerState
from penstock.control.consumers.consumer_process import NothingToConsume, consume
from penstock.control.pipeline.config import load_config
from penstock.control.status.consumer_list import ConsumerLine, consumer_lines
from penstock.host.process import this_program


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A log, and a pipeline file with a consumer of it."""
    made = Feed(tmp_path)
    yield made
    made.close()


def start(path: Path, *options: str, name: str = NAME) -> subprocess.Popen[str]:
    """Start `penstock consume`."""
    return subprocess.Popen(
        [*this_program(), "consume", str(path), name, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(holds: Callable[[], Any], timeout_s: float = 30) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(feed: Feed, number: signal.Signals) -> None:
    """The process calls stop() once, ends with 0, and writes to standard error and its log file."""
    feed.write(2)
    path = plain_pipeline(feed.root)
    process = start(path)
    until(lambda: "2" in read_notes(feed.root))
    feed.write(1, rotate=False)
    until(lambda: "3" in read_notes(feed.root))
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert read_notes(feed.root) == ["start", "1", "2", "3", "stop"]
    said = "the consumer is stopped"
    assert said in err
    assert said in (feed.root / "run" / f"consume-{NAME}.log").read_text()
    told = json.loads((feed.root / "run" / f"consume-{NAME}.json").read_text())
    assert (told["state"], told["read"], told["saved"]) == ("stopped", 3, 3)
    assert told["own_metrics"]["rows_seen"]["value"] == 3


def test_a_failure_leaves_the_state_and_says_what_to_do(feed: Feed) -> None:
    """stop() is called; exit code 1, one error with the next step; the log has the traceback."""
    feed.write(2)
    path = plain_pipeline(feed.root)
    path.write_text(path.read_text().replace('noted.txt" }', 'noted.txt", fail_at = 2 }'))
    process = start(path, "--json")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert read_notes(feed.root) == ["start", "1", "stop"]
    error = json.loads(err.splitlines()[-1])
    assert error["code"] == "CN05"
    assert "told to fail" in error["error"]
    assert "Nothing was saved" in error["hint"]
    assert f"penstock consume {path} {NAME}" in error["hint"]
    assert "Traceback" in (feed.root / "run" / f"consume-{NAME}.log").read_text()
    state = ConsumerState(feed.directory).load()
    assert state is not None
    assert state.gsn == 0
    told = json.loads((feed.root / "run" / f"consume-{NAME}.json").read_text())
    assert told["state"] == "failed"
    assert f"penstock consume {path} {NAME}" in told["error"]["hint"], "for ls and the web page"


def test_a_second_process_is_refused_and_a_stand_by_takes_over(feed: Feed) -> None:
    """The stand-by continues from the first one's saved state, also after kill -9."""
    feed.write(2)
    path = plain_pipeline(feed.root, "lockTimeout = 100")
    first = start(path)
    until(lambda: "2" in read_notes(feed.root))
    second = start(path)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "another process runs consumer " in err
    assert "another process runs the consumer" in err
    told = json.loads((feed.root / "run" / f"consume-{NAME}.json").read_text())
    assert (told["pid"], told["error"]) == (first.pid, None), "that of the one that works"
    standby = start(path, "--standby")
    time.sleep(1.5)
    assert standby.poll() is None
    first.kill()
    first.communicate()
    feed.write(1)
    until(lambda: "3" in read_notes(feed.root))
    standby.terminate()
    standby.communicate(timeout=30)
    assert standby.returncode == 0
    assert read_notes(feed.root) == ["start", "1", "2", "start", "3", "stop"]


def test_a_class_that_is_not_there_ends_before_anything_is_made(feed: Feed) -> None:
    """No consumer is registered, and the exit code is 1."""
    path = plain_pipeline(feed.root)
    path.write_text(path.read_text().replace("plain_consumer:Plain", "plain_consumer:Gone"))
    process = start(path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error CN10" in err
    assert f"penstock consume {path} {NAME}" in err, "the hint has this file and this name"
    assert not feed.directory.exists()

    def line() -> ConsumerLine:
        (found,) = consumer_lines(load_config(path, {}))
        return found

    assert line().state == "not registered"
    assert "plain_consumer has no Gone" in line().error
    assert f"penstock consume {path} {NAME}" in line().hint
    feed.register()
    start(path).communicate(timeout=60)
    assert (line().state, line().pid) == ("failed", 0)
    assert "plain_consumer has no Gone" in line().error, "for a known one, too"
    path.write_text(path.read_text().replace("plain_consumer:Gone", "plain_consumer:Plain"))
    process = start(path)
    until(lambda: line().pid)
    assert line().error == "", "another process's failed attempt"
    path.write_text(path.read_text().replace("plain_consumer:Plain", "plain_consumer:Gone"))
    start(path).communicate(timeout=60)
    assert (line().error, line().pid) == ("", process.pid)
    process.terminate()
    process.communicate(timeout=30)


def test_run_does_the_same_inside_a_program(feed: Feed) -> None:
    """The function takes an object instead of the class, and returns when told to stop."""
    feed.write(3)
    noting = Noting()
    run(plain_pipeline(feed.root), NAME, noting, stop=lambda: 3 in noting.gsns)
    assert noting.seen == ["start", 1, 2, 3, "stop"]
    run(plain_pipeline(feed.root), NAME, stop=lambda: True)
    assert read_notes(feed.root) == []


def test_a_pipeline_without_changes_has_no_consumers(feed: Feed) -> None:
    """A pipeline of mode `data` extracts no changes, so `consume` is refused."""
    path = plain_pipeline(feed.root)
    target = '[target]\nurl = "postgresql://unused@127.0.0.1:1/none"\n'
    path.write_text(path.read_text().replace("[source]", f'mode = "data"\n{target}[source]'))
    with pytest.raises(NothingToConsume):
        consume(load_config(path, {}), NAME)
