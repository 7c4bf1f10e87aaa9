"""A consumer is killed again and again while its log grows: nothing is lost, and the order holds.

It is killed at random moments and at every fault point between reading, returning True, the write
of the state, its rename and the removal of links. No server is needed: the test writes the log.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.pipelines.consumer import NAME, Feed, plain_pipeline
from penstock.consume.position import ConsumerState
from penstock.host.process import this_program

POINTS = (
    "consume.read.after",
    "consume.answer.after",
    "consume.state.before",
    "files.replace",
    "files.replace.rename",
    "consume.state.after",
    "consume.link.before",
    "consume.link.after",
)
BACKLOG_MAX = 40  # segments
# Records each event in a file, and stores its data and position in one SQLite transaction.
CLASS = """
import os, sqlite3
from penstock.consume import CdcConsumer


class Killed(CdcConsumer):
    def __init__(self, folder):
        self.folder = folder

    def start(self, metrics):
        self.noted = os.open(f"{self.folder}/noted", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.data = sqlite3.connect(f"{self.folder}/data.db", isolation_level=None)
        self.data.execute("create table if not exists seen (gsn integer)")
        self.data.execute("create table if not exists place (gsn integer)")
        self.calls = 0
        os.write(self.noted, b"start\\n")

    def on_events(self, events):
        self.calls += 1
        last = self.data.execute("select max(gsn) from place").fetchone()[0] or 0
        self.data.execute("begin")
        for count, event in enumerate(events):
            os.write(self.noted, b"%d\\n" % event.gsn)
            if event.gsn > last:
                self.data.execute("insert into seen values (?)", (event.gsn,))
                self.data.execute("insert into place values (?)", (event.gsn,))
            if count == 3 and self.calls % 3 == 0:
                break  # leaves the rest for the next call
        self.data.execute("commit")
        return self.calls % 4 != 0

    def stop(self):
        self.data.close()
        os.close(self.noted)
"""


class Growth:
    """Writes into the log while the consumer runs: small transactions, many segments."""

    def __init__(self, feed: Feed, seed: int) -> None:
        self._feed = feed
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Growth:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            if len(self._feed.links()) < BACKLOG_MAX:  # kills are more frequent than reads
                self.once()

    def once(self) -> None:
        """Write one transaction."""
        self._feed.write(self._random.randint(1, 9), rotate=self._random.random() < 0.5)


def runs_of(root: Path) -> list[list[int]]:
    """Return the GSNs that each start of the consumer was given."""
    path = root / "noted"
    found: list[list[int]] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        if line == "start":
            found.append([])
        else:
            found[-1].append(int(line))
    return found


def check_runs(starts: Sequence[int], runs: Sequence[Sequence[int]], last: int) -> None:
    """Check that every GSN came, and that each run is in order from just after the saved state."""
    assert len(starts) == len(runs)
    for saved, gsns in zip(starts, runs, strict=True):
        assert list(gsns) == list(range(saved + 1, saved + 1 + len(gsns)))
    assert {gsn for gsns in runs for gsn in gsns} == set(range(1, last + 1))


def kill_at_faults(root: Path, faults: Iterator[str | None], *, seed: int) -> None:
    """Kill a consumer once for each of the faults (None: at a random moment), then let it end."""
    feed = Feed(root)
    growth, chance = Growth(feed, seed), random.Random(seed)
    (root / "killed_consumer.py").write_text(CLASS)
    path = plain_pipeline(root)
    text = path.read_text().replace("plain_consumer:Plain", "killed_consumer:Killed")
    text = text.replace(f'file = "{root / "noted.txt"}"', f'folder = "{root}"')
    path.write_text(text + "keepBinary = false\n")
    feed.register()
    starts: list[int] = []
    try:
        for fault in (*faults, "end"):
            count = len(runs_of(root))
            state = ConsumerState(feed.directory).load()
            assert state is not None
            if fault == "end":
                growth.once()
            run_once(feed, path, Growth(feed, chance.randrange(10**9)), fault, chance)
            starts += [state.gsn] * (len(runs_of(root)) - count)
    finally:
        last = feed.writer.end.gsn
        feed.close()
    check_runs(starts, runs_of(root), last)
    data = sqlite3.connect(root / "data.db")
    seen = [gsn for (gsn,) in data.execute("select gsn from seen order by rowid")]
    data.close()
    assert seen == list(range(1, last + 1)), "exactly once"


def run_once(
    feed: Feed, path: Path, growth: Growth, fault: str | None, chance: random.Random
) -> None:
    """Run a consumer until it is killed or, with fault "end", until it has read everything."""
    environment, root = dict(os.environ), feed.root
    if fault not in (None, "end"):
        environment["PENSTOCK_FAULT"] = f"{fault}:{chance.randint(1, 6)}:kill"
    with (root / "err").open("wb") as err:
        process = subprocess.Popen(
            [*this_program(), "consume", str(path), NAME], env=environment, stderr=err
        )
    if fault == "end":
        end_when_read(root, process, feed.writer.end.gsn)
        return
    started = len(runs_of(root)) + 1
    with growth:
        if fault is None:
            if chance.random() < 0.8:  # otherwise perhaps before it has started
                until_started(root, process, started)
            time.sleep(chance.uniform(0.0, 0.8))
            process.kill()
        assert process.wait(60) == -9, (root / "err").read_text()


def until_started(root: Path, process: subprocess.Popen[bytes], count: int) -> None:
    """Wait until this is the consumer's count-th start that was recorded."""
    deadline = time.monotonic() + 60
    while len(runs_of(root)) < count:
        assert time.monotonic() < deadline, "it does not start"
        assert process.poll() is None, (root / "err").read_text()
        time.sleep(0.01)


def end_when_read(root: Path, process: subprocess.Popen[bytes], last: int) -> None:
    """Wait until every event has come, then stop the consumer in order."""
    deadline = time.monotonic() + 60
    while last not in [gsn for gsns in runs_of(root)[-1:] for gsn in gsns]:
        assert time.monotonic() < deadline, "it does not come to the end"
        assert process.poll() is None, (root / "err").read_text()
        time.sleep(0.2)
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.promise
@pytest.mark.slow
@pytest.mark.faults
def test_a_killed_consumer_loses_nothing(tmp_path: Path) -> None:
    """A consumer that is killed at each fault point once, and at two random moments,
    loses nothing.
    """
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    faults: list[str | None] = [*POINTS, None, None]
    chance.shuffle(faults)
    kill_at_faults(tmp_path, iter(faults), seed=seed)


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_consumer_killed_two_hundred_times_loses_nothing(tmp_path: Path) -> None:
    """A consumer loses nothing if half of the kills are at fault points, half at any moment."""
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    faults = [chance.choice(POINTS) if chance.random() < 0.5 else None for _ in range(200)]
    kill_at_faults(tmp_path, iter(faults), seed=seed)


def test_the_check_itself_finds_what_it_is_for() -> None:
    """The check finds a gap, a repetition out of order, and a start that does not
    follow the state.
    """
    check_runs([0, 2], [[1, 2, 3], [3, 4]], 4)
    for starts, runs, last in (
        ([0, 2], [[1, 2, 3], [4]], 4),
        ([0], [[1, 3, 2]], 3),
        ([0], [[1, 2]], 3),
        ([0, 1], [[1, 2, 3], [3]], 3),
    ):
        with pytest.raises(AssertionError):
            check_runs(starts, runs, last)
