"""Rows without changes that follow: no logical decoding, no binlog and no role for
them is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.pipeline import penstock, pipeline
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.snapshot import UNKNOWN_POSITION, open_snapshots, read_choices
from penstock.engines.mysql.source.strategies import NoConsistentPoint, Strategy
from penstock.ports.bulk import open_planner
from plugins.mysql import MySQLServer
from plugins.postgres import Server


@pytest.mark.spark
@pytest.mark.slow
def test_a_postgres_without_logical_decoding_is_copied(
    own_postgres: Server, target_url: str, tmp_path: Path
) -> None:
    """A role without REPLICATION suffices; doctor has no finding, and verify compares it."""
    own_postgres.restart_with(wal_level="minimal", max_wal_senders="0")
    own_postgres.execute("create role reader login password 'x'")
    source = own_postgres.make_database("source")
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute("create table t (id int primary key, v text)")
        connection.execute("insert into t select g, 'v' from generate_series(1, 100) as g")
        connection.execute("grant select on t to reader")
        name = connection.info.dbname
    config = pipeline(
        tmp_path,
        own_postgres.url(name, "reader", "x"),
        target_url,
        mode="data",
        sections={"spark": {"master": "local[1]"}},
    )
    doctor = penstock("doctor", config.path, "--json")
    assert doctor.code == 0, doctor.out
    ran = penstock("run", config.path, "--json")
    assert ran.code == 0, ran.err
    with psycopg.connect(target_url) as target:
        assert target.execute("select count(*) from t").fetchone() == (100,)
    told = penstock("verify", config.path, "--json")
    assert (told.code, told.result["equal"]) == (0, True), told.err


def test_a_snapshot_without_a_slot_shows_one_moment(
    source_url: str, target_url: str, tmp_path: Path
) -> None:
    """Later commits are not in it; no slot is created, and it ends with the planner."""
    config = pipeline(tmp_path, source_url, target_url, mode="data")
    with psycopg.connect(source_url, autocommit=True) as connection:
        connection.execute("create table t (id int primary key); insert into t values (1)")
        with open_planner(config) as planner:
            point = planner.fresh_point()
            assert point.position.ordinal > 0
            connection.execute("insert into t values (2)")
            slots = "select count(*) from pg_replication_slots where database = current_database()"
            assert connection.execute(slots).fetchone() == (0,)
            with psycopg.connect(source_url) as reader:
                reader.execute("set transaction isolation level repeatable read")
                reader.execute(f"set transaction snapshot '{point.snapshot_id}'".encode())
                assert reader.execute("select id from t").fetchall() == [(1,)]
        with psycopg.connect(source_url) as reader:
            reader.execute("set transaction isolation level repeatable read")
            with pytest.raises(psycopg.Error):
                reader.execute(f"set transaction snapshot '{point.snapshot_id}'".encode())


def test_a_server_without_a_binlog_is_read_under_one_lock(
    own_mysql: Callable[..., MySQLServer],
) -> None:
    """Neither a position in the binlog nor the privilege to ask for it is needed."""
    server = own_mysql()
    server.execute("create database d; create table d.a (id int primary key)")
    server.execute("insert into d.a values (1)")
    if server.is_mariadb:
        server.embedded.unset("log_bin", "log_slave_updates")
    else:
        server.embedded.unset("log_bin", "log_slave_updates", "gtid_mode")
        server.embedded.set(skip_log_bin="")
    server.embedded.stop()
    server.embedded.start()
    assert server.value("select @@global.log_bin") == 0
    with server.role("select, lock tables on d.*") as url:
        with open_catalog(url) as connection:
            tables = captured_tables(connection, ["d.*"])
            assert [one.strategy for one in read_choices(connection, tables, follows=False)] == [
                Strategy.TABLE_LOCKS
            ]
        with open_snapshots(url, tables, count=2, follows=False) as taken:
            server.execute("insert into d.a values (2)")
            assert taken.status.position == UNKNOWN_POSITION
            for reader in taken.connections:
                with reader.cursor() as cursor:
                    cursor.execute("select id from d.a")
                    assert list(cursor.fetchall()) == [(1,)]


def test_without_a_lock_nothing_makes_the_tables_equal(mysql: MySQLServer, mysql_url: str) -> None:
    """Snapshots of several moments need changes that follow: the error has the grant."""
    name = mysql_url.rpartition("/")[2].partition("?")[0]
    mysql.execute("create table a (id int primary key)", name)
    with mysql.role(f"select on {name}.*") as url, open_catalog(url) as connection:
        tables = captured_tables(connection, [f"{name}.*"])
        if mysql.is_mariadb:
            found = read_choices(connection, tables, follows=False)
            assert [one.strategy for one in found] == [Strategy.OWN_POSITIONS]
            assert Strategy.LOCK_FREE in [one.strategy for one in read_choices(connection, tables)]
            return
        with pytest.raises(NoConsistentPoint) as caught:
            read_choices(connection, tables, follows=False)
        assert "grant" in caught.value.hint
