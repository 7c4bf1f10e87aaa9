"""verify and verify --repair between engines, on tables of the bulk load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.mysql_bulk import between, load
from penstock.control.verify.compare import ColumnGone
from penstock.control.verify.verify import VerifyResult, verify
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.config import Config
from penstock.ports.target import TargetShapeDiffers
from penstock.ports.verify import RepairRefused
from plugins.mysql import MySQLServer, database_of, running

pytestmark = pytest.mark.spark
POSTGRES_TABLES = (
    "create table public.t (id bigint primary key, b boolean, n numeric(20,5), m numeric, r real,"
    " d double precision, t text, v varchar(40), c character(5), y bytea, j jsonb, u uuid, da date,"
    " ts timestamp(3), tz timestamptz, ti time, bi bit(5), a int[], iv interval)",
    "insert into public.t select i, i % 2 = 0, i / 8.0, i / 7.0, i / 3.0, sqrt(i), 'x|é𝄞' || i,"
    " case when i % 3 > 0 then 'N' end, 'ab', decode(md5(i::text), 'hex'),"
    " jsonb_build_object('a', i),"
    " ('00000000-0000-4000-8000-' || lpad(i::text, 12, '0'))::uuid,"
    " date '2020-01-01' + i, timestamp '2020-01-01' + i * interval '1.5 s',"
    " timestamptz '2020-01-01 00:00+02' + i * interval '1 h', time '00:00' + i * interval '1 s',"
    " (i % 32)::bit(5), array[i, null], i * interval '1 day' from generate_series(1, 3000) as i",
    "insert into public.t (id) values (-1)",
    "create table public.bag (v text, n int)",
    "alter table public.bag replica identity full",
    "insert into public.bag select 'v' || (i % 40), i % 40 from generate_series(1, 400) as i",
    "create table public.pair (a int, b varchar(20), c int, primary key (a, b))",
    "insert into public.pair select i % 7, 'k' || i, i from generate_series(1, 500) as i",
)
NUMBERS = (
    "create table numbers (n int primary key);"
    "insert into numbers values (0),(1),(2),(3),(4),(5),(6),(7),(8),(9);"
)
MYSQL_TABLES = (
    NUMBERS
    + "create table t (id bigint unsigned primary key, s smallint, n decimal(20,5), f float,"
    " d double, v varchar(40) character set latin1, x text, bl blob, bi binary(4), b bit(12),"
    " e enum('a','ü'), st set('x','y'), j json, da date, dt datetime(3), ts timestamp(6) null,"
    " ti time(2), y year, geo point, g int generated always as (s + 1) virtual);"
    "insert into t (id, s, n, f, d, v, x, bl, bi, b, e, st, j, da, dt, ts, ti, y, geo)"
    " select i, i, i / 8, i / 3, sqrt(i), concat('Ä|', i), concat('é𝄞', i),"
    " unhex(left(sha2(i, 256), 32)), 'a', i % 4096, 'ü', 'x,y',"
    " concat('{\"a\": ', i, '}'), date_add('2020-01-01', interval i day),"
    " '2020-01-01 00:00:00.5', '2020-01-01 00:00:00.123456', sec_to_time(i * 50), 1990,"
    " point(i, 1) from (select a.n + 10 * b.n + 100 * c.n + 1 as i"
    " from numbers a, numbers b, numbers c) as q;"
    "insert into t (id) values (18446744073709551615);"
    "create table bag (v varchar(20), n int);"
    "insert into bag select concat('v', a.n), a.n from numbers a, numbers b;"
    "create table pair (a int, b varchar(20) character set utf8mb4 collate utf8mb4_bin, c int,"
    " primary key (a, b));"
    "insert into pair select a.n, concat('k', b.n), c.n from numbers a, numbers b, numbers c"
    " on duplicate key update c = values(c); drop table numbers"
)


@pytest.fixture(scope="module")
def other_mariadb() -> Iterator[MySQLServer]:
    """MariaDB server beside a MySQL under test."""
    with running("mariadb") as server:
        yield server


Execute = Callable[[str], Any]


class Loaded:
    """A loaded pair.

    Attributes:
        source: Function that runs a statement at the source, in the tables' schema.
        target: Function that runs a statement at the target, in the tables' schema.
    """

    def __init__(self, config: Config, source: Execute, target: Execute, place: str) -> None:
        self.config = config
        self.source = source
        self.target = target
        self.place = place

    def find_differences(self, **more: Any) -> dict[str, tuple[int, int, int]]:
        """Return missing, surplus and different rows of the tables that are not equal."""
        self.result: VerifyResult = verify(self.config, **more)
        return {
            table.table.name: (table.missing, table.surplus, table.different)
            for table in self.result.tables
            if not table.equal
        }

    def keys(self, table: str) -> set[tuple[str, str]]:
        """Return kind and key of the named rows of a table."""
        [found] = [one for one in self.result.tables if one.table.name == table]
        return {(one.kind, one.key) for one in found.named}


def on_postgres(url: str, place: str) -> Execute:
    """Run statements in a database of PostgreSQL."""

    def execute(statement: str) -> Any:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'set search_path = "{place}"')
            done = connection.execute(statement)
            return done.fetchall() if done.description else None

    return execute


def from_postgres(source_url: str) -> None:
    """Fill a source of PostgreSQL."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        for statement in POSTGRES_TABLES:
            connection.execute(statement)


def change(loaded: Loaded) -> None:
    """Change a byte, set a NULL, delete and insert rows, also in a table without key."""
    loaded.target("update t set x = concat(x, '.') where id = 77" if has_x(loaded) else
                  "update t set t = concat(t, '.') where id = 77")  # fmt: skip
    loaded.target("update t set n = null where id = 78")
    loaded.target("delete from t where id = 79")
    loaded.target("insert into t (id) values (999999)")
    loaded.target("update pair set c = c + 1 where a = 3 and b = 'k3'")


def has_x(loaded: Loaded) -> bool:
    """Return whether the tables are those of a source of MySQL's family."""
    return loaded.config.source.engine.name == "mysql"


def change_bag(loaded: Loaded, *, is_postgres: bool) -> None:
    """Remove a copy of one row, add one of another, and make a row unlike any other."""
    if is_postgres:
        loaded.target("delete from bag where ctid = (select ctid from bag where n = 3 limit 1)")
        loaded.target("update bag set v = 'V8' where ctid in (select ctid from bag where n = 8"
                      " limit 1)")  # fmt: skip
    else:
        loaded.target("delete from bag where n = 3 limit 1")
        loaded.target("update bag set v = 'V8' where n = 8 limit 1")
    loaded.target("insert into bag (v, n) values ('v4', 4)")


def check(loaded: Loaded, *, is_postgres: bool) -> None:
    """Check that both sides are equal, differences are named, and repair fixes them."""
    assert loaded.find_differences() == {}
    assert "SHA-256" in loaded.result.way
    assert all(table.source_rows > 90 for table in loaded.result.tables)
    change(loaded)
    change_bag(loaded, is_postgres=is_postgres)
    found = loaded.find_differences()
    assert found["t"] == (1, 1, 2)
    assert found["pair"] == (0, 0, 1)
    # A changed row without key counts as one missing and one surplus row.
    assert found["bag"] == (2, 2, 0)
    assert loaded.keys("t") == {
        ("different", "(77)"), ("different", "(78)"), ("missing", "(79)"), ("surplus", "(999999)")
    }  # fmt: skip
    assert loaded.keys("pair") == {("different", "(3,k3)")}
    assert {key for kind, key in loaded.keys("bag") if kind == "missing"} == {"(v3,3)", "(v8,8)"}
    repaired = {one.table.name: one for one in verify(loaded.config, repair=True).repaired}
    assert (repaired["t"].deleted, repaired["t"].written) == (3, 3)
    assert (repaired["pair"].deleted, repaired["pair"].written) == (1, 1)
    assert loaded.find_differences() == {}
    assert verify(loaded.config, repair=True).repaired == ()


def test_postgresql_to_mysql_and_mariadb(
    mysql: MySQLServer, source_url: str, tmp_path: Path, spark: Session
) -> None:
    """All kinds of types, a composite key, and a table without one are covered."""
    from_postgres(source_url)
    url = mysql.make_database("landing")
    try:
        config = between(source_url, url, tmp_path, tables="public.*")
        load(config, spark)
        loaded = Loaded(
            config,
            on_postgres(source_url, "public"),
            lambda statement: mysql.execute(statement, "public"),
            "public",
        )
        check(loaded, is_postgres=False)
        loaded.target("update t set n = n + 1")
        loaded.target("update t set n = 1 where n is null")
        assert loaded.find_differences()["t"] == (0, 0, 3001)
        loaded.target("alter table pair drop column c")
        with pytest.raises(ColumnGone, match="no column c"):
            loaded.find_differences()
        loaded.target("drop table pair")
        assert loaded.find_differences() == {"t": (0, 0, 3001)}
        assert [table.name for table in loaded.result.not_compared] == ["pair"]
        assert not loaded.result.equal
    finally:
        mysql.drop_database(url)
        mysql.execute("drop database if exists wirekite; drop database if exists public")


def test_mysql_and_mariadb_to_postgresql(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path, spark: Session
) -> None:
    """The repair refuses another shape, and triggers that would fire."""
    place = database_of(mysql_url)
    mysql.execute(MYSQL_TABLES, place)
    config = between(mysql_url, target_url, tmp_path)
    load(config, spark)
    loaded = Loaded(
        config,
        lambda statement: mysql.execute(statement, place),
        on_postgres(target_url, place),
        place,
    )
    check(loaded, is_postgres=True)
    loaded.target("update t set n = 0 where id = 5")
    loaded.target("alter table t add column own int")
    with pytest.raises(RepairRefused, match="own"):
        loaded.find_differences(repair=True)
    loaded.target("alter table t drop column own")
    loaded.target("alter table t alter column s type bigint")
    with pytest.raises(TargetShapeDiffers, match="s is bigint"):
        loaded.find_differences(repair=True)
    loaded.target("alter table t alter column s type smallint")
    loaded.target("create function stop() returns trigger language plpgsql as 'begin return null;"
                  " end'")  # fmt: skip
    loaded.target("create trigger stops before insert on t for each row execute function stop()")
    loaded.target("alter table t enable always trigger stops")
    with pytest.raises(RepairRefused, match="stops"):
        loaded.find_differences(repair=True)
    assert loaded.find_differences() == {"t": (0, 0, 1)}, "nothing was repaired in part"


@pytest.mark.server("mysql")
def test_mysql_to_mariadb(
    mysql: MySQLServer,
    mysql_url: str,
    other_mariadb: MySQLServer,
    tmp_path: Path,
    spark: Session,
) -> None:
    """The types of the two servers are nearly the same."""
    place = database_of(mysql_url)
    mysql.execute(MYSQL_TABLES, place)
    url = other_mariadb.make_database("landing")
    config = between(mysql_url, url, tmp_path)
    load(config, spark)
    loaded = Loaded(
        config,
        lambda statement: mysql.execute(statement, place),
        lambda statement: other_mariadb.execute(statement, place),
        place,
    )
    check(loaded, is_postgres=False)


def test_long_values_of_several_megabytes_are_compared_whole(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path, spark: Session
) -> None:
    """An image may not be longer than a packet, so long values enter it as digests."""
    place = database_of(mysql_url)
    mysql.execute("create table long_ones (id int primary key, a longblob, b longtext)", place)
    mysql.execute("insert into long_ones values (1, repeat('a', 9000000), repeat('é', 4000000))",
                  place)  # fmt: skip
    config = between(mysql_url, target_url, tmp_path)
    load(config, spark)
    target = on_postgres(target_url, place)
    loaded = Loaded(config, lambda _: None, target, place)
    assert loaded.find_differences() == {}
    target("update long_ones set a = set_byte(a, 8999999, 98)")
    assert loaded.find_differences() == {"long_ones": (0, 0, 1)}
    assert loaded.result.tables[0].table == TableName(place, "long_ones")
    target("update long_ones set a = set_byte(a, 8999999, 97), b = overlay(b placing 'e' from 9)")
    assert loaded.find_differences() == {"long_ones": (0, 0, 1)}
    verify(config, repair=True)
    assert loaded.find_differences() == {}
