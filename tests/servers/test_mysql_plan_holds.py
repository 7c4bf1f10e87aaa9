"""Everything that the plan accepts is loaded; the plan refuses the rest by name. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pymysql
import pytest

from harness.pipelines.mysql_bulk import Here, between, load
from penstock.control.doctor.plan import make_plan
from penstock.control.pipeline.config import load_config
from penstock.load.ledger import read_ledger
from penstock.model import PenstockError, TableName
from penstock.ports.config import Config, OnTableError
from plugins.mysql import MySQLServer, database_of


@pytest.fixture
def landing(mysql: MySQLServer) -> Iterator[str]:
    """A database to load into; it and penstock's own database are dropped afterwards."""
    url = mysql.make_database("landing")
    yield url
    mysql.drop_database(url)
    mysql.execute("drop database if exists wirekite")


def config_for(source: str, target: str, folder: Path, *, into: str, types: str = "") -> Config:
    """Return a data pipeline from one database into another, the tables into schema `into`."""
    config = between(source, target, folder)
    text = config.path.read_text()
    more = f'[target.map]\n{database_of(source)} = "{into}"\n[target.types]\n{types}\n[dataLoader]'
    config.path.write_text(text.replace("[dataLoader]", more))
    return load_config(config.path)


@pytest.mark.server("mariadb")
def test_types_that_only_mariadb_has_between_two_servers_of_it(
    mysql: MySQLServer, mysql_url: str, landing: str, tmp_path: Path
) -> None:
    """UUID, INET4 and INET6 are sent as texts, as LOAD DATA does not accept their bytes."""
    mysql.execute(
        "create table t (id int primary key, u uuid unique, a inet4, b inet6);"
        "insert into t values (2, null, null, null),"
        " (1, '123e4567-e89b-12d3-a456-426655440000', '10.0.0.1', '2001:db8::1')",
        database_of(mysql_url),
    )
    config = config_for(mysql_url, landing, tmp_path, into=database_of(landing))
    assert make_plan(config).may_run
    load(config, Here())  # type: ignore[arg-type]
    found = [
        mysql.execute("select * from t order by id", database_of(url))
        for url in (mysql_url, landing)
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 2


PERIOD = (
    ", a {0} generated always as row start, b {0} generated always as row end,"
    " period for system_time (a, b)"
)


@pytest.mark.server("mariadb")
def test_versioned_tables_are_loaded_as_they_are_now_and_not_followed(
    mysql: MySQLServer, mysql_url: str, landing: str, tmp_path: Path
) -> None:
    """Past rows are left out; a pipeline that follows changes is refused before it runs."""
    periods = ("", PERIOD.format("timestamp(6)"), PERIOD.format("bigint unsigned"))
    for number, period in enumerate(periods):
        mysql.execute(
            f"create table t{number} (id int primary key, v int{period}) with system versioning;"
            f"insert into t{number} (id, v) values (1, 2), (2, 2);"
            f"update t{number} set v = 3 where id = 1; delete from t{number} where id = 2",
            database_of(mysql_url),
        )
    config = config_for(mysql_url, landing, tmp_path, into=database_of(landing))
    assert make_plan(config).may_run
    load(config, Here())  # type: ignore[arg-type]
    for number in range(len(periods)):
        assert mysql.execute(f"select * from t{number}", database_of(landing)) == [(1, 3)]
    text = config.path.read_text().replace('mode = "data"', 'mode = "data+change"')
    config.path.write_text(text)
    plan = make_plan(load_config(config.path))
    assert [problem.split(":")[0] for problem in plan.problems] == [
        f"{database_of(mysql_url)}.t{number} is system-versioned" for number in range(len(periods))
    ]


def test_null_and_removed_characters_as_chosen(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """Zero dates become NULL although the source says NOT NULL; labels lose their U+0000."""
    mysql.execute(
        "set sql_mode = ''; create table t (id int primary key, d date not null,"
        " dt datetime not null default '0000-00-00', e enum('a', 'b\0c') not null,"
        " s set('a', 'b\0c') not null, v varchar(9) not null);"
        "insert into t values (1, '0000-00-00', '2024-01-01', 1, 1, ''),"
        " (2, '2024-00-10', '0000-00-00', 2, 3, 'x\0')",
        database_of(mysql_url),
    )
    types = '"zero dates" = "null"\n"nul characters" = "remove"\n"*" = "error"'
    config = config_for(mysql_url, target_url, tmp_path, into="public", types=types)
    assert make_plan(config).may_run
    load(config, Here())  # type: ignore[arg-type]
    with closing(psycopg.connect(target_url)) as target:
        assert target.execute("select id, d, dt::text, e, s, v from t order by id").fetchall() == [
            (1, None, "2024-01-01 00:00:00", "a", "a", ""),
            (2, None, None, "bc", "a,bc", "x"),
        ]
        nullable = target.execute(
            "select column_name from information_schema.columns"
            " where table_name = 't' and is_nullable = 'YES' order by 1"
        ).fetchall()
    assert nullable == [("d",), ("dt",)]


def test_null_in_a_key_is_refused_by_name(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """Rows are found by their key: its values cannot be left out."""
    mysql.execute(
        "create table t (d date primary key, id int);",
        database_of(mysql_url),
    )
    types = '"zero dates" = "null"\n"*" = "error"'
    config = config_for(mysql_url, target_url, tmp_path, into="public", types=types)
    (refusal,) = make_plan(config).refusals
    assert refusal.startswith(f"{database_of(mysql_url)}.t.d date: NULL was chosen")


def test_generated_columns_that_a_strict_server_refuses_are_named(
    mysql: MySQLServer, mysql_url: str, landing: str, tmp_path: Path
) -> None:
    """Rows of a session that was not strict would stop the target, which computes them again."""
    mysql.execute(
        "create table t (id int primary key, name varchar(20),"
        " fine int as (length(name) % 7) virtual, doubtful int as (name + 1) virtual,"
        " key (doubtful));"
        "insert into t (id, name) values (1, '5'), (2, null)",
        database_of(mysql_url),
    )
    config = config_for(mysql_url, landing, tmp_path, into=database_of(landing))
    assert make_plan(config).problems == ()
    mysql.execute(
        "set sql_mode = ''; insert into t (id, name) values (3, 'five')", database_of(mysql_url)
    )
    plan = make_plan(config)
    assert not plan.may_run
    [problem] = plan.problems
    assert ".t.doubtful is generated" in problem
    assert "five" in problem
    mysql.execute("set sql_mode = ''; update t set name = '6' where id = 3", database_of(mysql_url))
    assert make_plan(config).may_run
    load(config, Here())  # type: ignore[arg-type]
    found = [
        mysql.execute("select * from t order by id", database_of(url))
        for url in (mysql_url, landing)
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 3


REFUSED = {
    "b": ("bit(3)", "n"),
    "i": ("tinyint", "n * 100"),
    "u": ("smallint unsigned", "n - 10"),
    "d": ("decimal(3,1)", "n * 50"),
    "v": ("varchar(3)", "repeat('x', n)"),
    "y": ("varbinary(3)", "repeat('x', n)"),
    "e": ("enum('a','b')", "if(n > 5, 'c', 'a')"),
    "t": ("date", "if(n > 5, '2024-13-45', '2024-02-28')"),
    "x": ("tinytext", "repeat('x', n * 100)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_kind_of_computed_value_is_tried_under_the_strict_rules(
    mysql: MySQLServer, mysql_url: str, landing: str, tmp_path: Path, name: str
) -> None:
    """The expression is valid, but its value does not fit the column's type."""
    database = database_of(mysql_url)
    type_text, expression = REFUSED[name]
    fine, odd = (11, 3) if name == "u" else (1, 9)
    mysql.execute(
        "set sql_mode = '';"
        f"create table t (id int primary key, n int, {name} {type_text} as ({expression}) stored);"
        f"insert into t (id, n) values (1, {fine}), (2, null)",
        database,
    )
    config = config_for(mysql_url, landing, tmp_path, into=database_of(landing))
    assert make_plan(config).problems == ()
    mysql.execute(f"set sql_mode = ''; insert into t (id, n) values (3, {odd})", database)
    with pytest.raises(pymysql.Error):  # the target would give the same error
        mysql.execute(
            "set sql_mode = 'strict_all_tables,no_zero_in_date,no_zero_date';"
            f"insert into t (id, n) values (4, {odd})",
            database,
        )
    problems = make_plan(config).problems
    assert problems
    assert all(f".t.{name} is generated" in one for one in problems), problems
    assert any("strict server refuses" in one for one in problems)


@pytest.mark.parametrize("isolates", [False, True])
def test_a_table_that_cannot_be_copied_leaves_the_others_alone(
    mysql: MySQLServer, mysql_url: str, landing: str, tmp_path: Path, isolates: bool
) -> None:
    """The load ends then, without onTableError = "isolate"."""
    mysql.execute(
        "set sql_mode = '';"
        "create table a (id int primary key); insert into a values (1);"
        "create table b (id int primary key, n int, k bit(3) as (n) stored);"
        "insert into b (id, n) values (1, 99);"
        "create table c (id int primary key); insert into c values (1)",
        database_of(mysql_url),
    )
    config = config_for(mysql_url, landing, tmp_path, into=database_of(landing))
    policy = OnTableError.ISOLATE if isolates else OnTableError.STOP
    loader = replace(config.change_loader, on_table_error=policy)
    config = replace(config, change_loader=loader)
    if not isolates:
        with pytest.raises(PenstockError):
            load(config, Here())  # type: ignore[arg-type]
        return
    result = load(config, Here())  # type: ignore[arg-type]
    b = TableName(database_of(mysql_url), "b")
    assert [(table, error.code) for table, error in result.broken.items()] == [(b, "TG32")]
    for name, count in (("a", 1), ("b", 0), ("c", 1)):
        assert mysql.value(f"select count(*) from {name}", database_of(landing)) == count
    assert read_ledger(config.layout.state).finished
    mysql.execute("update b set n = 1", database_of(mysql_url))
    again = load(config, Here())  # type: ignore[arg-type]
    assert not again.broken
    assert mysql.value("select count(*) from b", database_of(landing)) == 1
