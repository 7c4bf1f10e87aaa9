"""The Spark session: start, jobs, death of its processes, end. It needs no database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import penstock
from harness.pipelines.log import ITEM, SOURCE, Change, number_rows, run_of
from penstock.load import java
from penstock.load import session as sessions
from penstock.load.session import (
    Session,
    SessionOptions,
    start_session,
)
from penstock.log import Writer
from penstock.model import Column, Op

pytestmark = pytest.mark.spark

GIVE_UP_S = 8.0  # a start takes 5 to 20; ending it, next to nothing on an idle machine


Work = Callable[[Iterator[int]], Iterable[int]]

# Nested functions are sent to the workers by value: workers cannot import test modules.


def double() -> Work:
    """Return work that doubles each task."""
    return lambda tasks: [2 * task for task in tasks]


def die() -> Work:
    """Return work that kills the worker process."""

    def work(tasks: Iterator[int]) -> Iterable[int]:
        os.kill(os.getpid(), signal.SIGKILL)
        return tasks

    return work


def stumble() -> Work:
    """Return work that fails with an unexpected error."""

    def work(tasks: Iterator[int]) -> Iterable[int]:
        raise ValueError(f"no good: {next(tasks)}")

    return work


def test_results_come_in_order_of_the_partitions(spark: Session) -> None:
    """Results come in the order of the partitions, and every task runs once."""
    assert spark.run([[1, 2], [3], []], double()) == [2, 4, 6]
    assert spark.run([], double()) == []
    assert len(spark.run([[i, i] for i in range(10)], double())) == 20


def repeat() -> Work:
    """Return work that yields a large number and each number below the task."""

    def work(tasks: Iterator[int]) -> Iterable[int]:
        for task in tasks:
            yield 2**20
            yield from range(task)

    return work


def test_all_results_of_a_task_arrive(spark: Session) -> None:
    """A task may yield more than Spark's serializer puts into one batch."""
    found = spark.run([[3, 20_000], [], [1]], repeat())
    assert found == [2**20, *range(3), 2**20, *range(20_000), 2**20, 0]


def test_java_ends_up_in_a_session_of_its_own(spark: Session) -> None:
    """Ctrl-C reaches the process group of the terminal, and the JVM is not in it."""
    assert os.getsid(spark.java_pid) == spark.java_pid != os.getsid(0)


def test_a_worker_that_dies_is_a_typed_error_and_the_session_goes_on(spark: Session) -> None:
    """SIGKILL in a task gives an error that allows a retry, in the same session."""
    with pytest.raises(sessions.WorkerLost) as caught:
        spark.run([[1], [2]], die())
    assert caught.value.retry == "backoff"
    assert spark.run([[4]], double()) == [8]


def test_an_unknown_failure_tells_its_last_line(spark: Session) -> None:
    """An error without a type of its own is shown in one line, not as a Java stack."""
    with pytest.raises(sessions.SparkJobFailed) as caught:
        spark.run([[7]], stumble())
    assert caught.value.message.endswith("ValueError: no good: 7")


def test_a_killed_java_is_a_typed_error_and_a_new_session_starts(tmp_path: Path) -> None:
    """SIGKILL of the JVM leaves no file in the folder. The test runs in its own process."""
    script = f"""
import os, signal
from pathlib import Path
from penstock.load.session import SessionOptions, SparkLost, start_session
def double():
    return lambda tasks: [2 * task for task in tasks]
options = SessionOptions(work_directory=Path({str(tmp_path / "work")!r}))
session = start_session(options)
os.kill(session.java_pid, signal.SIGKILL)
try:
    session.run([[1]], double())
except SparkLost as error:
    assert error.retry == "backoff"
else:
    raise SystemExit("no error")
session.close()
with start_session(options) as session:
    assert session.run([[1]], double()) == [2]
"""
    place = tmp_path / "cwd"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []
    assert "\n" not in done.stderr.strip(), done.stderr


@pytest.mark.parametrize("after_s", [0.0, 0.7, 2.5, 4.0])
def test_a_start_that_is_given_up_ends_at_once(tmp_path: Path, after_s: float) -> None:
    """The JVM is killed at any step of the start; another session can be started afterwards."""
    script = f"""
import os, time
from pathlib import Path
from penstock.load.session import PendingSession, SessionOptions, start_session
def double():
    return lambda tasks: [2 * task for task in tasks]
def children():
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            found += [place.name] if parent == os.getpid() else []
    return found
options = SessionOptions(work_directory=Path({str(tmp_path / "work")!r}), master="local[2]")
pending = PendingSession(options)
time.sleep({after_s})
began = time.monotonic()
assert pending.wait(lambda: True) is pending.ready
pending.close()
print("given up after", time.monotonic() - began)
assert children() == []
with start_session(options) as session:
    assert session.run([[1]], double()) == [2]
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("given up after")]
    assert float(told[0].split()[-1]) < GIVE_UP_S, done.stdout


def test_missing_and_wrong_java_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both errors come before a JVM is started, and say what to install."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(java.JavaMissing) as missing:
        start_session(SessionOptions(work_directory=tmp_path / "work"))
    assert "JAVA_HOME" in missing.value.message
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\n")
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(java.JavaUnsuitable) as wrong:
        java.check_java()
    assert "Java 8" in wrong.value.message
    assert "openjdk-17" in wrong.value.hint


# PySpark leaves the socket of its rows to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_change_log_becomes_a_spark_data_frame(spark: Session, tmp_path: Path) -> None:
    """`read_log(...).to_spark(session)` has every type of the log, NULL and unsent values."""
    columns = {"small": "int16", "big": "uint64", "day": "date", "hour": "time", "token": "uuid"}
    wide = replace(
        ITEM,
        columns=(
            *ITEM.columns,
            *(Column(name=n, source_type=t, neutral=t) for n, t in columns.items()),
        ),
    )
    everything = Change(
        relation=wide,
        op=Op.INSERT,
        after=(1, None, 2, 2**64 - 1, 0, 3_600_000_000, bytes(range(16))),
    )
    (group,) = number_rows(
        [[everything, Change(relation=wide, op=Op.DELETE, after=None, before=(1,))]]
    )
    with Writer.open(tmp_path, log_id=None, source=SOURCE) as log:
        log.write(run_of(group))
        log.flush()
    frame = penstock.read_log(tmp_path).to_spark(SparkSession(SparkContext.getOrCreate()))
    inserted, deleted = frame.orderBy("_gsn").collect()
    assert (inserted.small, inserted.big, inserted.hour) == (2, 2**64 - 1, "01:00:00")
    assert (inserted.note, inserted.day) == (None, date(1970, 1, 1))
    assert inserted.token == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert (deleted.id, deleted["_before"].id, deleted["_op"]) == (1, 1, "delete")
    assert deleted["_absent"] == ["note", *columns]
