"""Servers with restrictions: no tables without a primary key, and few sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.changes import relation
from harness.pipelines.flexcdc import Flex
from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import ITEM, delete, insert, update
from harness.servers.mysql_doctor import examine, look, one
from penstock.engines.mysql.checks.probe import MySQLProbe, ProbeScope
from penstock.engines.mysql.connect import connect
from penstock.engines.mysql.source.catalog import survey
from penstock.host.errors import ServerBusy
from penstock.model import Identity, TableName
from penstock.ports.checks import Severity, Side
from plugins.mysql import PASSWORD, MySQLServer
from plugins.mysql_loader import ITEMS, MyStart, Target

BAG = relation(("v", "integer", "int32"), key=(), identity=Identity.FULL, name="bag")


@pytest.fixture
def key_requirement(mysql: MySQLServer) -> Iterator[None]:
    """Setting of the server that refuses tables without a primary key, like managed services."""
    with mysql.globals(sql_require_primary_key="1"):
        yield


@pytest.mark.server("mysql")
def test_all_our_tables_have_a_primary_key_where_the_server_wants_it(
    key_requirement: None, my_start: MyStart, my_target: Target, log: LogMaker
) -> None:
    """Progress, action, and merge tables of tables with and without a key have one."""
    target = my_start(
        f"{ITEMS}; set sql_require_primary_key = 0; create table bag (v int)", rows_directory=None
    )
    log.transaction(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "b", 2), insert(BAG, 7))
    log.close_segment()
    target.batch()
    log.transaction(update(ITEM, 1, "c", 1), delete(ITEM, 2, None, None), insert(BAG, 7))
    log.close_segment()
    target.batch()
    assert target.rows("select * from t") == [(1, "c", 1)]
    assert target.rows("select * from bag") == [(7,), (7,)]
    without = """
        select t.table_name from information_schema.tables as t
         where t.table_schema = 'wirekite'
           and not exists (select 1 from information_schema.table_constraints as c
                            where c.table_schema = t.table_schema and c.table_name = t.table_name
                              and c.constraint_type = 'PRIMARY KEY')
    """
    assert my_target.execute(without) == []


@pytest.mark.server("mysql")
def test_changelogs_are_filled_where_the_server_wants_keys(
    key_requirement: None, mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """FlexCDC's columns are preceded by a number, which only penstock uses."""
    database = f"flex_{mysql_url.rpartition('/')[2]}"
    flex = Flex(mysql_url, mysql.url(), tmp_path, database=database)
    try:
        flex.source_sql("create table t (id int primary key, v varchar(9))")
        flex.begin("t")
        flex.source_sql("insert into t values (1, 'a')", "alter table t add column w int")
        flex.source_sql("update t set v = 'b', w = 3")
        flex.step()
        found = [(image[0], *image[3:]) for image in flex.images("t", "id", "v", "w")]
        assert found == [(1, 1, "a", None), (-1, 1, "a", None), (1, 1, "b", 3)]
    finally:
        mysql.drop_database(mysql.url(database))


@pytest.mark.server("mysql")
def test_doctor_names_tables_that_the_target_would_refuse(
    mysql: MySQLServer, mysql_url: str
) -> None:
    """Doctor names tables without a primary key that do not exist yet."""
    name = mysql_url.rpartition("/")[2]
    mysql.execute("create table t (id int); create table k (id int primary key)", name)
    with connect(mysql.url(), application_name="doctor") as connection:
        here = survey(connection, [f"{name}.*"]).tables
        elsewhere = tuple(
            replace(table, name=TableName("elsewhere", table.name.name)) for table in here
        )
        for setting, tables, count in (("1", elsewhere, 1), ("1", here, 0), ("0", elsewhere, 0)):
            with mysql.globals(sql_require_primary_key=setting):
                probe = MySQLProbe(
                    side=Side.TARGET,
                    url=mysql.url(),
                    connection=connection,
                    wanted=ProbeScope(),
                    tables=tables,
                )
                found = examine(probe, only=["MY044"])
            assert len(found) == count
            if found:
                one(found, "MY044", Severity.ERROR, "sql_require_primary_key", "elsewhere.t")
                assert "elsewhere.k" not in found[0].what


def test_an_account_with_few_sessions_is_told_how_many_a_run_needs(
    mysql: MySQLServer, mysql_url: str
) -> None:
    """Doctor says so before the run, and so does the error itself."""
    mysql.execute("create user few@'127.0.0.1' identified by %s", parameters=(PASSWORD,))
    mysql.execute("grant all on *.* to few@'127.0.0.1'")
    mysql.execute("alter user few@'127.0.0.1' with max_user_connections 5")
    url = mysql.url("", "few", PASSWORD)
    try:
        for side in (Side.SOURCE, Side.TARGET):
            found = look(mysql, "MY045", url=url, side=side, threads=5)
            one(found, "MY045", Severity.ERROR, "max_user_connections", "needs 8", "maxThreads")
            assert look(mysql, "MY045", url=url, side=side, threads=2) == []
        opened = [connect(url, application_name="test") for _ in range(5)]
        with pytest.raises(ServerBusy) as caught:
            connect(url, application_name="test")
        for connection in opened:
            connection.close()
        assert "max_user_connections" in caught.value.hint
        assert "maxThreads + 3" in caught.value.hint
    finally:
        mysql.execute("drop user few@'127.0.0.1'")
