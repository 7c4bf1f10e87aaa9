"""An extractor that is killed at every kind of moment, and whose server fails, without any effect.

Not here: what is particular to an engine (`tests/faults/test_<engine>_extract_kill.py`).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from harness.pipelines.pipeline import write_pipeline
from harness.pipelines.stream import ABSENT, changes_of
from harness.servers.engines import Place
from penstock.log import check, list_segments, open_chain
from penstock.model import MarkerKind, Run

# Moments of every engine.
MOMENTS = (
    "extract.write.after:3",
    "extract.flush.before:2",
    "extract.flush.after:2",
    "extract.acknowledge.after:2",
    "extract.rotate.before:1",
    "extract.rotate.after:1",
    "extract.record.before:1",
    "extract.done.before:1",
    "log.create.before:1",
    "log.flush.before:3",
    "log.flush.after:1",
    "files.replace:3",
)
ENDED_BY_S = 300
WITHIN_S = 240.0
LARGE = "x" * 9000
P = TypeVar("P", bound=Place)


class Bench(Generic[P]):
    """A captured table, and extractions of it by `penstock extract`.

    Attributes:
        place: Database of the table.
        state: Path of the file with the engine's own state, which is saved now and then.
    """

    def __init__(self, place: P, folder: Path, state: str) -> None:
        self.place = place
        self.state = folder / "shop" / "state" / state
        place.run("create table t (id int primary key, v varchar(200), big text)")
        self.directory = folder / "shop"
        self.file = write_pipeline(
            folder,
            self.place.url,
            None,
            tables=[f"{place.namespace}.*"],
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

    def in_transaction(self, *statements: str) -> None:
        """Run statements in one transaction."""
        self.place.run("; ".join(statements))

    def add_column(self) -> None:
        """Add the column c."""
        self.place.run("alter table t add c int")

    def wait_written(self) -> None:
        """Wait until the server's log has everything that is committed."""

    def work(self) -> None:
        """Write small transactions, a larger one, changed keys and large values, a new column."""
        run = self.place.run
        for number in range(25):
            self.in_transaction(
                f"insert into t values ({number}, 'a', '{LARGE}')",
                f"update t set v = 'b' where id = {number}",
            )
        for at in range(100, 1300, 400):
            many = ", ".join(f"({number}, 'many', null)" for number in range(at, at + 400))
            run(f"insert into t values {many}")
        run(
            "update t set id = id + 10000 where id < 10", "delete from t where id between 10 and 19"
        )
        self.add_column()
        for number in range(4000, 4025):
            run(f"insert into t values ({number}, 'c', null, {number})")
        self.wait_written()

    def add_rows(self, ended: threading.Event) -> None:
        """Insert one row after the other, so that an extraction is not idle until it has ended."""
        number, end_s = 20_000, time.monotonic() + WITHIN_S
        while not ended.wait(0.05) and time.monotonic() < end_s:
            self.place.run(f"insert into t (id, v) values ({number}, 'more')")
            number += 1
        self.wait_written()

    def check(self) -> None:
        """Check that the log is whole, and leads to the table's rows."""
        found = self.place.run("select id, v, big, c from t")
        expected = {row[0]: (row[1], row[2] and len(row[2]), row[3]) for row in found}
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


def kill_and_start_again(bench: Bench[Any], moment: str, *, is_exact: bool) -> None:
    """Kill an extraction at a moment and start it again; every row comes once and in order.

    Without is_exact only an older state of the engine is left.
    """
    older = bench.state.read_bytes()
    worker = threading.Thread(target=bench.work)
    worker.start()
    code = bench.extract(moment)
    worker.join()
    if code != -signal.SIGKILL:  # on a busy machine it was idle before the moment came
        ended = threading.Event()
        worker = threading.Thread(target=bench.add_rows, args=(ended,))
        worker.start()
        try:
            code = bench.extract(moment)
        finally:
            ended.set()
            worker.join()
    assert code == -signal.SIGKILL, f"{moment} was never reached"
    if not is_exact:
        bench.state.write_bytes(older)
    assert bench.extract() == 0
    bench.check()


def kill_at_random(bench: Bench[Any]) -> None:
    """Kill extractions at random moments; every row comes once and in order."""
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


def fail_and_go_on(bench: Bench[Any], fail: Callable[[], None]) -> None:
    """Let the server fail while an extraction runs, which continues without a new start."""
    text = bench.file.read_text()
    bench.file.write_text(text.replace("exitWhenIdle = true", "exitWhenIdle = false"))
    before = _sizes(bench.directory / "log")
    process = bench.start()
    try:
        bench.place.run("insert into t values (90000, 'first', null)")
        # Not earlier: a failure during the checks of the start ends the process.
        until(lambda: _sizes(bench.directory / "log") != before, "a row in the log")
        fail()
        worker = threading.Thread(target=bench.work)
        worker.start()
        worker.join()
        time.sleep(3.0)
        assert process.poll() is None, process.communicate()[1].decode()[-2000:]
    finally:
        process.terminate()
        _, said = process.communicate(timeout=ENDED_BY_S)
    assert process.returncode == 0, said.decode()[-2000:]
    bench.file.write_text(text)
    assert bench.extract() == 0
    bench.check()


def _sizes(directory: Path) -> dict[str, int]:
    """Return the sizes of the segments in a log's folder."""
    return {one.name: one.stat().st_size for one in directory.glob("*.ckt*")}


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition. Raises AssertionError."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WITHIN_S:.0f} s: {what}"
        time.sleep(0.1)


def cases_of(moments: Sequence[str]) -> list[Any]:
    """Return parameters (moment, is_exact): two for each moment, most of them long."""
    return [
        pytest.param(
            moment,
            is_exact,
            id=f"{moment}-{'exact' if is_exact else 'behind'}",
            marks=[] if is_exact == (number % 2 == 0) and number % 4 < 2 else [pytest.mark.long],
        )
        for number, moment in enumerate(moments)
        for is_exact in (True, False)
    ]
