"""The handover from a MySQL or MariaDB source: bulk load and changes meet at one position."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pymysql
import pytest
from structlog.testing import capture_logs

from harness.pipelines.bulk import rows, run
from harness.pipelines.extract import log_changes
from harness.pipelines.mysql_extract import sql
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.control.doctor.doctor import PreflightFailed
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of
from penstock.control.run.bulk_load import bulk_load, bulk_options, bulk_planner
from penstock.control.run.extract_process import extract_changes, extract_options
from penstock.engines.mysql.handover import prepare
from penstock.engines.mysql.log_start import make_engine
from penstock.engines.mysql.planner import MySQLPlanner
from penstock.engines.mysql.proxy_protocol import is_alive
from penstock.engines.mysql.source.beginning import Beginning, find_beginning
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.proxied_session import open_proxied
from penstock.extract.extractor import Ended, Extractor
from penstock.load.bulk import BulkResult, finish_foreign_keys
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.config import Config
from penstock.ports.handover import HandoverPhase, read_handover, write_handover
from plugins.mysql import MySQLServer, database_of

pytestmark = pytest.mark.spark
TIMEOUT_S = 60.0
LOCK_WAIT_TIMEOUT = 1205
FILE = """
[pipeline]
name = "shop"
mode = "data+change"
directory = "pipeline"
[source]
url = "{source}"
tables = ["{database}.*"]
[target]
url = "{target}"
[changeExtractor]
exitWhenIdle = true
idleWaitSeconds = 0.4
"""


@pytest.fixture
def config(mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path) -> Config:
    """A pipeline with a table of three rows."""
    sql(
        mysql,
        mysql_url,
        "create table t (id int primary key, v varchar(9));; insert into t values (1, 'a'), "
        "(2, 'b'), (3, 'c')",
    )
    return write_config(tmp_path, mysql_url, target_url)


def write_config(directory: Path, source: str, target: str) -> Config:
    """Return a pipeline of all tables of a database."""
    path = directory / "shop.toml"
    path.write_text(FILE.format(source=source, target=target, database=database_of(source)))
    return load_config(path)


def load_beside(
    config: Config, spark: Session, meanwhile: list[str], mysql: MySQLServer
) -> tuple[threading.Thread, list[BulkResult]]:
    """Run the other half in a thread: it waits for the point, writes to the source and loads."""
    results: list[BulkResult] = []

    def load() -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            state = read_handover(config)
            if state is not None and state.position:
                break
            time.sleep(0.02)
        for statement in meanwhile:
            sql(mysql, config.source.url, statement)
        with bulk_planner(config) as planner:
            results.append(bulk_load(config, spark, planner))

    thread = threading.Thread(target=load)
    thread.start()
    return thread, results


@pytest.mark.promise
def test_rows_before_the_point_are_loaded_and_those_behind_it_are_in_the_log(
    mysql: MySQLServer, config: Config, spark: Session
) -> None:
    """Each row comes once: no writer is stopped, and no row is missed."""
    name = database_of(config.source.url)
    changes = ["insert into t values (4, 'd');; update t set v = 'z' where id = 1"]
    thread, results = load_beside(config, spark, changes, mysql)
    try:
        assert extract_changes(config).ended is Ended.IDLE
    finally:
        thread.join(TIMEOUT_S)
    state = read_handover(config)
    assert state is not None
    assert (state.phase, [step.number for step in state.steps]) == (
        HandoverPhase.DONE,
        [1, 2, 3, 4],
    )
    assert state.snapshot_id == ""
    assert rows(config.target.url, f'select id, v from "{name}".t order by id') == [
        (1, "a"), (2, "b"), (3, "c")
    ]  # fmt: skip
    place = BinlogPosition.parse(state.position)
    assert results[0].positions == {TableName(name, "t"): place.ordinal}
    logged = log_changes(config.directory)
    assert [(c.after["id"], c.after["v"]) for c in logged] == [(4, "d"), (1, "z")]


def test_a_start_behind_a_killed_handover_begins_at_its_place(
    mysql: MySQLServer, config: Config, spark: Session
) -> None:
    """The log begins at the recorded position; the load uses a later point of its own."""
    with prepare(pipeline_of(config), has_begun=False, stop=lambda: True) as beginning:
        assert beginning is not None
    state = read_handover(config)
    assert state is not None
    write_handover(config, state)
    sql(mysql, config.source.url, "insert into t values (5, 'e')")
    thread, results = load_beside(config, spark, [], mysql)
    try:
        extract_changes(config)
    finally:
        thread.join(TIMEOUT_S)
    name = database_of(config.source.url)
    assert [c.after["id"] for c in log_changes(config.directory)] == [5]
    assert results[0].positions[TableName(name, "t")] >= beginning.position.ordinal
    assert rows(config.target.url, f'select count(*) from "{name}".t') == [(4,)]


@pytest.mark.server("mariadb")
def test_transactions_before_the_point_are_known_behind_an_event_of_any_length(
    own_mysql: Callable[..., MySQLServer], target_url: str, tmp_path: Path
) -> None:
    """MariaDB before 11 cannot name them if its file has an event over max_allowed_packet."""
    server = own_mysql()
    source = server.make_database()
    sql(server, source, "create table t (id int primary key, a longblob, b longblob)")
    packet = int(server.value("select @@global.max_allowed_packet"))
    half = packet * 3 // 4
    sql(server, source, f"insert into t values (1, repeat('a', {half}), repeat('b', {half}))")
    file, offset = server.status()
    told = server.value(f"select binlog_gtid_pos('{file}', {offset})")
    assert (told is None) == (server.version.number < (11,))
    config = write_config(tmp_path, source, target_url)
    with prepare(pipeline_of(config), has_begun=False, stop=lambda: True) as beginning:
        assert beginning is not None
        assert beginning.gtids == server.value("select @@global.gtid_binlog_pos")
    assert find_beginning(source, config.source.tables).gtids == beginning.gtids


def test_a_log_of_mode_change_is_not_handed_over_to(config: Config, mysql: MySQLServer) -> None:
    """The log's beginning is not the point of any bulk load; its content stays as it is."""
    path = config.directory.parent / "shop.toml"
    both = path.read_text()

    def extract_with(text: str) -> Ended:
        path.write_text(text)
        (config.layout.log / "LOCK").unlink(missing_ok=True)  # of a process that has ended
        return extract_changes(load_config(path)).ended

    change = both.replace('"data+change"', '"change"')
    assert extract_with(change) is Ended.IDLE
    sql(mysql, config.source.url, "insert into t values (4, 'd')")
    with pytest.raises(PreflightFailed, match="was begun without a bulk load"):
        extract_with(both)
    assert extract_with(change) is Ended.IDLE
    assert [c.after["id"] for c in log_changes(config.directory)] == [4]


def test_foreign_keys_wait_for_changes_where_snapshots_are_of_several_moments(
    mysql: MySQLServer, config: Config, spark: Session
) -> None:
    """Until then a row may lack its parent, which is of another snapshot."""
    url, name = config.source.url, database_of(config.source.url)
    sql(mysql, url, "create table c (id int primary key, t_id int, foreign key (t_id) references "
        "t (id));; set foreign_key_checks = 0; insert into c values (1, 4)")  # fmt: skip
    with prepare(pipeline_of(config), has_begun=False, stop=lambda: True):
        sql(mysql, url, "insert into t values (4, 'd')")
        settled = BinlogPosition.at(*mysql.status())
        state = read_handover(config)
        assert state is not None
        write_handover(config, msgspec.structs.replace(state, settled=str(settled)))
        with bulk_planner(config) as planner:
            result = bulk_load(config, spark, planner)
    assert result.foreign_keys_pending
    assert not result.stands_at_one_position
    assert result.settled == settled.ordinal > max(result.positions.values())
    keys = "select conname from pg_constraint where contype = 'f'"
    assert rows(config.target.url, keys) == []
    run(config.target.url, f"""insert into "{name}".t values (4, 'd')""")
    with open_catalog(url) as connection:
        finish_foreign_keys(bulk_options(config), captured_tables(connection, [f"{name}.*"]))
    assert len(rows(config.target.url, keys)) == 1


def test_snapshots_are_given_back_when_the_rows_are_there(
    mysql: MySQLServer, config: Config, spark: Session
) -> None:
    """No lock or session at the source stays, however long changes are followed afterwards."""
    with prepare(pipeline_of(config), has_begun=False, stop=lambda: True):
        with bulk_planner(config) as planner:
            point = planner.first_point()
            assert point is not None
            assert is_alive(point.snapshot_id, point.snapshot_text)
            bulk_load(config, spark, planner)
        deadline = time.monotonic() + TIMEOUT_S
        while is_alive(point.snapshot_id, point.snapshot_text):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        state = read_handover(config)
        assert state is not None
        assert state.snapshot_id == ""


def can_alter(server: MySQLServer, url: str) -> bool:
    """Return whether a table can be altered within a second."""
    statements = "set session lock_wait_timeout = 1; alter table t force"
    try:
        server.execute(statements, database_of(url))
    except pymysql.err.OperationalError as error:
        if error.args[0] != LOCK_WAIT_TIMEOUT:
            raise
        return False
    return True


def test_a_chunk_that_is_read_keeps_no_alter_waiting(mysql: MySQLServer, config: Config) -> None:
    """An ALTER passes while other tables are being read, and after a chunk is left unfinished."""
    select = f"select * from `{database_of(config.source.url)}`.t"
    with MySQLPlanner(config) as planner:
        point = planner.fresh_point()
        with open_proxied(point.snapshot_id, point.snapshot_text) as session:
            for expected in range(2):  # a table can be read again while it is unchanged
                session.select(select, doing=f"test {expected}")
                session._read_out()
                session.let_go()
            assert can_alter(mysql, config.source.url)
        planner.release()
        point = planner.fresh_point()
        with open_proxied(point.snapshot_id, point.snapshot_text) as session:
            session.select(select, doing="left in the middle")
            assert not can_alter(mysql, config.source.url)
        assert can_alter(mysql, config.source.url)


@pytest.mark.server("mariadb")
def test_without_the_right_an_alter_waits_until_all_is_read(
    mysql: MySQLServer, config: Config
) -> None:
    """MariaDB locks a table's shape for a session that may write the binlog; the log says so."""
    name = database_of(config.source.url)
    with mysql.role("select on *.*", "replication slave, binlog monitor on *.*") as url:
        least = replace(config, source=replace(config.source, url=f"{url}{name}"))
        with capture_logs() as logs, MySQLPlanner(least) as planner:
            point = planner.fresh_point()
            with open_proxied(point.snapshot_id, point.snapshot_text) as session:
                session.select(f"select * from `{name}`.t", doing="test")
            assert not can_alter(mysql, config.source.url)
            planner.release()
            assert can_alter(mysql, config.source.url)
    assert [one for one in logs if one["event"].startswith("schema changes of tables wait")]


@pytest.mark.parametrize("altered", [False, True])
def test_a_table_altered_behind_a_killed_handover_gets_no_wrong_name(
    mysql: MySQLServer, config: Config, altered: bool
) -> None:
    """The catalogue of the next start is newer than the position where the log begins."""
    least = "'NO_LOG'" if mysql.is_mariadb else "'MINIMAL'"
    sql(mysql, config.source.url, "create table s (id int primary key, a int, b int)")
    with mysql.globals(binlog_row_metadata=least):
        with prepare(pipeline_of(config), has_begun=False, stop=lambda: True) as beginning:
            assert beginning is not None
        sql(mysql, config.source.url, "insert into s values (1, 2, 3)")
        if altered:
            sql(mysql, config.source.url, "alter table s modify b int after id")
        engine = make_engine(pipeline_of(config), extract_options(config), handed_again(config))
        options = replace(extract_options(config), idle_wait_s=0.3)
        Extractor(engine, config.directory, options=options).run()
    # All rows are read again, as the table was altered.
    assert [c.after for c in log_changes(config.directory)] == [{"id": 1, "a": 2, "b": 3}]


def handed_again(config: Config) -> Beginning | None:
    """Return the position of the handover, as the next process finds it."""
    with prepare(pipeline_of(config), has_begun=False, stop=lambda: True) as beginning:
        return beginning
