"""Every parameter of the two published tables has its effect: MySQL and MariaDB at both ends.

They are given as by a user: in the pipeline's file. `replicationSlot`, `startScn` and `startLsn`
belong to other engines and are refused by name (`test_config_mysql.py`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.extract import segments_of
from harness.pipelines.mysql_extract import sql
from harness.pipelines.mysql_pipe import Pipe, empty_pipe
from harness.pipelines.pipeline import penstock
from penstock.extract.extractor import Ended
from penstock.load.session import session_options
from penstock.log.layout import list_segments
from plugins.mysql import MySQLServer, database_of

TABLES = ("a", "b", "c", "d")


@pytest.fixture
def pipe(mysql: MySQLServer, tmp_path: Path) -> Iterator[Pipe]:
    """A pipeline with four tables at both ends; its log begins now."""

    def tables(url: str) -> None:
        for table in TABLES:
            sql(mysql, url, f"create table {table} (id int primary key, v varchar(20))")

    with empty_pipe(mysql, tmp_path, prepare=tables) as made:
        yield made


def begin_log(pipe: Pipe, **extractor: Any) -> Pipe:
    """Return the pipe with these parameters of the extractor, and a log that begins now."""
    pipe.write_config(extractor)
    pipe.extract()
    return pipe


def trickle(pipe: Pipe, count: int = 60) -> threading.Thread:
    """Write rows one after the other, without a pause that would count as idle."""

    def write() -> None:
        with pipe.server.connect(database_of(pipe.source)) as connection:
            for number in range(1, count + 1):
                connection.cursor().execute(f"insert into a values ({number}, 'x')")
                time.sleep(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def flush_points(pipe: Pipe) -> tuple[int, int]:
    """Return the numbers of segments with rows, and of flush points after rows."""
    with segments_of(pipe.config.directory) as segments:
        held = [segment for segment in segments if segment.end.gsn]
        gsns = {point.point.gsn for segment in held for point in segment.flush_points()}
        return len(held), len(gsns - {0})


# -- the extractor -------------------------------------------------------------------------------


def test_exit_when_idle_and_idle_wait_seconds(pipe: Pipe) -> None:
    """The extractor ends after so long without changes, leaving CHANGE.DONE."""
    begin_log(pipe)
    pipe.run("insert into a values (1, 'x')")
    for wait_s in (0.5, 3.0):
        pipe.write_config({"idleWaitSeconds": wait_s})
        began_s = time.monotonic()
        assert pipe.extract().ended is Ended.IDLE
        assert time.monotonic() - began_s >= wait_s
        assert (pipe.config.layout.log / "CHANGE.DONE").exists()


def test_without_exit_when_idle_it_goes_on_until_stop(pipe: Pipe) -> None:
    """The word STOP in wirekite_action ends the extraction; there is no CHANGE.DONE."""
    begin_log(pipe)
    pipe.write_config({"exitWhenIdle": False, "idleWaitSeconds": 0.1})
    ended: list[float] = []

    def stop() -> None:
        time.sleep(2)
        ended.append(time.monotonic())
        pipe.server.execute("update wirekite.wirekite_action set action = 'STOP'")

    pipe.run("insert into a values (1, 'x')")
    thread = threading.Thread(target=stop)
    thread.start()
    outcome = pipe.extract()
    thread.join()
    assert (outcome.ended, time.monotonic() > ended[0]) == (Ended.STOPPED, True)
    assert not (pipe.config.layout.log / "CHANGE.DONE").exists()
    pipe.server.execute("update wirekite.wirekite_action set action = 'RUN'")


@pytest.mark.parametrize(("seconds", "few"), [(0.25, False), (30, True)])
def test_flush_interval_seconds(pipe: Pipe, seconds: float, few: bool) -> None:
    """Files are rotated at this age."""
    begin_log(pipe, flushIntervalSeconds=seconds, idleWaitSeconds=1.5)
    thread = trickle(pipe)
    pipe.extract()
    thread.join()
    segments, _ = flush_points(pipe)
    assert segments == 1 if few else segments > 2


def test_events_per_flush(pipe: Pipe) -> None:
    """Rows that come one by one become durable one by one."""
    begin_log(pipe, eventsPerFlush=1, flushIntervalSeconds=30, idleWaitSeconds=1.5)
    thread = trickle(pipe)
    pipe.extract()
    thread.join()
    _, points = flush_points(pipe)
    assert points > 30


@pytest.mark.parametrize(
    ("events", "fewest", "most"), [(1, 90, 101), (10, 10, 13), (100_000, 1, 4)]
)
def test_events_per_flush_of_a_backlog(pipe: Pipe, events: int, fewest: int, most: int) -> None:
    """A backlog that the server sends at once is made durable in such pieces, too."""
    begin_log(pipe, eventsPerFlush=events, flushIntervalSeconds=30)
    with pipe.server.connect(database_of(pipe.source)) as connection:
        for number in range(100):
            connection.cursor().execute(f"insert into a values ({number}, 'x')")
    pipe.extract()
    _, points = flush_points(pipe)
    assert fewest <= points <= most


@pytest.mark.parametrize("wanted", [True, False])
def test_process_commits(pipe: Pipe, wanted: bool) -> None:
    """BEGIN and COMMIT are in the files, or not; the loader accepts both."""
    begin_log(pipe, processCommits=wanted)
    pipe.run("insert into a values (1, 'x'), (2, 'y');; update a set v = 'z' where id = 1")
    pipe.extract()
    told = penstock("log", "cat", pipe.config.path)
    letters = {line.split("\t")[1] for line in told.out.splitlines() if "\t" in line}
    assert letters - {"R"} == ({"B", "C"} if wanted else set()) | {"I", "U"}
    pipe.load()
    assert pipe.ids() == [1, 2]


def test_binlog_file_position_and_server_id(pipe: Pipe) -> None:
    """A new log begins there, with this id; with only the file, at its begin."""
    pipe.server.execute("flush binary logs")
    start = pipe.server.status()[0]
    pipe.run("insert into a values (1, 'x')")
    file, offset = pipe.server.status()
    pipe.run("insert into a values (2, 'x')")
    where = {"binlogFile": file, "binlogPosition": offset, "serverId": 4711}
    for number, (given, expected) in enumerate([(where, [2]), ({"binlogFile": start}, [1, 2])]):
        pipe.write_config(given, directory=f"shop{number}")
        pipe.extract()
        with segments_of(pipe.config.directory) as segments:
            assert sum(t.rows for s in segments for t in s.tables) == len(expected)
    facts = json.loads((pipe.folder / "shop0" / "run" / "extract.json").read_text())
    assert facts["slot"] == "server_id 4711"


# -- the loader ----------------------------------------------------------------------------------


def files_of(pipe: Pipe) -> list[str]:
    """Return the names of the segments in the log."""
    extension = pipe.config.change_loader.change_file_extension
    return [file.path.name for file in list_segments(pipe.config.layout.log, extension)]


def write_files(pipe: Pipe, loader: dict[str, Any], files: int = 4) -> None:
    """Write files with a row of each table, with these parameters of the loader."""
    for number in range(files):
        pipe.write_config(loader=loader)
        pipe.extract()
        for table in TABLES:
            pipe.run(f"insert into {table} values ({number}, 'x')")
    pipe.extract()


@pytest.mark.parametrize(("files", "batches"), [(1, 4), (2, 2), (30, 1)])
def test_max_files_per_batch(pipe: Pipe, files: int, batches: int) -> None:
    """One transaction applies at most so many files."""
    write_files(pipe, {"maxFilesPerBatch": files})
    with_rows = len(files_of(pipe))
    state, _ = pipe.load()
    assert state["file_count"] == with_rows
    assert batches <= state["batch_count"] <= -(-with_rows // files)
    assert pipe.ids() == [0, 1, 2, 3]


@pytest.mark.parametrize("threads", [1, 3])
def test_max_threads(pipe: Pipe, threads: int) -> None:
    """The tasks that run at once are at most so many, for files that are worth it."""
    write_files(pipe, {"maxThreads": threads}, files=1)
    rows = 30_000
    for table in TABLES:
        values = ", ".join(
            f"({number}, substr(sha2(rand(), 256), 1, 20))" for number in range(1, rows)
        )
        pipe.run(f"insert into {table} values {values}")
    pipe.extract()
    _, partitions = pipe.load()
    assert max(partitions) == threads
    assert all(len(pipe.ids(table)) == rows for table in TABLES)


@pytest.mark.parametrize("how", ["kept", "removed", "moved"])
def test_remove_files_and_done_directory(pipe: Pipe, how: str) -> None:
    """Applied files stay, are removed, or are moved, relative to the pipeline's file."""
    given = {"removed": {"removeFiles": True}, "moved": {"doneDirectory": "finished"}}.get(how, {})
    write_files(pipe, given)
    before = files_of(pipe)
    pipe.load()
    assert pipe.ids() == [0, 1, 2, 3]
    assert files_of(pipe) == (before if how == "kept" else [])
    moved = sorted(path.name for path in (pipe.folder / "finished").glob("*.ckt"))
    assert moved == (sorted(before) if how == "moved" else [])


def test_change_file_extension(pipe: Pipe) -> None:
    """One half writes files with this extension, the other reads them."""
    write_files(pipe, {"changeFileExtension": "chg"})
    names = files_of(pipe)
    assert names
    assert {name.rpartition(".")[2] for name in names} == {"chg"}
    assert not list(pipe.config.layout.log.glob("*.ckt*"))
    pipe.load()
    assert pipe.ids() == [0, 1, 2, 3]
    done = pipe.server.execute(
        "select source from wirekite.wirekite_progress where operation = 'CL'"
    )
    assert sorted(row[0] for row in done) == sorted(names)


def test_work_directory(pipe: Pipe) -> None:
    """Spark's files are there, relative to the pipeline's file; otherwise below run/."""
    assert session_options(pipe.write_config()).work_directory == pipe.config.layout.run / "spark"
    config = pipe.write_config(loader={"workDirectory": "scratch"})
    assert session_options(config).work_directory == pipe.folder / "scratch"
