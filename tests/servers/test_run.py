"""`penstock run` on real servers: its whole life, and every way to end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes
from penstock.host.process import process_alive
from penstock.load.loader_state import read_loader_state

WAIT_S = 120.0
LIVELY = {"flushIntervalSeconds": 0.3, "idleWaitSeconds": 1.5}


@contextmanager
def running(path: Path, command: str = "run") -> Iterator[subprocess.Popen[str]]:
    """Run the command in a separate process; kill it after the block if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", command, str(path), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        lines.extend(iter(process.stdout.readline, ""))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    process.lines = lines  # type: ignore[attr-defined]
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(5)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def events(process: subprocess.Popen[str]) -> list[str]:
    """Return the events of the run so far."""
    objects = [json.loads(line) for line in process.lines]  # type: ignore[attr-defined]
    return [item["text"] for item in objects if "text" in item]


def until(condition: Callable[[], Any], what: str, process: subprocess.Popen[str]) -> None:
    """Wait for a condition while the process runs."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if process.poll() is not None:
            assert process.stderr is not None
            raise AssertionError(f"ended with {process.returncode}: {process.stderr.read()}")
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(0.1)


def wait_for_end(process: subprocess.Popen[str], code: int, within_s: float = WAIT_S) -> None:
    """Wait for the end and check the exit code."""
    assert process.wait(within_s) == code, process.stderr.read() if process.stderr else ""


def pids(path: Path) -> dict[str, int]:
    """Return the process ids of run, extract and load; 0 for one that does not run."""
    return {process.name: process.pid for process in processes(load_config(path))}


class Shop:
    """A source and a target with a small table and customers."""

    def __init__(self, source_url: str, target_url: str) -> None:
        self.source = psycopg.connect(source_url, autocommit=True)
        self.target = psycopg.connect(target_url, autocommit=True)
        self.source.execute("create table item (id int primary key, n int not null, t text)")
        self.source.execute(
            "insert into item select g, 0, repeat('x', 40) from generate_series(1, 2000) as g"
        )
        self.source.execute("create table note (t text)")
        self.source.execute("alter table note replica identity full")
        self.next_id = 10_000

    def buy(self, count: int = 20) -> None:
        """Run a few transactions: inserts, updates, a key change, deletes, rows without key."""
        for _ in range(count):
            self.next_id += 1
            with self.source.transaction():
                self.source.execute("insert into item values (%s, 1, 'new')", (self.next_id,))
                self.source.execute(
                    "update item set n = n + 1 where id = %s", (self.next_id % 1000 + 1,)
                )
                self.source.execute(
                    "update item set id = -id where id = %s", (self.next_id % 700 + 1000,)
                )
                self.source.execute("insert into note values ('same'), (%s)", (str(self.next_id),))
                if self.next_id % 3 == 0:
                    self.source.execute(
                        "delete from note where ctid = (select min(ctid) from note)"
                    )

    SUMS = """
        select (select row(count(*), sum(id), sum(n), sum(length(t)))::text from item),
               (select row(count(*), md5(string_agg(t, ',' order by t)))::text from note)
    """

    def equal(self) -> bool:
        """Return whether both sides have the same sums now."""
        try:
            there = self.target.execute(self.SUMS).fetchone()
        except psycopg.errors.UndefinedTable:
            return False
        return there == self.source.execute(self.SUMS).fetchone()

    def close(self) -> None:
        """Close both connections."""
        self.source.close()
        self.target.close()


@pytest.fixture
def shop(source_url: str, target_url: str) -> Iterator[Shop]:
    """A shop with two thousand items."""
    made = Shop(source_url, target_url)
    yield made
    made.close()


def shop_file(folder: Path, source: str, target: str, **options: Any) -> Path:
    """Write a pipeline over the shop that flushes often."""
    sections = {"changeExtractor": {**LIVELY, **options.pop("extractor", {})}}
    return write_pipeline(folder, source, target, sections=sections, **options)


def are_gone(numbers: list[int]) -> bool:
    """Return whether none of these processes runs any more."""
    return not any(process_alive(pid) for pid in numbers)


@pytest.mark.promise
@pytest.mark.spark
@pytest.mark.slow
def test_the_life_of_a_pipeline(
    shop: Shop, tmp_path: Path, source_url: str, target_url: str
) -> None:
    """A pipeline loads, hands over, follows, survives kills, pauses, verifies, stops
    and continues.
    """
    path = shop_file(tmp_path, source_url, target_url)
    with running(path) as run:
        while_loading(shop, run)
        watched_by_sql(shop, path)
        refused_beside(path, run)
        survives_kills(shop, path, run)
        check_pause(shop, path, run)
        shop.buy()
        verified = penstock("verify", path, "--json")
        assert (verified.code, verified.result["equal"]) == (0, True), verified
        halves = [pid for pid in pids(path).values() if pid]
        assert len(halves) == 3
        run.send_signal(signal.SIGTERM)
        wait_for_end(run, 0)
        assert are_gone(halves)
    shop.buy(5)  # while nothing runs
    path = shop_file(tmp_path, source_url, target_url, extractor={"exitWhenIdle": True})
    with running(path) as run:
        wait_for_end(run, 0)
        assert any(event.startswith("goes on from an earlier run") for event in events(run))
    assert shop.equal()
    assert (tmp_path / "shop" / "log" / "CHANGE.DONE").exists()
    shop.target.execute("update item set t = 'wrong' where id = 5")
    verified = penstock("verify", path, "--json")
    assert (verified.code, verified.result["equal"]) == (1, False)
    assert "5" in json.dumps(verified.result["tables"])


def while_loading(shop: Shop, run: subprocess.Popen[str]) -> None:
    """Let customers buy from the start; only the beginning of the changes is reported."""
    until(lambda: (shop.buy(3), read_applied(shop) > 0)[1], "changes are applied", run)
    until(shop.equal, "the target follows", run)
    assert not any(event.startswith("handover") for event in events(run))
    assert sum(event.startswith("position ") for event in events(run)) == 1


def watched_by_sql(shop: Shop, path: Path) -> None:
    """Check that the published queries run as printed, and that status and lag agree."""
    for operation in ("CE", "CL"):
        rows = shop.target.execute(
            f"""
            SELECT source, mark, start_time, finish_time
            FROM wirekite.wirekite_progress
            WHERE operation = '{operation}'
            ORDER BY start_time DESC
            LIMIT 5;
            """
        ).fetchall()
        assert rows
        assert all(row[1] for row in rows if row[3] is not None)
    row = shop.source.execute(
        """
        SELECT slot_name,
               pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) AS lag_bytes
        FROM pg_replication_slots
        WHERE slot_name = 'wirekite_replication_slot';
        """
    ).fetchone()
    assert row is not None
    assert row[1] >= 0
    found = penstock("status", path, "--json").result
    assert found["processes"].keys() == {"run", "extract", "load"}
    assert all(found["processes"].values())
    assert found["bulk"]["phase"] == "done"
    assert [step["number"] for step in found["handover"]["steps"]] == [1, 2, 3, 4]
    assert found["log"]["gsn"] > 0
    lag = penstock("lag", path, "--json").result
    assert lag["lag_seconds"] >= 0
    assert lag["extracting"] is True


def refused_beside(path: Path, run: subprocess.Popen[str]) -> None:
    """Check that neither a second run nor a single half may work on the same directory."""
    for command in ("run", "extract", "load"):
        ran = penstock(command, path, "--json")
        assert (ran.code, ran.error["code"]) == (1, "CT02")
    assert run.poll() is None


def survives_kills(shop: Shop, path: Path, run: subprocess.Popen[str]) -> None:
    """Kill each half; it is restarted, and nothing is lost or applied twice."""
    for half in ("extract", "load"):
        before = pids(path)[half]
        os.kill(before, signal.SIGKILL)
        shop.buy()
        until(lambda: pids(path)[half] not in (0, before), f"{half} runs again", run)  # noqa: B023
        until(shop.equal, "the target follows again", run)
        assert any(f"{half} was killed by SIGKILL" in event for event in events(run))
    restarts = shop.target.execute("select sum(restarts) from wirekite.wirekite_progress")
    row = restarts.fetchone()
    assert row is not None
    assert row[0] >= 0


def is_paused(folder: Path) -> bool:
    """Return whether the loader reports that it is paused."""
    state = read_loader_state(folder)
    return state is not None and state.state == "paused"


def check_pause(shop: Shop, path: Path, run: subprocess.Popen[str]) -> None:
    """Check that PAUSE holds both halves, and that RUN lets them continue."""
    act = "update wirekite.wirekite_action set action = %s"
    shop.target.execute(act, ("PAUSE",))
    folder = load_config(path).layout.run
    until(lambda: "extraction paused" in (folder / "extract.log").read_text(), "it pauses", run)
    until(lambda: is_paused(folder), "the loader pauses", run)
    applied = "select applied_gsn from wirekite.wirekite_log"
    before = shop.target.execute(applied).fetchone()
    shop.buy()
    time.sleep(3)  # time in which nothing may happen
    assert shop.target.execute(applied).fetchone() == before
    assert run.poll() is None
    shop.target.execute(act, ("RUN",))
    until(shop.equal, "the target follows after the pause", run)


@pytest.mark.spark
@pytest.mark.slow
def test_halves_end_when_the_run_is_killed(
    shop: Shop, tmp_path: Path, source_url: str, target_url: str
) -> None:
    """No process keeps working after kill -9 of `penstock run`; the next run continues."""
    path = shop_file(tmp_path, source_url, target_url)
    with running(path) as run:
        until(lambda: all(pids(path).values()), "both halves run", run)
        halves = [pids(path)["extract"], pids(path)["load"]]
        time.sleep(2)
        run.kill()
        run.wait()
        deadline = time.monotonic() + 60
        while not are_gone(halves):
            assert time.monotonic() < deadline, "the halves outlive their parent"
            time.sleep(0.2)
    shop.buy()
    path = shop_file(tmp_path, source_url, target_url, extractor={"exitWhenIdle": True})
    with running(path) as run:
        wait_for_end(run, 0)
    assert shop.equal()


@pytest.mark.spark
@pytest.mark.slow
def test_stop_and_nonsense_in_the_action_table(
    shop: Shop, tmp_path: Path, source_url: str, target_url: str
) -> None:
    """STOP ends a run in order; an unknown word ends it with the error of the half."""
    path = shop_file(tmp_path, source_url, target_url, mode="change")
    shop.target.execute("create table item (id int primary key, n int not null, t text)")
    shop.target.execute("create table note (t text)")
    act = "update wirekite.wirekite_action set action = %s"
    with running(path) as run:
        until(lambda: all(pids(path).values()), "both halves run", run)
        until(lambda: (tmp_path / "shop/log/LOG.json").exists(), "the log is there", run)
        shop.buy(1)
        until(lambda: read_applied(shop) > 0, "changes are applied", run)
        shop.target.execute(act, ("STOP",))
        wait_for_end(run, 0)
    shop.target.execute(act, ("NONSENSE",))
    ran = penstock("run", path, "--json")
    assert ran.code == 1
    assert ran.error["code"] == "CT40"
    assert ran.error["process"] == "load"
    assert "NONSENSE" in ran.error["error"]


def read_applied(shop: Shop) -> int:
    """Return the last GSN that is applied; 0 before any."""
    try:
        row = shop.target.execute("select applied_gsn from wirekite.wirekite_log").fetchone()
    except psycopg.errors.UndefinedTable:
        return 0
    return int(row[0]) if row else 0


@pytest.mark.spark
@pytest.mark.slow
def test_mode_data_copies_once(
    shop: Shop, tmp_path: Path, source_url: str, target_url: str
) -> None:
    """Mode data creates no slot and no publication, and ends with 0; a repeat has nothing to do."""
    path = shop_file(tmp_path, source_url, target_url, mode="data")
    ran = penstock("run", path, timeout_s=WAIT_S)
    assert ran.code == 0, ran
    assert "everything is loaded: done" in ran.out
    assert shop.equal()
    assert shop.source.execute("select count(*) from pg_publication").fetchone() == (0,)
    assert shop.source.execute(
        "select count(*) from pg_replication_slots where database = current_database()"
    ).fetchone() == (0,)
    again = penstock("load", path, timeout_s=WAIT_S)
    assert again.code == 0, again
    assert shop.equal()


@pytest.mark.spark
@pytest.mark.slow
def test_interrupt_before_anything_has_begun(
    shop: Shop, tmp_path: Path, source_url: str, target_url: str
) -> None:
    """Ctrl-C at any early moment ends with 0, twice at once; the pipeline can be continued."""
    path = shop_file(tmp_path, source_url, target_url, extractor={"exitWhenIdle": True})
    moments: dict[str, Callable[[subprocess.Popen[str]], Any]] = {
        "it has said something": events,
        "the loader runs": lambda _: pids(path)["load"],
        "both halves run": lambda _: all(pids(path).values()),
    }
    for what, come in moments.items():
        with running(path) as run:
            until(lambda: come(run), what, run)  # noqa: B023
            run.send_signal(signal.SIGINT)
            wait_for_end(run, 0)
    with running(path) as run:  # a second one does not wait
        until(lambda: all(pids(path).values()), "both halves run", run)
        halves = [pids(path)["extract"], pids(path)["load"]]
        run.send_signal(signal.SIGINT)
        until(lambda: "stopping" in events(run), "it has heard the first one", run)
        run.send_signal(signal.SIGINT)
        wait_for_end(run, 130)
        assert are_gone(halves)
    with running(path) as run:
        wait_for_end(run, 0)
    assert shop.equal()
