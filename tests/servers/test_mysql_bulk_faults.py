"""Bulk loads from MySQL and MariaDB, killed and with concurrent changes: every row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.pipelines.bulk import rows
from harness.pipelines.mysql_bulk import between, fill_orders, load
from penstock.control.run.bulk_load import bulk_load
from penstock.engines.mysql.planner import MySQLPlanner
from penstock.engines.mysql.proxy_protocol import is_alive
from penstock.engines.mysql.source.bulk_reader import MySQLBulkReader
from penstock.engines.mysql.source.proxied_session import open_proxied
from penstock.host.errors import ConnectionLost
from penstock.load.ledger import read_ledger
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.bulk import Point, SnapshotUnreachable
from penstock.ports.config import Config
from plugins.mysql import MySQLServer, database_of

pytestmark = [pytest.mark.spark, pytest.mark.faults]

TIMEOUT_S = 60.0
CHILD = """
import sys
from pathlib import Path
from penstock.control.run.bulk_load import bulk_load
from penstock.control.pipeline.config import load_config
from penstock.engines.mysql.planner import MySQLPlanner
from penstock.load.bulk import Point
from penstock.load.session import SessionOptions, start_session
from penstock.codec.mysql.binlog_position import BinlogPosition

config = load_config(Path(sys.argv[1]))
point = None
if sys.argv[2:]:
    position = BinlogPosition.parse(sys.argv[2])
    point = Point(position=position, snapshot_id=sys.argv[3], snapshot_text=sys.argv[4])
options = SessionOptions(work_directory=config.layout.run / "child", master="local[2]")
with start_session(options) as session, MySQLPlanner(config, first=lambda: point) as planner:
    bulk_load(config, session, planner)
"""
DONE = "select count(*) from wirekite.wirekite_progress where finish_time is not null"
ASLEEP = (
    "select count(*) from pg_stat_activity where application_name = 'penstock bulk' and "
    "state <> 'active' and clock_timestamp() - state_change > interval '0.7 s' "
    "and datname = current_database()"
)


@pytest.fixture
def config(mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path) -> Config:
    """A pipeline with a table of several chunks."""
    fill_orders(mysql, database_of(mysql_url))
    return between(mysql_url, target_url, tmp_path)


def wait_for(url: str, query: str, expected: int) -> None:
    """Wait until a count is reached."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if rows(url, "select to_regclass('wirekite.bulk_table') is not null") == [(True,)]:
            found = rows(url, query)[0][0]
            assert isinstance(found, int)
            if found >= expected:
                return
        time.sleep(0.05)
    raise TimeoutError(f"{query} did not reach {expected}")


def check_orders(mysql: MySQLServer, config: Config) -> None:
    """Check that every order is there once."""
    name = database_of(config.source.url)
    counted = rows(
        config.target.url,
        f'select count(*), count(distinct id), sum(id) from "{name}".orders where id >= 0',
    )
    expected = mysql.execute("select count(*), count(*), sum(id) from orders where id >= 0", name)
    assert counted == [tuple(int(value) for value in expected[0])]


@pytest.mark.parametrize(
    ("fault", "query", "expected"),
    [
        ("bulk.chunk.committed:2:sleep", DONE, 2),
        ("bulk.chunk.copied:2:sleep", ASLEEP, 1),
        ("bulk.chunk.copied:1:kill", DONE, 0),
    ],
)
def test_a_killed_load_goes_on_where_it_was(
    mysql: MySQLServer, config: Config, spark: Session, fault: str, query: str, expected: int
) -> None:
    """Finished chunks stay and the others follow while the snapshots are lent: each row once."""
    name = database_of(config.source.url)
    with MySQLPlanner(config) as keeper:
        point = keeper.fresh_point()
        mysql.execute("insert into orders (id) values (-1)", name)  # after the point
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", CHILD, str(config.path), str(point.position)),
                *(point.snapshot_id, point.snapshot_text),
            ],
            env={**os.environ, "PENSTOCK_FAULT": fault},
            start_new_session=True,
        )
        try:
            wait_for(config.target.url, query, expected)
            if fault.endswith("kill"):
                time.sleep(1)
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
        before = {plan.name for plan in read_ledger(config.layout.state).plans}
        with MySQLPlanner(config, first=lambda: point) as planner:
            bulk_load(config, spark, planner)
        after = {plan.name for plan in read_ledger(config.layout.state).plans}
        assert before == after, "it went on with the same plan"
        late = rows(config.target.url, f'select count(*) from "{name}".orders where id < 0')
        assert late == [(0,)], "it is behind the point"
    check_orders(mysql, config)


def test_without_its_snapshot_a_table_begins_afresh(
    mysql: MySQLServer, config: Config, spark: Session
) -> None:
    """The table is emptied and loaded at a later point if the lending process ends."""
    with MySQLPlanner(config) as keeper:
        gone = keeper.fresh_point()
    assert not is_alive(gone.snapshot_id, gone.snapshot_text)
    with pytest.raises(SnapshotUnreachable):
        open_proxied(gone.snapshot_id, gone.snapshot_text)
    with MySQLPlanner(config, first=lambda: gone) as planner:
        result = bulk_load(config, spark, planner)
    assert result.positions[TableName(database_of(config.source.url), "orders")] >= (
        gone.position.ordinal
    )
    check_orders(mysql, config)


def test_a_table_truncated_behind_the_point_gets_a_later_one(
    mysql: MySQLServer, config: Config, spark: Session
) -> None:
    """The snapshot cannot see the truncation; the other table keeps the first point."""
    name = database_of(config.source.url)
    mysql.execute("create table t (id int primary key); insert into t values (1), (2), (3)", name)
    with MySQLPlanner(config) as keeper:
        first = keeper.fresh_point()
        mysql.execute("truncate table t; insert into t values (9)", name)
        with MySQLPlanner(config, first=lambda: first) as planner:
            result = bulk_load(config, spark, planner)
    assert rows(config.target.url, f'select id from "{name}".t') == [(9,)]
    assert result.positions[TableName(name, "orders")] == first.position.ordinal
    assert result.positions[TableName(name, "t")] > first.position.ordinal
    check_orders(mysql, config)


def test_all_tables_are_read_at_one_point_while_others_write(
    mysql: MySQLServer, config: Config, spark: Session
) -> None:
    """A row moved from one table to the other is in exactly one of them."""
    name = database_of(config.source.url)
    mysql.execute(
        "create table a (id int primary key, pad varchar(300));"
        "create table b (id int primary key, pad varchar(300));"
        "insert into a select id, repeat('x', 300) from orders where id < 5000",
        name,
    )
    stop = threading.Event()
    moved = 0

    def move() -> None:
        nonlocal moved
        with mysql.connect(name) as connection, connection.cursor() as cursor:
            while not stop.is_set() and moved < 4900:
                cursor.execute("begin")
                cursor.execute(f"insert into b select * from a where id = {moved}")
                cursor.execute(f"delete from a where id = {moved}")
                cursor.execute("commit")
                moved += 1
                time.sleep(0.001)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        while moved < 20:
            time.sleep(0.01)
        load(config, spark)
    finally:
        stop.set()
        mover.join()
    sums = rows(
        config.target.url,
        f'select (select count(*) from "{name}".a), (select count(*) from "{name}".b)',
    )[0]
    assert sum(int(str(count)) for count in sums) == 5000
    assert int(str(sums[1])) > 0


def test_sessions_left_in_the_middle_of_a_result_serve_the_next(
    mysql: MySQLServer, config: Config
) -> None:
    """A borrower that just leaves costs nothing, however often; a session that the server ends is
    lost.
    """
    name = database_of(config.source.url)
    expected = int(mysql.execute("select count(*) from orders", name)[0][0])
    with MySQLPlanner(config) as keeper:
        point: Point = keeper.fresh_point()
        mysql.execute("insert into orders (id) values (-1)", name)  # after the point
        sessions = config.data_loader.max_threads + 3
        for _ in range(sessions + 2):
            session = open_proxied(point.snapshot_id, point.snapshot_text)
            session.select(f"select * from `{name}`.orders", doing="test")
            session.receive()
            session._socket.close()
        held = [open_proxied(point.snapshot_id, point.snapshot_text) for _ in range(sessions)]
        for session in held:
            assert MySQLBulkReader(session).number(f"select count(*) from `{name}`.orders") == (
                expected
            )
        # It did not hold the table while its result was not read.
        mysql.execute("alter table orders add column more int", name)
        for (thread,) in mysql.execute(
            "select id from information_schema.processlist where command = 'Sleep' and id <> "
            f"connection_id() and db = '{name}'"
        ):
            mysql.execute(f"kill {thread}")
        for session in held:
            with pytest.raises(ConnectionLost):
                session.run("savepoint a", doing="test")
            session.close()
        deadline = time.monotonic() + TIMEOUT_S
        while is_alive(point.snapshot_id, point.snapshot_text):
            assert time.monotonic() < deadline, "the proxy did not notice"
            time.sleep(0.02)
