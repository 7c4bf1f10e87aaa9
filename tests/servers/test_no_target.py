"""A pipeline without [target] on real servers: only extraction, its progress in a SQLite file."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.extract import log_changes
from harness.pipelines.mysql_pipe import load_log
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.servers.engines import ENGINES, Place, new_place
from harness.servers.published import CE_QUERY, CL_QUERY
from penstock.control.doctor.doctor import examine
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes
from penstock.load.sql_target import LogGap
from penstock.log.layout import SegmentMissing, list_segments
from penstock.log.segment import open_segment
from penstock.ports.positions import positions_of
from penstock.ports.progress import SHOWN_MAX
from plugins.shared import SharedServers

IDLE = {**LIVELY, "exitWhenIdle": True, "idleWaitSeconds": 0.7}
ROUNDS = 3


class Shop:
    """A table at a source, its customer, and the pipeline file."""

    def __init__(self, place: Place, kind: str, folder: Path) -> None:
        self.place, self.kind, self.folder = place, kind, folder
        self.path = folder / "shop.toml"
        self.bought = 0
        place.run("create table item (id int primary key, n int)")
        self.write_file()

    def write_file(self, target: str | None = None, **extractor: Any) -> Path:
        """Write the file: without target unless one is given."""
        return write_pipeline(
            self.folder,
            self.place.url,
            target,
            mode="change",
            tables=[f"{self.place.namespace}.*"],
            sections={"changeExtractor": {**LIVELY, **extractor}},
        )

    def buy(self, count: int = 10) -> None:
        """Run so many transactions of one row."""
        for _ in range(count):
            self.bought += 1
            self.place.run(f"insert into item values ({self.bought}, 0)")

    @property
    def file(self) -> Path:
        """File that has the progress."""
        return self.folder / "shop" / "state" / "wirekite.db"

    def ask_sqlite(self, query: str) -> list[tuple[Any, ...]]:
        """Return another SQLite program's answer, with the file as `wirekite`."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        try:
            connection.execute("attach ? as wirekite", (str(self.file),))
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def act(self, word: str) -> None:
        """Write the action as the documentation says."""
        self.ask_sqlite(f"update wirekite.wirekite_action set action = '{word}'")

    def pid(self, name: str) -> int:
        """Return the process id of one process; 0 if it does not run."""
        return next(one.pid for one in processes(load_config(self.path)) if one.name == name)

    def status(self) -> dict[str, Any]:
        """Return the status as `--json` prints it."""
        found: dict[str, Any] = penstock("status", self.path, "--json").result
        return found

    def read_logged(self) -> list[int]:
        """Return the numbers of the inserted rows in closed segments, in the log's order."""
        found = log_changes(load_config(self.path).directory)
        assert [change.gsn for change in found] == list(range(1, len(found) + 1))
        return [int(change.after["id"]) for change in found]

    def in_log(self) -> int:
        """Return the last GSN in the log, including the open segment."""
        gsn: int = self.status()["log"]["gsn"]
        return gsn

    def wait_until_begun(self, run: Process) -> None:
        """Wait until its extraction has a position: later purchases are in the log."""
        run.until(lambda: self.status()["log"]["log_id"] and self.pid("extract"), "it extracts")

    def finish(self) -> None:
        """Extract the remaining changes, until the source is idle."""
        self.write_file(exitWhenIdle=True, idleWaitSeconds=0.7)
        ran = penstock("run", self.path, "--json")
        assert ran.code == 0, ran
        self.write_file()


@pytest.fixture(params=ENGINES)
def shop(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Shop]:
    """Shop on a server of each engine."""
    with new_place(shared_servers, request.param) as place:
        made = Shop(place, request.param, tmp_path)
        yield made
        made.place.forget_log()


@pytest.mark.promise
def test_run_extracts_alone_and_obeys_the_file(shop: Shop) -> None:
    """Rows, the published queries, lag, pause and resume work from the first row to Ctrl-C."""
    with Process(shop.path) as run:
        extracts_alone(shop, run)
        check_pause(shop, run)
        run.stop(signal.SIGINT)
    shop.buy()  # while nothing runs
    assert lag_of(shop)["lag_seconds"] != 0
    shop.finish()
    assert shop.read_logged() == list(range(1, shop.bought + 1))


def extracts_alone(shop: Shop, run: Process) -> None:
    """Check that rows come into the log; SQLite and penstock give the same answers."""
    shop.wait_until_begun(run)
    shop.buy()
    assert run.events[0] == "checking source and this machine for pipeline shop"
    run.until(lambda: shop.in_log() == shop.bought, "all rows are in the log")
    run.until(lambda: any(row[3] for row in shop.ask_sqlite(CE_QUERY)), "rows of segments")
    rows = shop.ask_sqlite(CE_QUERY)
    assert all(row[1] for row in rows)
    assert shop.ask_sqlite(CL_QUERY) == []
    run.until(lambda: lag_of(shop)["lag_seconds"] == 0, "no lag")
    found = shop.status()
    assert found["processes"].keys() >= {"run", "extract"}
    assert (found["processes"]["load"], found["applied"], found["mode"]) == (None, None, "change")
    assert [row["mark"] for row in found["extracted_files"]] == [
        r[1] for r in shop.ask_sqlite(CE_QUERY)
    ]


def check_pause(shop: Shop, run: Process) -> None:
    """Check that PAUSE holds it, the lag says so, and RUN lets it continue."""
    shop.act("PAUSE")
    log = shop.folder / "shop" / "run" / "extract.log"
    run.until(lambda: "extraction paused" in log.read_text(), "it pauses")
    before = shop.in_log()
    shop.buy()
    time.sleep(1.5)  # time in which nothing may happen
    assert (shop.in_log(), shop.status()["action"]) == (before, "PAUSE")
    assert lag_of(shop)["lag_seconds"] != 0
    shop.act("RUN")
    run.until(lambda: shop.in_log() == shop.bought, "it goes on")


def lag_of(shop: Shop) -> dict[str, Any]:
    """Return the lag as `penstock lag --json` prints it: of the log, without a target."""
    found: dict[str, Any] = penstock("lag", shop.path, "--json").result
    if "applied_position" in found:
        applied = ("applied_position", "applied_lag_bytes", "rows_outstanding")
        assert [found[key] for key in applied] == [None, None, None]
    return found


@pytest.mark.promise
@pytest.mark.faults
def test_killed_again_and_again_it_has_each_row_once(shop: Shop) -> None:
    """The log and its rows are whole after kill -9 of the extract process, and of
    `penstock run`.
    """
    with Process(shop.path) as run:
        shop.wait_until_begun(run)
        for _ in range(ROUNDS):
            shop.buy(3)
            before = shop.pid("extract")
            run.until(lambda: shop.in_log() == shop.bought, "rows are in the log")
            os.kill(before, signal.SIGKILL)
            shop.buy()
            run.until(lambda: shop.pid("extract") not in (0, before), "it runs again")  # noqa: B023
        child = shop.pid("extract")
        run.send(signal.SIGKILL)
        run.wait_for_end()
    deadline = time.monotonic() + 30
    while shop.pid("extract") == child:
        assert time.monotonic() < deadline, "the half outlives its parent"
        time.sleep(0.1)
    shop.buy()
    shop.finish()
    assert shop.read_logged() == list(range(1, shop.bought + 1))
    files = {row[0] for row in shop.ask_sqlite("select target from wirekite.wirekite_progress")}
    log = load_config(shop.path).layout.log
    assert {file.path.name for file in list_segments(log)} <= files
    unfinished = "select count(*) from wirekite.wirekite_progress where finish_time is null"
    assert shop.ask_sqlite(unfinished) == [(0,)]


def test_stop_ends_it_and_nonsense_is_refused(shop: Shop) -> None:
    """STOP ends `penstock extract` in order; an unknown word is an error before it begins."""
    with Process(shop.path, "extract") as extract:
        shop.wait_until_begun(extract)
        extract.until(shop.file.exists, "the file is there")
        shop.act("STOP")
        assert extract.wait_for_end() == 0, extract.err
    shop.act("HALT")
    ran = penstock("run", shop.path, "--json")
    assert (ran.code, ran.error["code"]) == (1, "PK21")
    assert "HALT" in ran.error["error"]
    assert "sqlite3" in ran.error["hint"]


def test_a_progress_file_that_is_lost_or_broken(shop: Shop) -> None:
    """A lost file is recreated from the log; a broken one is named with the command."""
    shop.finish()
    shop.buy()
    shop.finish()
    files = "select target from wirekite.wirekite_progress where finish_time is not null"
    before = set(shop.ask_sqlite(files))
    assert before
    for path in shop.file.parent.glob("wirekite.db*"):
        path.unlink()
    shop.buy()
    shop.finish()
    assert set(shop.ask_sqlite(files)) > before
    shop.file.write_bytes(b"nonsense" * 1000)
    found = examine(load_config(shop.path))
    assert [one.code for one in found.errors] == ["PK21"]
    for command in ("extract", "run"):
        ran = penstock(command, shop.path, "--json")
        assert (ran.code, ran.error["code"]) == (1, "PK21"), ran
        assert "rm " in ran.error["hint"]


def test_commands_about_a_target_are_refused_by_name(shop: Shop) -> None:
    """Each error has the command that may be meant; other commands do as much as possible."""
    shop.finish()
    item = f"{shop.place.namespace}.item"
    for command in (
        ["verify", shop.path],
        ["load", shop.path],
        ["plan", shop.path],
        ["table", "pause", shop.path, item],
        ["table", "resume", shop.path, item],
        ["table", "resync", shop.path, item],
        ["reset", shop.path, "--target", "--yes"],
    ):
        ran = penstock(*command, "--json")
        assert (ran.code, ran.error["code"]) == (1, "CF11"), (command, ran)
        assert "penstock " in ran.error["hint"]
        assert "FILE" not in ran.error["hint"]
    doctor = penstock("doctor", shop.path, "--json", environment={"JAVA_HOME": "/nowhere"})
    assert doctor.code == 0, doctor
    assert not {"PK02", "PK04"} & {one["code"] for one in doctor.result["findings"]}
    shown = penstock("status", shop.path).out + penstock("lag", shop.path).out
    assert "loaded" not in shown
    assert "target" not in shown.replace("no target", "").replace(str(shop.folder), "")
    reset = penstock("reset", shop.path, "--yes", "--json")
    assert reset.code == 0, reset
    assert not shop.folder.joinpath("shop").exists()
    shop.finish()  # and from the start


def test_tables_come_and_go(shop: Shop) -> None:
    """Tables added or removed at work are captured from then on, and no copy is waited for."""
    shop.place.run("create table other (id int primary key, n int)")
    other = f"{shop.place.namespace}.other"

    def state() -> str:
        lines = [one for one in tables(shop) if one["table"] == other]
        return lines[0]["state"] if lines else ""

    with Process(shop.path) as run:
        shop.wait_until_begun(run)
        assert penstock("table", "remove", shop.path, other).code == 0
        run.until(lambda: state() == "removed", "it is removed")
        shop.place.run("insert into other values (-1, 0)")
        shop.buy()
        run.until(lambda: shop.in_log() == shop.bought, "others go on")
        assert penstock("table", "add", shop.path, other).code == 0
        run.until(lambda: state() == "following", "it is captured again")
        assert {one["table"]: one["wanted"] for one in tables(shop)}[other] == ""
        shop.place.run("insert into other values (-2, 0)")
        run.until(lambda: shop.in_log() == shop.bought + 1, "its changes come")
        run.stop()
    assert shop.read_logged() == [*range(1, shop.bought + 1), -2]


def tables(shop: Shop) -> list[dict[str, Any]]:
    """Return the lines of `penstock table ls`."""
    ran = penstock("table", "ls", shop.path, "--json")
    assert ran.code == 0, ran
    return [json.loads(line) for line in ran.out.splitlines()]


@contextmanager
def new_target(servers: SharedServers, kind: str) -> Iterator[Place]:
    """Make a fresh database; if penstock's schema serves a whole server, it is dropped before."""
    with new_place(servers, kind) as place:
        own = "schema if exists wirekite cascade"
        place.run(f"drop {own if place.namespace == 'public' else 'database if exists wirekite'}")
        yield place


@pytest.mark.promise
def test_progress_is_as_with_a_target(
    shop: Shop, shared_servers: SharedServers, tmp_path: Path
) -> None:
    """The published query returns the same segments for pipelines with and without target."""
    folder = tmp_path / "with"
    folder.mkdir()
    names = {"replicationSlot": "beside", "publication": "beside"}
    more = names if shop.place.namespace == "public" else {"serverId": 4711}
    with new_target(shared_servers, shop.kind) as target:
        target.run("create table item (id int primary key, n int)")
        path = write_pipeline(
            folder,
            shop.place.url,
            target.url,
            mode="change",
            tables=[f"{shop.place.namespace}.*"],
            sections={
                "changeExtractor": {**IDLE, **more},
                "target.map": {shop.place.namespace: target.namespace},
            },
        )
        shop.write_file(**IDLE)
        for _ in range(3):
            for one in (path, shop.path):
                ran = penstock("extract", one, "--json")
                assert ran.code == 0, ran
            shop.buy()
        there, here = target.run(CE_QUERY.rstrip().rstrip(";")), shop.ask_sqlite(CE_QUERY)
    for one, found in ((path, there), (shop.path, here)):
        assert [row[1] for row in found] == marks_of(one)
        assert all(row[2] <= row[3] for row in found)
    assert len(here) == len(there) > 1


def marks_of(path: Path) -> list[str]:
    """Return the ends of a log's newest segments as the source writes them, the newest first."""
    config, found = load_config(path), []
    for file in list_segments(config.layout.log)[: -SHOWN_MAX - 1 : -1]:
        with open_segment(file.path, extension="ckt") as segment:
            found.append(positions_of(config).text(segment.end.position))
    return found


PROGRAM = """
import sys
LOADING = ("pyspark", "penstock.engines.postgres.target.merge_tables")
from penstock.cli import main
sys.argv = ["penstock", *sys.argv[1:]]
try:
    main()
finally:
    print(*sorted(n for n in LOADING if n in sys.modules))
"""


def test_spark_is_never_imported(shop: Shop) -> None:
    """Other modules that only loading needs are not imported either: extraction works without."""
    shop.write_file(**IDLE)
    for command in ("extract", "run", "status", "lag", "doctor"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, command, str(shop.path), "--json"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"},
        )
        assert done.returncode == 0, done
        assert done.stdout.splitlines()[-1] == "", done.stdout


def test_segments_end_where_they_end_with_a_target(shop: Shop) -> None:
    """The log is durable and confirmed: the source keeps only what is needed."""
    shop.finish()
    shop.buy()
    shop.finish()
    config = load_config(shop.path)
    *_, last = list_segments(config.layout.log)
    with open_segment(last.path, extension="ckt") as segment:
        end = segment.end
    assert end.gsn == shop.bought
    if shop.place.namespace == "public":
        [(confirmed,)] = shop.place.run(
            "select (confirmed_flush_lsn - '0/0')::int8 from pg_replication_slots"
            " where slot_name = 'wirekite_replication_slot'"
        )
        assert confirmed >= end.position


@pytest.mark.promise
def test_a_target_is_added_and_taken_away_again(shop: Shop, shared_servers: SharedServers) -> None:
    """All of the log is applied once a target is added; extraction goes on without it.

    The log's first change is after the slot's position: earlier rows must be there already.
    """
    with new_target(shared_servers, shop.kind) as target:
        shop.finish()
        shop.buy()
        shop.finish()
        target.run("create table item (id int primary key, n int)")
        namespaces = {shop.place.namespace: target.namespace}

        def with_target(mode: str = "change") -> Path:
            return write_pipeline(
                shop.folder,
                shop.place.url,
                target.url,
                mode=mode,
                tables=[f"{shop.place.namespace}.*"],
                sections={"changeExtractor": IDLE, "target.map": namespaces},
            )

        refused = penstock("extract", with_target("data+change"), "--json")
        assert (refused.code, refused.error["code"]) == (1, "PK19"), refused
        load_log(with_target())
        assert rows(target) == rows(shop.place) == list(range(1, shop.bought + 1))
        shop.buy()
        shop.finish()  # without a target
        assert len(rows(target)) == shop.bought - 10
        extracted = penstock("extract", with_target(), "--json")
        assert extracted.code == 0, extracted
        load_log(shop.path)
        assert rows(target) == rows(shop.place)
        assert target.run("select count(*) from wirekite.wirekite_progress where operation = 'CE'")
    shop.write_file()
    assert shop.read_logged() == list(range(1, shop.bought + 1))


def test_a_renamed_table_is_whole_in_the_log(shop: Shop) -> None:
    """All of its rows follow under its new name, and each later change, stopped or not."""
    shop.finish()
    shop.buy()
    with Process(shop.path) as run:
        shop.wait_until_begun(run)
        shop.place.run("alter table item rename to thing")
        shop.place.run("insert into thing values (1000, 0)")
        wanted = {*range(1, shop.bought + 1), 1000, 1001}
        shop.place.run("insert into thing values (1001, 0)")
        run.until(lambda: logged_as(shop, "thing") >= wanted, "thing is whole")
        run.stop(signal.SIGINT)
    shop.place.run("alter table thing rename to other")
    shop.place.run("insert into other values (2000, 0)")
    with Process(shop.path) as run:
        run.until(lambda: logged_as(shop, "other") >= {*wanted, 2000}, "other is whole")
        run.stop(signal.SIGINT)


def logged_as(shop: Shop, table: str) -> set[int]:
    """Return the numbers of rows that closed segments have under a table's name."""
    found = log_changes(load_config(shop.path).directory)
    return {int(one.after["id"]) for one in found if one.table.rpartition(".")[2] == table}


def rows(place: Place) -> list[int]:
    """Return the numbers of the items."""
    return [row[0] for row in place.run("select id from item order by id")]


def test_a_target_for_a_log_that_lost_its_beginning(
    shop: Shop, shared_servers: SharedServers
) -> None:
    """The error names the segment that was removed: nothing after a gap is applied."""
    with new_target(shared_servers, shop.kind) as target:
        for _ in range(2):
            shop.finish()
            shop.buy()
        shop.finish()
        target.run("create table item (id int primary key, n int)")
        log = load_config(shop.path).layout.log
        holding = [file for file in list_segments(log) if rows_of(file.path)]
        holding[0].path.unlink()
        namespaces = {shop.place.namespace: target.namespace}
        path = write_pipeline(
            shop.folder,
            shop.place.url,
            target.url,
            mode="change",
            tables=[f"{shop.place.namespace}.*"],
            sections={"changeExtractor": IDLE, "target.map": namespaces},
        )
        with pytest.raises((LogGap, SegmentMissing)):
            load_log(path)
        assert rows(target) == []


def rows_of(path: Path) -> int:
    """Return the number of row changes in a segment."""
    with open_segment(path, extension="ckt") as segment:
        return segment.end.gsn - segment.start.gsn
