"""A pipeline of changes whose processes run and pause as a test wants, and the true lag.

The test itself finds out what is committed and not visible: it knows when it committed each row,
and looks for it in the target. The target is PostgreSQL; the source is any.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from harness.pipelines.end_to_end import Process
from harness.pipelines.loader import Word
from harness.pipelines.mysql_pipe import Keeper
from harness.pipelines.pipeline import penstock
from penstock.control.pipeline.actions import StopRequest
from penstock.control.pipeline.log_facts import read_log_end
from penstock.control.run.load_process import _Load
from penstock.control.status.lag import Lag, read_lag
from penstock.control.status.status import read_status
from penstock.extract.extractor import STATUS_FILE
from penstock.load.bulk import BulkResult
from penstock.load.loader_state import LoaderState, read_loader_state
from penstock.ports.config import Config

WAIT_S = 60.0
SLACK_S = 0.05  # between two looks at one clock
EXTRACTOR = {"flushIntervalSeconds": 0.3}


def now_s() -> float:
    """Return the time of this machine's clock, which all servers here use."""
    return time.time()


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition, and return its result."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(0.05)


@dataclass
class Line:
    """The pipeline.

    Attributes:
        commit: Function that commits a row of this id at the source.
        resolution_s: Resolution of its times.
    """

    config: Config
    commit: Callable[[int], object]
    resolution_s: float = 0.0
    committed: dict[int, tuple[float, float]] = field(default_factory=dict)

    def commit_next(self) -> None:
        """Commit another row, and record the time before and after."""
        number = len(self.committed) + 1
        before = now_s()
        self.commit(number)
        self.committed[number] = before, now_s()

    def lacking(self) -> list[int]:
        """Return the rows that are committed and not visible in the target."""
        with psycopg.connect(self.config.target.url) as target:
            visible = {row[0] for row in target.execute("select id from t").fetchall()}
        return sorted(self.committed.keys() - visible)

    # -- the processes -------------------------------------------------------------------------

    @contextmanager
    def extracting(self) -> Iterator[Process]:
        """Run `penstock extract`; the block begins when it streams."""
        with Process(self.config.path, "extract") as process:
            process.until(lambda: self.extractor_is("streaming"), "the stream")
            yield process
            process.stop()

    def extractor_is(self, state: str) -> bool:
        """Return whether the running extractor reports this state."""
        path = self.config.layout.run / STATUS_FILE
        if not path.exists():
            return False
        found = json.loads(path.read_text())
        running = [one for one in read_status(self.config).processes if one.name == "extract"]
        return bool(found["state"] == state and running[0].pid == found["pid"])

    @contextmanager
    def loading(self) -> Iterator[Word]:
        """Run the loader, without Spark, on a thread; it obeys the yielded word."""
        word, stop, keeper = Word(), StopRequest(), Keeper()
        actions: Any = word
        sessions: Any = keeper
        self.config.layout.run.mkdir(exist_ok=True)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                _Load(self.config, sessions, actions, stop).follow(BulkResult())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield word
        finally:
            stop.ask()
            thread.join(WAIT_S)
        assert not thread.is_alive()
        assert not errors, errors

    @property
    def loader(self) -> LoaderState:
        """State that the loader has written."""
        return read_loader_state(self.config.layout.run) or LoaderState(pid=0)

    @contextmanager
    def pause_loader(self, word: Word) -> Iterator[None]:
        """Pause the loader for the block."""
        word.text = "PAUSE"
        until(lambda: self.loader.state == "paused", "the loader pauses")
        yield
        word.text = "RUN"

    # -- reports -------------------------------------------------------------------------------

    def has_logged(self, trx: int) -> bool:
        """Return whether the log has so many transactions."""
        return read_log_end(self.config).end.trx >= trx

    def is_caught_up(self) -> bool:
        """Return whether lag reports that nothing is outstanding; then this must be true."""
        found = read_lag(self.config)
        if found.seconds != 0 or found.at_most:
            return False
        assert not self.lacking()
        return True

    def compare(self) -> Lag:
        """Read the lag while rows are outstanding, and compare it with the truth."""
        oldest = self.committed[self.lacking()[0]]
        asked_s = now_s()
        found = read_lag(self.config)
        answered_s = now_s()
        assert self.lacking(), "nothing is outstanding any more"
        assert found.seconds is not None, found.unknown
        assert found.seconds >= asked_s - oldest[1] - SLACK_S
        if not found.at_most:
            assert found.seconds <= answered_s - oldest[0] + self.resolution_s + SLACK_S
        return found


def tell_states(line: Line) -> None:
    """Drive each state, and compare the report with the truth."""
    before = read_lag(line.config)
    assert (before.seconds, before.unknown) == (None, "nothing is extracted yet")
    told = penstock("lag", line.config.path)
    assert told.code == 1
    assert "unknown: nothing is extracted yet" in told.out
    with line.extracting():
        with line.loading() as word:
            line.commit_next()
            until(lambda: not line.lacking(), "the first row is there")
            until(line.is_caught_up, "an idle pipeline has no lag")
            with line.pause_loader(word):
                trx = read_log_end(line.config).end.trx
                line.commit_next()
                until(lambda: line.has_logged(trx + 1), "it is in the log")
                time.sleep(1.2)
                found = line.compare()
                assert not found.at_most
                assert (found.rows, found.extracting) == (1, True)
            until(line.is_caught_up, "caught up again")
        _extractor_paused(line)
    line.commit_next()
    time.sleep(1.2)
    found = line.compare()
    assert (found.at_most, found.extracting) == (True, False)
    assert found.seconds is not None
    known = line.committed[len(line.committed) - 1]
    assert found.seconds <= now_s() - known[0] + line.resolution_s + SLACK_S, "it is exact"
    with line.extracting():
        trx = read_log_end(line.config).end.trx
        until(lambda: line.compare().rows == len(line.lacking()), "the log has it")
        assert not line.compare().at_most
        with line.loading():
            until(line.is_caught_up, "caught up at last")
    assert not line.lacking()


def _extractor_paused(line: Line) -> None:
    """Check a paused extractor: it keeps its connection and reads nothing."""
    _act(line, "PAUSE")
    until(lambda: line.extractor_is("paused"), "the extractor pauses")
    line.commit_next()
    time.sleep(1.2)
    found = line.compare()
    assert (found.at_most, found.rows, found.extracting) == (True, 0, True)
    _act(line, "RUN")
    until(lambda: line.extractor_is("streaming"), "it goes on")
    with line.loading():
        until(line.is_caught_up, "caught up behind the pause")


def _act(line: Line, word: str) -> None:
    with psycopg.connect(line.config.target.url, autocommit=True) as connection:
        connection.execute("update wirekite.wirekite_action set action = %s", (word,))


def tell_heartbeats(line: Line) -> None:
    """Check that heartbeats of an idle source arrive, and that their times are true."""
    began_s = now_s()
    with line.extracting(), line.loading() as word:
        until(lambda: line.loader.heartbeats.count >= 3, "heartbeats are visible")
        first = line.loader.heartbeats
        assert 0 < first.sum <= first.count * (now_s() - began_s)
        end = read_log_end(line.config).end
        assert (end.gsn, end.trx >= 3) == (0, True), "they are no rows"
        paused_s = now_s()
        with line.pause_loader(word):
            before = line.loader.heartbeats
            standing_s = now_s()
            trx = read_log_end(line.config).end.trx
            until(lambda: line.has_logged(trx + 3), "heartbeats wait in the log")
            time.sleep(1.5)
            waited_s = now_s() - standing_s
        until(lambda: line.loader.heartbeats.count > before.count + 3, "they are visible at last")
        after = line.loader.heartbeats
        # The first one that was sent during the pause has waited nearly all of that time.
        added_s = after.sum - before.sum
        assert added_s >= waited_s - 1.0
        assert added_s <= (after.count - before.count) * (now_s() - paused_s)
        assert line.loader.commits.count > 0
        line.commit_next()
        until(lambda: not line.lacking(), "rows come beside them")


def tell_that_they_are_no_activity(line: Line) -> None:
    """Check that an extraction with exitWhenIdle ends although heartbeats continue."""
    with Process(line.config.path, "extract") as process:
        assert process.wait_for_end(WAIT_S) == 0, process.err
    assert read_log_end(line.config).done
