"""An extractor of SQL Server is killed at every kind of moment, and its server fails, without any
effect.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.pipeline import write_pipeline
from harness.pipelines.stream import ABSENT, changes_of
from harness.servers.sqlserver_place import SQLServerPlace
from penstock.log import check, list_segments, open_chain
from penstock.model import MarkerKind, Run
from plugins.sqlserver import SimServer

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
MOMENTS = [
    "extract.write.after:3",
    "extract.flush.before:2",
    "extract.flush.after:2",
    "extract.acknowledge.after:2",
    "extract.rotate.before:1",
    "extract.rotate.after:1",
    "extract.record.before:1",
    "extract.done.before:1",
    "changes.read.before:2",
    "changes.confirm.before:1",
    "changes.confirm.after:2",
    "changes.acknowledge.after:1",
    "log.create.before:1",
    "log.flush.before:3",
    "log.flush.after:1",
    "files.replace:3",
]
STATE = "sqlserver-tables.json"
ENDED_BY_S = 300
WITHIN_S = 240.0
LARGE = "x" * 9000


class Bench:
    """A captured table, and extractions of it by `penstock extract`."""

    def __init__(self, server: SimServer, folder: Path) -> None:
        self.server = server
        self.place = SQLServerPlace(server)
        self.place.run("create table t (id int primary key, v varchar(200), big text)")
        self.directory = folder / "shop"
        self.file = write_pipeline(
            folder,
            self.place.url,
            None,
            tables=["dbo.*"],
            sections={
                "changeExtractor": {
                    "exitWhenIdle": True,
                    "idleWaitSeconds": 1.0,
                    "flushIntervalSeconds": 0.1,
                    "eventsPerFlush": 20,
                }
            },
        )

    def start(self, fault: str = "") -> subprocess.Popen[bytes]:
        """Start an extraction."""
        return subprocess.Popen(
            [sys.executable, "-m", "penstock", "extract", str(self.file), "--json"],
            env={**os.environ, "PENSTOCK_FAULT": f"{fault}:kill" if fault else ""},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def extract(self, fault: str = "") -> int:
        """Run one extraction until it ends or dies; return the exit code."""
        process = self.start(fault)
        _, said = process.communicate(timeout=ENDED_BY_S)
        assert process.returncode in (0, -signal.SIGKILL), said.decode()[-3000:]
        return process.returncode

    def work(self) -> None:
        """Write small transactions, a larger one, changed keys and large values, a new column."""
        run = self.place.run
        for number in range(25):
            run(
                "BEGIN TRANSACTION; "
                f"insert into t values ({number}, 'a', '{LARGE}'); "
                f"update t set v = 'b' where id = {number}; COMMIT TRANSACTION"
            )
        for at in range(100, 1300, 400):
            many = ", ".join(f"({number}, 'many', null)" for number in range(at, at + 400))
            run(f"insert into t values {many}")
        run(
            "update t set id = id + 10000 where id < 10", "delete from t where id between 10 and 19"
        )
        run("alter table t add c int")
        self.place.capture("t", "dbo_t_2")
        for number in range(4000, 4025):
            run(f"insert into t values ({number}, 'c', null, {number})")
        self.place.wait_captured()

    def check(self) -> None:
        """Check that the log is whole, and leads to the table's rows."""
        shown = "select id, v, len(big), c from t"
        expected = {row[0]: row[1:] for row in self.place.run(shown)}
        assert self._replay() == expected
        assert [f for f in check(self.directory / "log") if f.severity == "error"] == []

    def _replay(self) -> dict[int, tuple[Any, ...]]:
        """Return the table by applying the log's rows in order; fails on anything unexpected.

        The new column's values may be read again: then the table's rows come once more.
        """
        table: dict[int, dict[str, Any]] = {}
        last_gsn = last_trx = 0
        for segment in open_chain(list_segments(self.directory / "log")):
            with segment:
                changes = changes_of(Run(rows=tuple(segment.rows())))
                reloads = [m.gsn for m in segment.markers() if m.kind is MarkerKind.RELOAD]
            for change in changes:
                if reloads and change.gsn > reloads[0]:
                    del reloads[0]
                    table.clear()
                assert change.gsn > last_gsn
                assert change.trx >= last_trx
                last_gsn, last_trx = change.gsn, change.trx
                before = (change.before or {}).get("id")
                if change.op == "D":
                    del table[before]
                    continue
                assert change.after is not None
                key = change.after["id"]
                old = table.pop(before if before is not None else key, {})
                assert bool(old) is (change.op == "U")
                assert key not in table
                sent = {name: it for name, it in change.after.items() if it != ABSENT}
                table[key] = {**old, **sent}
        return {
            key: (row["v"], None if row["big"] is None else len(row["big"]), row.get("c"))
            for key, row in table.items()
        }


@pytest.fixture
def bench(sqlserver: SimServer, tmp_path: Path) -> Any:
    """A table, and a log that begins before its first row."""
    made = Bench(sqlserver, tmp_path)
    assert made.extract() == 0
    yield made
    made.place.drop()


CASES = [
    pytest.param(
        moment,
        exact,
        id=f"{moment}-{'exact' if exact else 'behind'}",
        marks=[] if exact == (number % 2 == 0) and number % 4 < 2 else [pytest.mark.long],
    )
    for number, moment in enumerate(MOMENTS)
    for exact in (True, False)
]


@pytest.mark.promise
@pytest.mark.parametrize(("moment", "exact"), CASES)
def test_killed_and_started_again(bench: Bench, moment: str, *, exact: bool) -> None:
    """Every row comes once and in order, even if only an older state is left."""
    state = bench.directory / "state" / STATE
    older = state.read_bytes()
    worker = threading.Thread(target=bench.work)
    worker.start()
    code = bench.extract(moment)
    worker.join()
    for _ in range(3):
        if code == -signal.SIGKILL:
            break
        code = bench.extract(moment)  # it was idle before the moment came
    assert code == -signal.SIGKILL, f"{moment} was never reached"
    if not exact:
        state.write_bytes(older)
    assert bench.extract() == 0
    bench.check()


@pytest.mark.promise
def test_killed_again_and_again(bench: Bench) -> None:
    """Every row comes once and in order after kills at random moments."""
    worker = threading.Thread(target=bench.work)
    worker.start()
    for _ in range(5):
        process = bench.start()
        time.sleep(random.uniform(0.8, 2.5))
        process.kill()
        process.communicate()
    worker.join()
    assert bench.extract() == 0
    bench.check()


FAILURES: dict[str, Callable[[SQLServerPlace], Any]] = {
    "deadlock victim": lambda place: place.run(
        "EXEC sim.fail_next @number = 1205, @like = N'_CT', @times = 2"
    ),
    "connection cut while rows are read": lambda place: place.run(
        "EXEC sim.fail_next @number = 0, @like = N'_CT', @times = 2"
    ),
    "connection cut at the check": lambda place: place.run(
        "EXEC sim.fail_next @number = 0, @like = N'change_tables', @times = 2, @after = 3"
    ),
    "fail-over": lambda place: place.run("EXEC sim.fail_over 0"),
    "Agent stopped and started": lambda place: place.run("EXEC sim.stop_agent"),
    "range refused": lambda place: place.run(
        "EXEC sim.fail_next @number = 313, @like = N'_CT', @times = 1"
    ),
}


@pytest.mark.promise
@pytest.mark.parametrize("failure", list(FAILURES))
def test_a_server_that_fails(bench: Bench, failure: str) -> None:
    """The extraction continues without a new start, and every row comes once and in order."""
    text = bench.file.read_text()
    bench.file.write_text(text.replace("exitWhenIdle = true", "exitWhenIdle = false"))
    process = bench.start()
    try:
        bench.place.run("insert into t values (90000, 'first', null)")
        _until(lambda: _has_segments(bench.directory), "a segment")
        worker = threading.Thread(target=bench.work)
        FAILURES[failure](bench.place)
        if failure == "Agent stopped and started":
            bench.place.run("insert into t values (90001, 'unseen', null)")
            time.sleep(1.5)
            bench.place.run("EXEC sim.start_agent")
        if failure == "fail-over":
            bench.place.run(
                "EXEC sys.sp_cdc_add_job @job_type = N'capture'; "
                "EXEC sys.sp_cdc_add_job @job_type = N'cleanup'"
            )
        worker.start()
        worker.join()
        time.sleep(3.0)
        assert process.poll() is None, "it ended"
    finally:
        process.terminate()
        _, said = process.communicate(timeout=ENDED_BY_S)
    assert process.returncode == 0, said.decode()[-2000:]
    bench.file.write_text(text)
    assert bench.extract() == 0
    bench.check()


def _has_segments(directory: Path) -> bool:
    return any((directory / "log").glob("*.ckt*"))


def _until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WITHIN_S:.0f} s: {what}"
        time.sleep(0.1)
