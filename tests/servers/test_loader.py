"""The change loader's loop on a real target: files, holds, actions, failures, kills."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.loader import LogMaker
from harness.pipelines.loading import TABLES, Running, add, check, rows, run_killed, until
from penstock.host import faults
from penstock.host.files import DirectoryLock
from penstock.load.loader_state import (
    HOLD_LOCK,
    Hold,
    clear_hold,
    read_held,
    read_loader_state,
    write_hold,
)
from penstock.load.session import PendingSession, SessionKeeper, SessionOptions
from penstock.log.frames import SegmentCorrupt
from penstock.log.layout import SegmentFile, SegmentMissing
from penstock.log.segment import LogFollower
from penstock.model.keeping import Keeping
from plugins.postgres import Server


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


@pytest.fixture
def target(target_url: str) -> str:
    """A target with the tables."""
    with psycopg.connect(target_url, autocommit=True) as connection:
        connection.execute(TABLES)
    return target_url


def test_ends_when_the_log_is_done(target: str, tmp_path: Path, log: LogMaker) -> None:
    """CHANGE.DONE and all before it is applied; the state file says so; the files stay."""
    log.writer.finish()
    state = Running(target, tmp_path).end()
    check(target, 6)
    assert (state.batch_count, state.file_count, state.row_count) == (1, 3, 12)
    assert read_loader_state(tmp_path / "run") == state
    assert state.state == "ended"
    assert sorted(p.name for p in (tmp_path / "log").glob("*.ckt")) == ["0.ckt", "1.ckt", "2.ckt"]
    assert Running(target, tmp_path).end().batch_count == 0
    check(target, 6)


def test_files_per_batch_and_their_removal(target: str, tmp_path: Path, log: LogMaker) -> None:
    """Batches are limited by maxFilesPerBatch; removeFiles deletes applied files."""
    log.writer.finish()
    state = Running(target, tmp_path, max_files_per_batch=2, remove_files=True).end()
    assert state.batch_count == 2
    assert list((tmp_path / "log").glob("*.ckt")) == []
    check(target, 6)


def test_files_are_moved_when_done(target: str, tmp_path: Path, log: LogMaker) -> None:
    """Applied files move to doneDirectory, even if a killed loader had applied but
    not moved them.
    """
    log.writer.finish()
    Running(target, tmp_path).end()
    done = tmp_path / "done"
    Running(target, tmp_path, done_directory=done).end()
    assert sorted(path.name for path in done.iterdir()) == ["0.ckt", "1.ckt", "2.ckt"]
    check(target, 6)


def test_new_segments_are_picked_up(target: str, tmp_path: Path, log: LogMaker) -> None:
    """The loader finds new segments while it waits, and stop() ends it at a batch's end."""
    running = Running(target, tmp_path)
    until(lambda: running.loader.applied_position.gsn == 12)
    add(log, 6)
    log.close_segment()
    until(lambda: running.loader.applied_position.gsn == 14)
    running.end(stop=True)
    check(target, 7)


def test_what_is_durable_is_applied_before_its_segment_is_closed(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """Each flush is applied; unflushed rows are not there. The CL row comes with the
    closed file.
    """
    files = "select source from wirekite.wirekite_progress where operation = 'CL' order by 1"
    running = Running(target, tmp_path, remove_files=True)
    until(lambda: running.loader.applied_position.gsn == 12)
    for number in (6, 7):
        add(log, number)
        log.writer.flush()
        until(lambda number=number: running.loader.applied_position.gsn == 2 * number + 2)
        check(target, number + 1)
    assert running.loader.applied_position.segment == 2
    assert rows(target, files) == [("0.ckt",), ("1.ckt",), ("2.ckt",)]
    add(log, 8)
    time.sleep(0.3)
    assert running.loader.applied_position.gsn == 16
    log.close_segment()
    until(lambda: running.loader.applied_position.segment == 3)
    check(target, 9)
    assert rows(target, files)[-1] == ("3.ckt",)
    until(lambda: not list((tmp_path / "log").glob("*.ckt")))
    running.end(stop=True)


def test_files_are_read_when_they_are_closed_if_that_is_wanted(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """The published way works, too: readOpenSegment = false."""
    running = Running(target, tmp_path, read_open_segment=False)
    until(lambda: running.loader.applied_position.gsn == 12)
    add(log, 6)
    log.writer.flush()
    time.sleep(0.5)
    check(target, 6)
    log.close_segment()
    until(lambda: running.loader.applied_position.gsn == 14)
    running.end(stop=True)
    check(target, 7)


@pytest.mark.parametrize("is_closed_meanwhile", [False, True], ids=["open", "closed-meanwhile"])
def test_hold_cuts_the_open_segment(
    target: str,
    tmp_path: Path,
    log: LogMaker,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_closed_meanwhile: bool,
) -> None:
    """A hold lies between two transactions of the segment; the loader continues from there.

    The segment may be closed and renamed after it was found.
    """
    find, is_due = LogFollower.behind, False

    def find_and_close(self: LogFollower, *place: int, **limits: Any) -> list[SegmentFile]:
        nonlocal is_due
        files = find(self, *place, **limits)
        if is_due and files and files[-1].is_open:
            is_due = False
            log.writer.rotate()
        return files

    monkeypatch.setattr(LogFollower, "behind", find_and_close)
    running = Running(target, tmp_path)
    until(lambda: running.loader.applied_position.gsn == 12)
    state = tmp_path / "state"
    with DirectoryLock(state, HOLD_LOCK):
        write_hold(state, Hold(nonce="n"))
        until(lambda: read_held(state, "n") is not None)
        add(log, 6)
        cut = add(log, 7)
        add(log, 8)
        log.writer.flush()
        is_due = is_closed_meanwhile
        write_hold(state, Hold(nonce="n", until=cut))
        until(lambda: (h := read_held(state, "n")) is not None and h.reached == cut)
        check(target, 7)
        assert not is_due
        clear_hold(state)
    until(lambda: running.loader.applied_position.gsn == 18)
    check(target, 9)
    running.end(stop=True)


@pytest.mark.parametrize("point", ["load.commit.before", "load.commit.after", "load.job.before"])
def test_kill_while_the_open_segment_is_read(
    target: str, tmp_path: Path, log: LogMaker, point: str
) -> None:
    """The loader is killed at its fourth batch, of the open segment, which closes before its
    restart.
    """
    add(log, 6)
    add(log, 7)
    log.writer.flush()
    assert run_killed(target, tmp_path, f"{point}:4:kill").returncode == -signal.SIGKILL
    if point != "load.job.before":  # it is staged while the previous one may still be applied
        check(target, 8 if point == "load.commit.after" else 6)
    add(log, 8)
    log.close_segment()
    log.writer.finish()
    Running(target, tmp_path).end()
    check(target, 9)


def test_actions_are_obeyed(target: str, tmp_path: Path, log: LogMaker) -> None:
    """PAUSE waits, RUN continues, STOP ends."""
    running = Running(target, tmp_path)
    until(lambda: running.loader.applied_position.gsn == 12)
    running.word.text = "PAUSE"
    until(lambda: running.loader.state.state == "paused")
    add(log, 6)
    log.close_segment()
    time.sleep(0.3)
    assert running.loader.applied_position.gsn == 12
    running.word.text = "STOP"
    running.end()
    check(target, 6)


def test_hold_cuts_at_a_position_and_goes_on(target: str, tmp_path: Path, log: LogMaker) -> None:
    """The loader stops exactly at the barrier until the hold is removed."""
    running = Running(target, tmp_path)
    until(lambda: running.loader.applied_position.gsn == 12)
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
        assert running.loader.applied_position.gsn == 12
        write_hold(state, Hold(nonce="n", until=cut))
        until(lambda: (h := read_held(state, "n")) is not None and h.reached == cut)
        check(target, 8)
        time.sleep(0.2)
        check(target, 8)
        clear_hold(state)
    until(lambda: running.loader.applied_position.gsn == 20)
    running.end(stop=True)
    check(target, 10)


def test_missing_segment_stops_with_nothing_from_behind_it(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """The segment numbers have a gap."""
    (tmp_path / "log" / "1.ckt").rename(tmp_path / "hidden")
    with pytest.raises(SegmentMissing):
        Running(target, tmp_path, max_files_per_batch=1).end()
    check(target, 2)
    (tmp_path / "hidden").rename(tmp_path / "log" / "1.ckt")
    log.writer.finish()
    Running(target, tmp_path).end()
    check(target, 6)


def test_corrupt_segment_stops_with_nothing_from_behind_it(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """One byte in the rows of the second segment is flipped."""
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
    """No row is there before the commit; after all of it each row is there once."""
    log.writer.finish()
    with faults.arming(f"{point}:2:error"):
        Running(target, tmp_path, max_files_per_batch=1).end()
    check(target, 6)


@pytest.mark.faults
@pytest.mark.parametrize(
    "point", ["load.copy.after", "load.apply.after", "load.commit.before", "load.commit.after"]
)
def test_kill_and_restart(target: str, tmp_path: Path, log: LogMaker, point: str) -> None:
    """SIGKILL comes in the second batch; the next process continues, every row once."""
    log.writer.finish()
    done = run_killed(target, tmp_path, f"{point}:2:kill")
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = run_killed(target, tmp_path)
    assert done.returncode == 0, done.stderr
    check(target, 6)
    assert list((tmp_path / "log").glob("*.ckt")) == []


@pytest.mark.faults
def test_crash_of_the_target_between_staging_and_applying(
    own_postgres: Server, tmp_path: Path, log: LogMaker
) -> None:
    """Unlogged merge tables are empty afterwards: the batch must be staged again."""
    own_postgres.execute(TABLES)
    own_postgres.execute("checkpoint")  # commits do not wait for the disk there
    log.writer.finish()
    with faults.arming("load.apply.before:1:sleep=1.5"):
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
    """The loader reconnects after pg_terminate_backend, asks for its position and continues."""
    log.writer.finish()
    with faults.arming("load.apply.after:1:sleep=1"):
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
@pytest.mark.usefixtures("no_spark")
def test_the_whole_loader_on_spark(target: str, tmp_path: Path, log: LogMaker) -> None:
    """Batches go through Spark's workers; the JVM is killed in between and comes back."""
    options = SessionOptions(work_directory=tmp_path / "spark", master="local[2]")
    keeper = SessionKeeper(options, PendingSession(options))
    running = Running(target, tmp_path, keeper, max_files_per_batch=1)
    try:
        until(lambda: running.loader.applied_position.gsn == 12, 120)
        os.kill(keeper.get().java_pid, signal.SIGKILL)
        add(log, 6)
        log.close_segment()
        log.writer.finish()
        running.end()
        assert keeper.restart_count == 1
    finally:
        running.stop.set()
        running.thread.join()
        keeper.close()
    check(target, 7)


@pytest.mark.parametrize(
    ("keeping", "left"),
    [
        (Keeping(), ["0.ckt", "1.ckt", "2.ckt"]),
        (Keeping(age_s=3600.0), ["2.ckt"]),
        (Keeping(size_bytes=1), []),
    ],
)
def test_applied_segments_stay_for_a_while(
    target: str,
    tmp_path: Path,
    log: LogMaker,
    keeping: Keeping,
    left: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Old or surplus files are deleted although removeFiles is false; files still
    needed never are.
    """
    monkeypatch.setattr("penstock.log.closing.LOOK_INTERVAL_S", 0.05)
    folder = tmp_path / "log"
    for name in ("0.ckt", "1.ckt"):
        os.utime(folder / name, (0, 0))
    running = Running(target, tmp_path, keeping=keeping)
    until(lambda: running.loader.applied_position.gsn == 12)
    until(lambda: sorted(path.name for path in folder.glob("*.ckt")) == left)
    running.word.text = "PAUSE"
    until(lambda: running.loader.state.state == "paused")
    add(log, 6)
    log.close_segment()
    os.utime(folder / "3.ckt", (0, 0))
    running.word.text = "RUN"
    until(lambda: running.loader.applied_position.gsn == 14)
    running.end(stop=True)
    check(target, 7)
