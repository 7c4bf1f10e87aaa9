"""Lag, status and the published queries with MySQL or MariaDB as the source or the target."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.lag import (
    EXTRACTOR,
    Line,
    tell_heartbeats,
    tell_states,
    tell_that_they_are_no_activity,
    until,
)
from harness.pipelines.mysql_extract import sql
from harness.pipelines.pipeline import penstock, pipeline
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.control.doctor.doctor import examine
from penstock.control.run.extract_process import extract_changes
from penstock.control.status.lag import read_lag
from penstock.control.status.status import read_status
from penstock.engines.mysql.connect import connect
from penstock.engines.mysql.source.dump_errors import LogPurged
from penstock.engines.mysql.source.heartbeat import Heartbeats
from penstock.engines.mysql.target.progress import MySQLProgress
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.ports.config import Config
from penstock.ports.lag import open_source
from penstock.ports.positions import positions_of
from penstock.ports.target import FileProgress
from plugins.mysql import MySQLServer, database_of

# As Wirekite's guide prints them.
CE_QUERY = """SELECT source, mark, start_time, finish_time
FROM wirekite.wirekite_progress
WHERE operation = 'CE'
ORDER BY start_time DESC
LIMIT 5;"""
CL_QUERY = """SELECT source, mark, start_time, finish_time
FROM wirekite.wirekite_progress
WHERE operation = 'CL'
ORDER BY start_time DESC
LIMIT 5;"""
LAG_QUERY = """SELECT TIMESTAMPDIFF(SECOND, MAX(finish_time), NOW()) AS lag_seconds
FROM wirekite.wirekite_progress
WHERE operation = 'CL' AND finish_time IS NOT NULL;"""


@pytest.fixture
def config(mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path) -> Config:
    """A pipeline of changes from a database with one table."""
    sql(mysql, mysql_url, "create table t (id int primary key, v varchar(200))")
    return extract_until_idle(tmp_path, mysql_url, target_url)


def extract_until_idle(folder: Path, source: str, target: str) -> Config:
    """Return a pipeline that extracts until no changes come."""
    return pipeline(
        folder,
        source,
        target,
        mode="change",
        tables=[f"{database_of(source)}.*"],
        sections={
            "changeExtractor": {
                "exitWhenIdle": True,
                "idleWaitSeconds": 0.5,
                "flushIntervalSeconds": 0.2,
            }
        },
    )


def extract(config: Config) -> None:
    """Run one extraction and release its lock, as the end of its process would."""
    extract_changes(config, checked=False)
    (config.layout.log / "LOCK").write_text("")


def sizes(server: MySQLServer) -> dict[str, int]:
    """Return the sizes of the binlog files by name."""
    return {str(row[0]): int(row[1]) for row in server.execute("show binary logs")}


def test_an_idle_source_has_no_lag(mysql: MySQLServer, mysql_url: str, config: Config) -> None:
    """Extracted changes of uncaptured tables are no lag; nor is a new, empty file."""
    extract(config)
    sql(mysql, mysql_url, "create table other (id int);; drop table other")
    extract(config)
    lag = read_lag(config)
    assert (lag.seconds, lag.rows, lag.slot_bytes) == (0.0, 0, 0)
    mysql.execute("flush binary logs")
    time.sleep(1.1)
    lag = read_lag(config)
    assert (lag.seconds, lag.rows) == (0.0, 0)
    assert 0 < lag.slot_bytes < 1000
    assert lag.as_dict()["source_position"] == "{}:{}".format(*mysql.status())


def test_bytes_and_seconds_are_of_what_the_extractor_has_not_read(
    mysql: MySQLServer, mysql_url: str, config: Config
) -> None:
    """Bytes count across files; seconds count from the first transaction that is not in the log."""
    extract(config)
    start = BinlogPosition.parse(read_lag(config).as_dict()["log_position"])
    sql(mysql, mysql_url, "insert into t values (1, repeat('x', 200))")
    mysql.execute("flush binary logs")
    sql(mysql, mysql_url, "insert into t values (2, repeat('x', 200))")
    mysql.execute("flush binary logs")
    time.sleep(2.1)
    sql(mysql, mysql_url, "insert into t values (3, repeat('x', 200))")
    file, offset = mysql.status()
    found = sizes(mysql)
    between = [name for name in found if start.file <= name < file]
    assert len(between) == 2
    lag = read_lag(config)
    assert lag.slot_bytes == sum(found[name] for name in between) - start.offset + offset
    assert lag.seconds is not None
    assert 1.9 <= lag.seconds < 60
    assert lag.at_most
    assert not lag.extracting
    extract(config)
    lag = read_lag(config)
    assert lag.slot_bytes == 0
    assert lag.rows == 3
    assert lag.seconds is not None
    assert 1.9 <= lag.seconds < 60, "the log is not applied"
    assert not lag.at_most
    assert lag.as_dict()["log_position"] == f"{file}:{offset}"


def test_log_that_the_source_has_deleted_is_no_lag_of_nothing(
    mysql: MySQLServer, mysql_url: str, config: Config
) -> None:
    """The lag command refuses with the remaining positions; status says so and shows the rest."""
    extract(config)
    sql(mysql, mysql_url, "insert into t values (1, 'x')")
    mysql.execute("flush binary logs")
    purge(mysql, mysql.status()[0])
    sql(mysql, mysql_url, "insert into t values (2, 'x')")
    with pytest.raises(LogPurged):
        read_lag(config)
    status = read_status(config)
    assert status.lag is None
    assert "the oldest position left is binlog" in status.source_error


def test_what_the_source_keeps_is_all_of_its_binlog(mysql: MySQLServer, config: Config) -> None:
    """Status shows the binlog's size, its beginning, and how long the server keeps a file."""
    reader = open_source(config, application_name="test")
    try:
        mysql.execute("flush binary logs")
        before = sum(sizes(mysql).values())  # MariaDB completes the file's head a moment later
        kept = reader.retention()
        assert kept is not None
        assert before <= kept.size_bytes <= sum(sizes(mysql).values())
        assert kept.age_s is not None
        assert 0 <= kept.age_s < 3600
        name = "expire_logs_days" if mysql.is_mariadb else "binlog_expire_logs_seconds"
        value = 2 if mysql.is_mariadb else 172_800
        with mysql.globals(**{name: str(value)}):
            again = reader.retention()
            assert again is not None
            assert again.expires_s == 172_800
    finally:
        reader.close()


def test_the_command_tells_status_and_lag(
    mysql: MySQLServer, mysql_url: str, config: Config
) -> None:
    """Both commands print text for people, and JSON."""
    sql(mysql, mysql_url, "insert into t values (1, 'x')")
    extract(config)
    sql(mysql, mysql_url, "insert into t values (2, 'x')")
    extract(config)
    place = "{}:{}".format(*mysql.status())
    told = penstock("lag", config.path, "--json").result
    assert told["rows_outstanding"] >= 1
    assert told["source_position"] == told["log_position"] == place
    assert told["extract_lag_bytes"] == 0
    shown = penstock("status", config.path)
    assert shown.code == 0, shown.err
    assert f"up to {place}" in shown.out
    assert "unknown" not in shown.out
    state = penstock("status", config.path, "--json").result
    assert state["log"]["position"] == place
    assert state["extracted_files"][0]["source"].count(".") == 1
    assert state["source_error"] == ""


def purge(server: MySQLServer, file: str) -> None:
    """Delete all files before this one; a server keeps those that a reader is just leaving."""
    deadline = time.monotonic() + 20
    while min(sizes(server)) < file:
        assert time.monotonic() < deadline, "the files are still read"
        server.execute(f"purge binary logs to '{file}'")
        time.sleep(0.05)


# -- the target ------------------------------------------------------------------------------------


@pytest.fixture
def progress_target(mysql: MySQLServer, mysql_url: str) -> Iterator[str]:
    """A target with progress rows: one file extracted and loaded three seconds ago."""
    mysql.execute("drop database if exists wirekite")
    connection = connect(mysql_url, application_name="test")
    try:
        progress = MySQLProgress(connection)
        progress.ensure_tables()
        progress.begin_segment(slot="slot", file="0.ckt", mark="0/10")
        progress.end_segment(slot="slot", file="0.ckt", mark="0/20")
        progress.begin_files(["0.ckt"])
        with progress.transaction():
            progress.end_files([FileProgress(file="0.ckt", mark=17, finished=True)])
    finally:
        connection.close()
    yield mysql_url
    mysql.execute("drop database if exists wirekite")


def test_the_published_queries_as_they_stand(mysql: MySQLServer, progress_target: str) -> None:
    """The queries run whatever the reader's time zone is."""
    [extracted] = mysql.execute(CE_QUERY)
    assert extracted[:2] == ("slot", "0/20")
    [loaded] = mysql.execute(CL_QUERY)
    assert loaded[:2] == ("0.ckt", "17")
    time.sleep(2.1)
    for zone in ("+00:00", "-11:00", "+05:30"):
        [(lag_seconds,)] = mysql.execute(f"set time_zone = '{zone}'; {LAG_QUERY}")
        assert 2 <= lag_seconds < 60


def test_the_published_progress_queries_on_postgresql(target_url: str) -> None:
    """The two queries that are not in MySQL's dialect run as they are."""
    with psycopg.connect(target_url, autocommit=True) as connection:
        progress = PostgresProgress(connection)
        progress.ensure_tables()
        progress.begin_segment(slot="slot", file="0.ckt", mark="0/10")
        progress.end_segment(slot="slot", file="0.ckt", mark="0/20")
        progress.begin_files(["0.ckt"])
        progress.end_files([FileProgress(file="0.ckt", mark=17, finished=True)])
        assert [row[:2] for row in connection.execute(CE_QUERY)] == [("slot", "0/20")]
        assert [row[:2] for row in connection.execute(CL_QUERY)] == [("0.ckt", "17")]


def test_status_reads_a_target_of_these_engines(
    progress_target: str, source_url: str, tmp_path: Path
) -> None:
    """Status shows files, action and restarts, with positions of the PostgreSQL source."""
    config = pipeline(tmp_path, source_url, progress_target, mode="change")
    found = read_status(config)
    assert [row.source for row in found.target.extracted] == ["slot"]
    assert [row.mark for row in found.target.loaded] == ["17"]
    assert found.target.action == "RUN"
    assert found.lag is not None
    assert positions_of(config).text(0x10) == "0/10"
    assert found.as_dict()["applied"]["position"] == "0/0"


# -- every state, against the truth ------------------------------------------------------------


def line_of(server: MySQLServer, folder: Path, source: str, target: str, **extractor: Any) -> Line:
    """Return a pipeline into PostgreSQL that follows a table t."""
    sql(server, source, "create table t (id int primary key)")
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute("create table t (id int primary key)")
    config = pipeline(
        folder,
        source,
        target,
        mode="change",
        tables=[f"{database_of(source)}.*"],
        sections={
            "changeExtractor": {**EXTRACTOR, **extractor},
            "target.map": {database_of(source): "public"},
        },
    )
    insert = "insert into t values ({})"
    return Line(
        config=config,
        commit=lambda number: sql(server, source, insert.format(number)),
        resolution_s=1.0,
    )


@pytest.mark.slow
def test_each_state_is_reported_as_it_is(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """The states range from before the first run to caught up; both halves pause, stop and work."""
    tell_states(line_of(mysql, tmp_path, mysql_url, target_url))


@pytest.fixture
def heartbeats(mysql: MySQLServer) -> Iterator[dict[str, Any]]:
    """Parameters of heartbeats, whose table is removed afterwards."""
    yield {"heartbeatSeconds": 0.2}
    mysql.execute("drop database if exists wirekite")


@pytest.mark.slow
def test_heartbeats_measure_an_idle_source(
    mysql: MySQLServer,
    mysql_url: str,
    target_url: str,
    tmp_path: Path,
    heartbeats: dict[str, Any],
) -> None:
    """The lag is measured from before a heartbeat's commit to its visibility."""
    tell_heartbeats(line_of(mysql, tmp_path, mysql_url, target_url, **heartbeats))


def test_heartbeats_are_no_activity(
    mysql: MySQLServer,
    mysql_url: str,
    target_url: str,
    tmp_path: Path,
    heartbeats: dict[str, Any],
) -> None:
    """A source that has only heartbeats is idle."""
    idle = {"exitWhenIdle": True, "idleWaitSeconds": 1.0, **heartbeats}
    tell_that_they_are_no_activity(line_of(mysql, tmp_path, mysql_url, target_url, **idle))


def test_heartbeats_of_another_reader_are_not_ours(
    mysql: MySQLServer,
    mysql_url: str,
    target_url: str,
    tmp_path: Path,
    heartbeats: dict[str, Any],
) -> None:
    """Every reader of the binlog sees heartbeats; those of another are not counted."""
    line = line_of(mysql, tmp_path, mysql_url, target_url, **heartbeats)
    with line.extracting():
        until(lambda: line.has_logged(1), "our own")
        sender = Heartbeats(mysql_url, 17)
        sender.send(99)
        sender.close()
        line.commit_next()
        until(lambda: read_status(line.config).log.end.gsn, "the row behind it")
    said = penstock("log", "cat", line.config.path).out
    assert '"sent_us":' in said
    assert '"sent_us":99}' not in said
    [(count,)] = mysql.execute("select count(*) from wirekite.wirekite_heartbeat")
    assert count == 2


def test_doctor_names_the_privileges_of_heartbeats(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """The check is made only if heartbeats are wanted, and has the statement that grants them."""
    line_of(mysql, tmp_path, mysql_url, target_url)
    mysql.execute("create user heartless identified by 'p'")
    try:
        database = database_of(mysql_url)
        mysql.execute(f"grant select on {database}.* to heartless")
        poor = pipeline(
            tmp_path,
            mysql.url(database, "heartless", "p"),
            target_url,
            mode="change",
            tables=[f"{database}.*"],
            sections={"changeExtractor": {"heartbeatSeconds": 1}},
        )
        [found] = [one for one in examine(poor).findings if one.code == "MY043"]
        assert "create, insert, update" in found.command
        mysql.execute("grant create, insert, update on wirekite.* to heartless")
        assert "MY043" not in [one.code for one in examine(poor).findings]
    finally:
        mysql.execute("drop user heartless")
