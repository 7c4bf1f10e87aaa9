"""The change loader's loop on a real target: files, holds, actions, failures, kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_changes import Change, relation
from fix_loader import LocalKeeper, LogMaker, Word
from fix_postgres import Server
from penstock.host import faults
from penstock.host.files import DirectoryLock
from penstock.host.retry import Backoff
from penstock.load.hold import HOLD_LOCK, Hold, clear_hold, read_held, write_hold
from penstock.load.loader import Loader, LoaderOptions, LoaderState, read_loader_state
from penstock.load.session import PendingSession, SessionKeeper, SessionOptions
from penstock.log.frames import SegmentCorrupt
from penstock.log.layout import SegmentMissing
from penstock.model import Identity

ITEM = relation(("id", "integer", "int32"), ("name", "text", "string"))
BAG = relation(("v", "integer", "int32"), key=(), identity=Identity.FULL, name="bag")
TABLES = "create table public.t (id int primary key, name text); create table public.bag (v int)"


def add(log: LogMaker, number: int) -> int:
    """One transaction: a keyed row, and one that would count twice if applied twice."""
    return log.transaction(
        (ITEM, Change(op="I", gsn=0, after=(number, "x"))),
        (BAG, Change(op="I", gsn=0, after=(number,))),
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogMaker]:
    """A change log with three segments of two transactions each."""
    maker = LogMaker(tmp_path / "log")
    for number in range(6):
        add(maker, number)
        if number % 2:
            maker.close_segment()
    yield maker
    maker.writer.close()


class Running:
    """A loader in a thread."""

    def __init__(self, url: str, directory: Path, keeper: Any = None, **options: Any) -> None:
        self.stop = threading.Event()
        self.word = Word()
        self.options = LoaderOptions(
            url=url,
            log_directory=directory / "log",
            state_directory=directory / "state",
            run_directory=directory / "run",
            backoff=options.pop("backoff", Backoff(first_s=0.05, longest_s=0.5, attempts=30)),
            **options,
        )
        (directory / "state").mkdir(exist_ok=True)
        self.keeper = keeper or LocalKeeper()
        self.loader = Loader(self.options, self.keeper, stop=self.stop.is_set, actions=self.word)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.loader.run()
        except BaseException as error:
            self.error = error

    def end(self, *, stop: bool = False) -> LoaderState:
        """Wait for the end; raise what it raised."""
        if stop:
            self.stop.set()
        self.thread.join(120)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.loader.state


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """What the target has."""
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def check(url: str, count: int) -> None:
    """Rows 0 to count - 1 are there, each once."""
    expected = [(number,) for number in range(count)]
    assert rows(url, "select id from public.t order by 1") == expected
    assert rows(url, "select v from public.bag order by 1") == expected


@pytest.fixture
def target(target_url: str) -> str:
    """A target with the tables."""
    with psycopg.connect(target_url, autocommit=True) as connection:
        connection.execute(TABLES)
    return target_url


def test_ends_when_the_log_is_done(target: str, tmp_path: Path, log: LogMaker) -> None:
    """CHANGE.DONE and all before it applied; the state file tells it; the files stay."""
    log.writer.done()
    state = Running(target, tmp_path).end()
    check(target, 6)
    assert (state.batch_count, state.file_count, state.row_count) == (1, 3, 12)
    assert read_loader_state(tmp_path / "run") == state
    assert state.state == "ended"
    assert sorted(p.name for p in (tmp_path / "log").glob("*.ckt")) == ["0.ckt", "1.ckt", "2.ckt"]
    assert Running(target, tmp_path).end().batch_count == 0
    check(target, 6)


def test_files_per_batch_and_their_removal(target: str, tmp_path: Path, log: LogMaker) -> None:
    """MaxFilesPerBatch bounds a batch; removeFiles takes applied ones away."""
    log.writer.done()
    state = Running(target, tmp_path, max_files_per_batch=2, remove_files=True).end()
    assert state.batch_count == 2
    assert list((tmp_path / "log").glob("*.ckt")) == []
    check(target, 6)


def test_files_are_moved_when_done(target: str, tmp_path: Path, log: LogMaker) -> None:
    """doneDirectory; also what a killed loader had applied but not moved."""
    log.writer.done()
    Running(target, tmp_path).end()
    done = tmp_path / "done"
    Running(target, tmp_path, done_directory=done).end()
    assert sorted(path.name for path in done.iterdir()) == ["0.ckt", "1.ckt", "2.ckt"]
    check(target, 6)


def test_new_segments_are_picked_up(target: str, tmp_path: Path, log: LogMaker) -> None:
    """While it waits, and stop() ends it at a batch's end."""
    running = Running(target, tmp_path)
    until(lambda: running.loader.applied.gsn == 12)
    add(log, 6)
    log.close_segment()
    until(lambda: running.loader.applied.gsn == 14)
    running.end(stop=True)
    check(target, 7)


def test_actions_are_obeyed(target: str, tmp_path: Path, log: LogMaker) -> None:
    """PAUSE waits, RUN goes on, STOP ends."""
    running = Running(target, tmp_path)
    until(lambda: running.loader.applied.gsn == 12)
    running.word.text = "PAUSE"
    until(lambda: running.loader.state.state == "paused")
    add(log, 6)
    log.close_segment()
    time.sleep(0.3)
    assert running.loader.applied.gsn == 12
    running.word.text = "STOP"
    running.end()
    check(target, 6)


def test_hold_cuts_at_a_position_and_goes_on(target: str, tmp_path: Path, log: LogMaker) -> None:
    """The loader stands exactly at the barrier until the hold is gone."""
    running = Running(target, tmp_path)
    until(lambda: running.loader.applied.gsn == 12)
    state = tmp_path / "state"
    with DirectoryLock(state, HOLD_LOCK):
        write_hold(state, Hold(nonce="n"))
        until(lambda: read_held(state, "n") is not None)
        add(log, 6)
        add(log, 7)
        cut = add(log, 8)
        add(log, 9)
        log.close_segment()
        time.sleep(0.2)
        assert running.loader.applied.gsn == 12
        write_hold(state, Hold(nonce="n", until=cut))
        until(lambda: (h := read_held(state, "n")) is not None and h.reached == cut)
        check(target, 8)
        time.sleep(0.2)
        check(target, 8)
        clear_hold(state)
    until(lambda: running.loader.applied.gsn == 20)
    running.end(stop=True)
    check(target, 10)


def test_missing_segment_stops_with_nothing_from_behind_it(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """A hole in the numbers."""
    (tmp_path / "log" / "1.ckt").rename(tmp_path / "hidden")
    with pytest.raises(SegmentMissing):
        Running(target, tmp_path, max_files_per_batch=1).end()
    check(target, 2)
    (tmp_path / "hidden").rename(tmp_path / "log" / "1.ckt")
    log.writer.done()
    Running(target, tmp_path).end()
    check(target, 6)


def test_corrupt_segment_stops_with_nothing_from_behind_it(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """One flipped byte in the rows of the second segment."""
    path = tmp_path / "log" / "1.ckt"
    data = bytearray(path.read_bytes())
    data[data.rindex(b"ARROW") if b"ARROW" in data else len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(SegmentCorrupt):
        Running(target, tmp_path, max_files_per_batch=1).end()
    check(target, 2)


@pytest.mark.parametrize(
    "point",
    [
        "load.job.before",
        "load.copy.before",
        "load.copy.after",
        "load.apply.before",
        "load.apply.after",
        "load.progress.before",
        "load.commit.before",
        "load.commit.after",
    ],
)
def test_failure_at_any_point_is_tried_again(
    target: str, tmp_path: Path, log: LogMaker, point: str
) -> None:
    """Before the commit nothing is there, behind it all: each row once."""
    log.writer.done()
    with faults.armed(f"{point}:2:error"):
        Running(target, tmp_path, max_files_per_batch=1).end()
    check(target, 6)


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from fix_loader import LocalKeeper, Word
from penstock.load.loader import Loader, LoaderOptions
root = Path({root!r})
options = LoaderOptions(
    url={url!r}, log_directory=root / "log", state_directory=root / "state",
    run_directory=root / "run", max_files_per_batch=1, remove_files=True,
)
Loader(options, LocalKeeper(), stop=lambda: False, actions=Word()).run()
"""


@pytest.mark.faults
@pytest.mark.parametrize(
    "point", ["load.copy.after", "load.apply.after", "load.commit.before", "load.commit.after"]
)
def test_kill_and_restart(target: str, tmp_path: Path, log: LogMaker, point: str) -> None:
    """SIGKILL in the second batch; the next process goes on, every row once."""
    log.writer.done()
    script = KILLED.format(tests=str(Path(__file__).parent.parent), root=str(tmp_path), url=target)
    command = [sys.executable, "-c", script]
    environment = os.environ | {"PENSTOCK_FAULT": f"{point}:2:kill"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check(target, 6)
    assert list((tmp_path / "log").glob("*.ckt")) == []


@pytest.mark.faults
def test_crash_of_the_target_between_staging_and_applying(
    own_postgres: Server, tmp_path: Path, log: LogMaker
) -> None:
    """Unlogged merge tables are empty afterwards: the batch must be staged again."""
    own_postgres.execute(TABLES)
    log.writer.done()
    with faults.armed("load.apply.before:1:sleep=1.5"):
        running = Running(own_postgres.url(), tmp_path)
        until(lambda: bool(rows(own_postgres.url(), "select to_regclass('wirekite.t_wkm')")[0][0]))
        until(lambda: bool(rows(own_postgres.url(), "select 1 from wirekite.t_wkm")))
        own_postgres.crash()
        own_postgres.start()
        running.end()
    check(own_postgres.url(), 6)


@pytest.mark.faults
def test_connection_ended_in_the_middle_of_applying(
    target: str, postgres: Server, tmp_path: Path, log: LogMaker
) -> None:
    """An operator's pg_terminate_backend: reconnect, ask how far it is, go on."""
    log.writer.done()
    with faults.armed("load.apply.after:1:sleep=1"):
        running = Running(target, tmp_path)
        until(
            lambda: bool(
                postgres.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where"
                    " application_name = 'penstock loader' and state = 'idle in transaction'"
                    f" and datname = '{target.rpartition('/')[2]}'"
                )
            )
        )
        running.end()
    check(target, 6)


@pytest.mark.spark
@pytest.mark.slow
def test_the_whole_loader_on_spark(target: str, tmp_path: Path, log: LogMaker) -> None:
    """Batches through Spark's workers; the JVM is killed in between and comes back."""
    options = SessionOptions(work_directory=tmp_path / "spark", master="local[2]")
    keeper = SessionKeeper(options, PendingSession(options))
    running = Running(target, tmp_path, keeper, max_files_per_batch=1)
    try:
        until(lambda: running.loader.applied.gsn == 12, 120)
        os.kill(keeper.get().java_pid, signal.SIGKILL)
        add(log, 6)
        log.close_segment()
        log.writer.done()
        running.end()
        assert keeper.restart_count == 1
    finally:
        running.stop.set()
        running.thread.join()
        keeper.close()
    check(target, 7)
