"""One batch is applied while the next one is staged: failures, stops and kills in between."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.changes import Change, relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.loading import (
    ITEM,
    TABLES,
    Blocked,
    Running,
    add,
    check,
    rows,
    run_killed,
    until,
)
from penstock.host import faults
from penstock.host.files import DirectoryLock
from penstock.host.state_file import StateFile
from penstock.load import loader as loading
from penstock.load.loader_state import HOLD_LOCK, Hold, clear_hold, read_held, write_hold
from penstock.load.prefetch import StagePrefetch
from penstock.load.session import PendingSession, SessionKeeper, SessionOptions
from penstock.model import TableName
from penstock.model.table_requests import REQUESTS_FILE, TableRequest, TableRequests
from penstock.ports.loading import Batch
from plugins.postgres import Server

Look = Callable[[str], list[tuple[Any, ...]]]
STAGED = "select v from wirekite.{} order by 1"
MERGE_TABLES = "select tablename from pg_tables where schemaname = 'wirekite' and {} order by 1"


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
def target(target_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A target with the tables, and a loader that checks often whether it is still paused."""
    with psycopg.connect(target_url, autocommit=True) as connection:
        connection.execute(TABLES)
    monkeypatch.setattr(loading, "PAUSE_CHECK_S", 0.05)
    return target_url


def is_staged(look: Look, table: str, *numbers: int) -> bool:
    """Return whether bag's merge table of this name holds these rows and nothing else."""
    if look(f"select to_regclass('wirekite.{table}')") == [(None,)]:
        return False
    return look(STAGED.format(table)) == [(number,) for number in numbers]


def until_ahead(running: Running, look: Look, table: str = "bag_wkmb", *numbers: int) -> None:
    """Wait until the second batch is staged and waits for the first one to be applied."""
    ahead = numbers or (2, 3)
    until(lambda: running.error is not None or is_staged(look, table, *ahead), 8)
    assert is_staged(look, table, *ahead)
    assert running.loader.applied_position.gsn == 0


def test_the_next_batch_is_staged_while_one_is_applied(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """The next batch waits in its own tables, and no more than one is staged ahead."""
    log.writer.finish()
    with Blocked(target) as look:
        running = Running(target, tmp_path, max_files_per_batch=1)
        until_ahead(running, look)
        assert is_staged(look, "bag_wkm", 0, 1)
        time.sleep(0.2)
        assert is_staged(look, "bag_wkm", 0, 1)
        assert is_staged(look, "bag_wkmb", 2, 3)
    state = running.end()
    assert state.batch_count == 3
    assert set(state.seconds) == {"plan", "prepare", "stage", "apply", "commit"}
    check(target, 6)
    assert rows(target, "select source, restarts from wirekite.wirekite_progress order by 1") == [
        ("0.ckt", 0),
        ("1.ckt", 0),
        ("2.ckt", 0),
    ]


def test_a_segment_that_closes_meanwhile_is_staged_at_once(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """The loader keeps looking for segments while it applies."""
    with Blocked(target) as look:
        running = Running(target, tmp_path)
        until(lambda: is_staged(look, "bag_wkm", *range(6)))
        add(log, 6)
        log.close_segment()
        until_ahead(running, look, "bag_wkmb", 6)
    until(lambda: running.loader.applied_position.gsn == 14)
    running.end(stop=True)
    check(target, 7)


def test_batches_that_do_not_meet_use_the_documented_tables(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """A loader that keeps up has one merge table per table, `<table>_wkm`."""
    running = Running(target, tmp_path)
    for number in range(6, 10):
        until(lambda: running.loader.state.applied_gsn == running.loader.applied_position.gsn > 0)
        until(lambda: running.loader.state.state == "waiting" or running.error is not None)
        add(log, number)
        log.close_segment()
        gsn = log.gsn
        until(lambda gsn=gsn: running.loader.applied_position.gsn == gsn)
    running.end(stop=True)
    check(target, 10)
    found = rows(target, MERGE_TABLES.format("tablename ~ '_wkm'"))
    assert found == [("bag_wkm",), ("t_wkm",)]


@pytest.mark.parametrize("point", ["load.apply.after", "load.commit.before", "load.commit.after"])
def test_what_is_staged_ahead_is_staged_again_when_applying_fails(
    target: str, tmp_path: Path, log: LogMaker, point: str
) -> None:
    """A staged batch is staged again, even if the commit took effect and its answer was lost."""
    log.writer.finish()
    with Blocked(target) as look, faults.arming(f"{point}:1:error"):
        running = Running(target, tmp_path, max_files_per_batch=1)
        until_ahead(running, look)
        look.release()
        running.end()
    check(target, 6)
    (restarts,) = rows(
        target, "select restarts from wirekite.wirekite_progress where source = '1.ckt'"
    )
    assert restarts >= (1,)


@pytest.mark.parametrize(
    "fault",
    [
        "load.ahead.before:1",
        "load.ahead.after:1",
        "load.prepare.before:2",
        "load.job.before:2",
        "load.copy.before:3",
        "load.copy.after:4",
    ],
)
def test_failure_of_staging_ahead_is_tried_again(
    target: str, tmp_path: Path, log: LogMaker, fault: str
) -> None:
    """The batch that is being applied is not disturbed by it."""
    log.writer.finish()
    with Blocked(target) as look, faults.arming(f"{fault}:error"):
        running = Running(target, tmp_path, max_files_per_batch=1)
        until(lambda: running.loader._ahead is not None and running.loader._ahead.is_staging)
        time.sleep(0.3)
        assert running.loader.state.problem == ""
        look.release()
        state = running.end()
    check(target, 6)
    assert state.batch_count == 3


def test_pause_keeps_what_is_staged_ahead_from_being_applied(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """The current batch is finished, the staged one waits for RUN."""
    with Blocked(target) as look:
        running = Running(target, tmp_path, max_files_per_batch=1)
        until_ahead(running, look)
        running.word.text = "PAUSE"
    until(lambda: running.loader.state.state == "paused")
    time.sleep(0.3)
    check(target, 2)
    running.word.text = "RUN"
    until(lambda: running.error is not None or running.loader.applied_position.gsn == 12)
    running.end(stop=True)
    check(target, 6)


@pytest.mark.parametrize("how", ["STOP", "signal"])
def test_stop_abandons_what_is_staged_ahead(
    target: str, tmp_path: Path, log: LogMaker, how: str
) -> None:
    """The loader ends after the current batch; the next one continues from there."""
    with Blocked(target) as look:
        running = Running(target, tmp_path, max_files_per_batch=1)
        until_ahead(running, look)
        if how == "STOP":
            running.word.text = "STOP"
        else:
            running.stop.set()
    assert running.end().batch_count == 1
    check(target, 2)
    log.writer.finish()
    assert Running(target, tmp_path).end().batch_count == 1
    check(target, 6)


def test_hold_whose_position_lies_in_the_batch_staged_ahead(
    target: str, tmp_path: Path, log: LogMaker
) -> None:
    """No row after the position is applied, although all were staged already."""
    state = tmp_path / "state"
    cut = log.position + 100 * 2  # of the second following transaction
    for number in (6, 7, 8):
        add(log, number)
    log.close_segment()
    add(log, 9)
    log.close_segment()
    log.writer.finish()
    with Blocked(target) as look:
        running = Running(target, tmp_path, max_files_per_batch=3)
        until_ahead(running, look, "bag_wkmb", 6, 7, 8, 9)
        lock = DirectoryLock(state, HOLD_LOCK)
        lock.__enter__()
        write_hold(state, Hold(nonce="n", until=cut))
    until(lambda: (held := read_held(state, "n")) is not None and held.reached == cut)
    check(target, 7)
    time.sleep(0.2)
    check(target, 7)
    clear_hold(state)
    lock.__exit__(None, None, None)
    running.end()
    check(target, 10)


def test_shape_of_the_batch_ahead(target: str, tmp_path: Path, log: LogMaker) -> None:
    """Tables are altered, and a table's first rows are staged before the target has the shape."""
    wide = relation(
        ("id", "integer", "int32"),
        ("name", "text", "string"),
        ("n", "integer", "int32"),
        version=2,
    )
    other = relation(("id", "integer", "int32"), name="other")
    log.transaction((ITEM, Change(op="I", gsn=0, after=(6, "x"))), relations=[other])
    log.transaction((wide, Change(op="I", gsn=0, after=(7, "x", 7))))
    log.close_segment()
    log.transaction(
        (wide, Change(op="U", gsn=0, after=(6, "x", 6))),
        (other, Change(op="I", gsn=0, after=(1,))),
    )
    narrow = relation(("id", "integer", "int32"), ("n", "integer", "int32"), version=3)
    log.transaction((narrow, Change(op="U", gsn=0, after=(7, 70))))
    log.close_segment()
    log.writer.finish()
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute("create table public.other (id int primary key)")
    with Blocked(target) as look:
        running = Running(target, tmp_path, max_files_per_batch=4)
        until(
            lambda: (
                look("select to_regclass('wirekite.t_wkmb2')") != [(None,)]
                and look("select id, n from wirekite.t_wkmb2") == [(7, 70)]
            ),
            8,
        )
        assert rows(target, "select columns from wirekite.wirekite_table where source_name = 't'")
    state = running.end()
    assert [(one.table, one.change) for one in state.alterations] == [
        ("public.t", "column n was added as integer"),
        ("public.t", "column name was dropped"),
    ]
    assert not state.is_spark_starting
    found = rows(target, "select * from public.t where id > 5 order by id")
    assert found == [(6, 6), (7, 70)]
    assert rows(target, "select * from public.other") == [(1,)]
    assert rows(target, MERGE_TABLES.format("tablename ~ '_wkmb?[0-9]'")) == []
    shapes = rows(
        target,
        "select columns::jsonb -> 'columns' from wirekite.wirekite_table"
        " where source_name in ('t', 'other')"
        " order by source_name",
    )
    assert shapes == [([["id", "integer"]],), ([["id", "integer"], ["n", "integer"]],)]


def test_labels_are_mended_beside_staging(target: str, tmp_path: Path, log: LogMaker) -> None:
    """A new label in the current batch is added while the next batch waits."""
    shape = relation(("id", "integer", "int32"), ("mood", "public.mood", "string"), name="moody")
    log.transaction((shape, Change(op="I", gsn=0, after=(1, "new"))))
    log.close_segment()
    log.transaction((shape, Change(op="U", gsn=0, after=(1, "newer"))))
    log.close_segment()
    log.writer.finish()
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute("create type public.mood as enum ('old')")
        connection.execute("create table public.moody (id int primary key, mood public.mood)")
    assert Running(target, tmp_path, max_files_per_batch=1).end().batch_count == 5
    assert rows(target, "select mood from public.moody") == [("newer",)]


def test_two_loaders_at_once(target: str, tmp_path: Path, log: LogMaker) -> None:
    """Both stage ahead into the same tables; one is refused, and every row is there once."""
    for number in range(6, 30):
        add(log, number)
        log.close_segment()
    log.writer.finish()
    many = f"{target}?fallback_application_name=other"  # a connection of its own for staging
    both = [
        Running(url, tmp_path, max_files_per_batch=1, run_directory=tmp_path / name)
        for name, url in (("one", target), ("two", many))
    ]
    for running in both:
        running.thread.join(120)
    assert {getattr(running.error, "code", "TG04") for running in both} == {"TG04"}
    if all(running.error for running in both):
        Running(target, tmp_path).end()
    check(target, 30)


@pytest.mark.faults
def test_crash_of_the_target_with_a_batch_staged_ahead(
    own_postgres: Server, tmp_path: Path, log: LogMaker
) -> None:
    """The server empties both sets of merge tables, and both batches are staged again."""
    own_postgres.execute(TABLES)
    own_postgres.execute("checkpoint")
    log.writer.finish()
    with faults.arming("load.apply.after:1:sleep=2"):
        running = Running(own_postgres.url(), tmp_path, max_files_per_batch=1)
        until(
            lambda: is_staged(lambda query: rows(own_postgres.url(), query), "bag_wkmb", 2, 3), 30
        )
        own_postgres.crash()
        own_postgres.start()
        running.end()
    check(own_postgres.url(), 6)


@pytest.mark.faults
def test_crash_of_the_target_while_paused(
    own_postgres: Server, tmp_path: Path, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that was staged before the pause is lost, and not needed."""
    monkeypatch.setattr(loading, "PAUSE_CHECK_S", 0.05)
    own_postgres.execute(TABLES)
    own_postgres.execute("checkpoint")  # commits do not wait for the disk there
    with Blocked(own_postgres.url()) as look:
        running = Running(own_postgres.url(), tmp_path, max_files_per_batch=1)
        until_ahead(running, look)
        running.word.text = "PAUSE"
    until(lambda: running.loader.state.state == "paused")
    own_postgres.crash()
    own_postgres.start()
    running.word.text = "RUN"
    until(lambda: running.error is not None or running.loader.applied_position.gsn == 12)
    running.end(stop=True)
    check(own_postgres.url(), 6)


@pytest.mark.faults
@pytest.mark.parametrize(
    "fault",
    [
        "load.ahead.before:1",
        "load.ahead.after:1",
        "load.prepare.before:2",
        "load.job.before:2",
        "load.copy.after:3",
    ],
)
def test_kill_while_staging_ahead(target: str, tmp_path: Path, log: LogMaker, fault: str) -> None:
    """SIGKILL comes while a batch is being applied; the next process continues, every row once."""
    log.writer.finish()
    slow = "load.apply.before:1:sleep=5"
    done = run_killed(target, tmp_path, f"{slow},{fault}:kill")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert rows(target, "select 1 from public.t") == []
    done = run_killed(target, tmp_path)
    assert done.returncode == 0, done.stderr
    check(target, 6)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("victim", ["worker", "jvm", "stop"])
def test_spark_dies_while_staging_ahead(
    target: str, tmp_path: Path, log: LogMaker, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """A lost worker or JVM costs a try, a stop cancels the job, and no row is lost or repeated."""
    once = tmp_path / "once"
    once.mkdir()
    action = "kill" if victim == "worker" else "sleep=60"
    monkeypatch.setenv("PENSTOCK_FAULT", f"load.copy.before:3:{action}")
    monkeypatch.setenv("PENSTOCK_FAULT_ONCE", str(once))
    options = SessionOptions(work_directory=tmp_path / "spark", master="local[1]")
    keeper = SessionKeeper(options, PendingSession(options))
    java = keeper.get().java_pid
    log.writer.finish()
    with Blocked(target) as look:
        running = Running(target, tmp_path, keeper, max_files_per_batch=1)
        try:
            until(lambda: any(once.iterdir()), 9)
            assert is_staged(look, "bag_wkm", 0, 1)
            if victim == "jvm":
                os.kill(java, signal.SIGKILL)
        except BaseException:
            running.stop.set()
            raise
        if victim == "stop":
            running.stop.set()
    try:
        running.end()
        if victim == "stop":
            check(target, 2)
            monkeypatch.delenv("PENSTOCK_FAULT")
            Running(target, tmp_path, keeper).end()
        assert keeper.restart_count == (victim == "jvm")
    finally:
        keeper.close()
    check(target, 6)


def test_a_request_that_comes_while_a_batch_is_staged_is_obeyed_first(
    target: str, tmp_path: Path, log: LogMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is to be copied again, for example, may not fit the rows that are staged."""
    paused = TableRequest(table=TableName("public", "bag"), paused=True)
    path = tmp_path / "state" / REQUESTS_FILE
    fetch = StagePrefetch.fetch

    def fetch_and_request(self: StagePrefetch, timeout_s: float) -> Batch | None:
        staged = fetch(self, timeout_s)
        if staged is not None and not path.exists():
            StateFile(path, TableRequests).save(TableRequests(serial=1, tables=(paused,)))
        return staged

    monkeypatch.setattr(StagePrefetch, "fetch", fetch_and_request)
    log.writer.finish()
    running = Running(target, tmp_path)
    until(lambda: rows(target, "select count(*) from public.t") == [(6,)])
    running.end(stop=True)
    assert rows(target, "select v from public.bag") == []
