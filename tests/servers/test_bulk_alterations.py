"""Tables that are altered while the bulk load begins or runs: a copy has one definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec import structs

from harness.pipelines.bulk import rows
from harness.pipelines.mysql_bulk import Here, between
from harness.pipelines.mysql_extract import sql
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.control.run.bulk_load import bulk_load
from penstock.load import bulk
from penstock.load.ledger import start_positions
from penstock.model import TableDefinition, TableName
from penstock.ports.bulk import Chunk, Planning, Point, TableRead, open_planner
from penstock.ports.config import Config
from penstock.ports.target import TargetShapeDiffers
from plugins.mysql import MySQLServer, database_of

SWAP = ["alter table t rename column a to x", "alter table t rename column b to a",
        "alter table t rename column x to b"]  # fmt: skip
# Each leaves some names or types unchanged: a column read by name may be another one.
ALTERATIONS = {
    "swapped": SWAP,
    "added": ["alter table t add column c int default 5"],
    "renamed": ["alter table t rename column a to z"],
    "dropped": ["alter table t drop column b"],
    "added again": ["alter table t drop column a", "alter table t add column a int default 9"],
    "renamed and added": [
        "alter table t rename column a to z",
        "alter table t add column a int default 9",
    ],
    "retyped": ["alter table t alter column a type varchar(20)"],
    "other key": ["alter table t drop constraint t_pkey", "alter table t add primary key (a)"],
    "made again": ["drop table t", "create table t (id int primary key, w varchar(9))"],
}
FOR_MYSQL = {
    "retyped": ["alter table t modify a varchar(20)"],
    "other key": ["alter table t drop primary key, add primary key (a)"],
}


class Meddling:
    """A planner during which a table is altered once: after the point, or after the plan."""

    def __init__(self, planner: Planning, when: str, meddle: Callable[[], None]) -> None:
        self._planner, self._when, self._meddle = planner, when, meddle

    def __getattr__(self, name: str) -> Any:
        """Return every other attribute of the planner."""
        return getattr(self._planner, name)

    def fresh_point(self) -> Point:
        """Return a point, then alter the table."""
        point = self._planner.fresh_point()
        self._now("point")
        return point

    def chunks(
        self, point: Point, wanted: Sequence[TableRead]
    ) -> Mapping[TableName, Sequence[Chunk]]:
        """Return the chunks, then alter the table."""
        found = self._planner.chunks(point, wanted)
        self._now("plan")
        return found

    def _now(self, when: str) -> None:
        if when == self._when:
            self._when = ""
            self._meddle()


@pytest.mark.parametrize("when", ["point", "plan"])
@pytest.mark.parametrize("how", ALTERATIONS)
def test_a_table_that_is_altered_in_mysql(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path, how: str, when: str
) -> None:
    """Rows arrive under their current names, in the table that the source has by then."""
    sql(mysql, mysql_url, "create table t (id int primary key, a int, b int)")
    sql(mysql, mysql_url, "insert into t values (1, 10, 100), (2, 20, 200)")

    def alter() -> None:
        for statement in FOR_MYSQL.get(how, ALTERATIONS[how]):
            sql(mysql, mysql_url, statement)

    config, name = between(mysql_url, target_url, tmp_path), database_of(mysql_url)
    with open_planner(config) as planner:
        bulk_load(config, Here(), Meddling(planner, when, alter))  # type: ignore[arg-type]
    expected = mysql.execute("select * from t order by 1", name)
    assert rows(target_url, f'select * from "{name}".t order by 1') == [*map(tuple, expected)]


class Unseeing(Meddling):
    """A planner that once has an outdated definition: an ALTER came before its point."""

    def __init__(self, planner: Planning, table: TableName, meddle: Callable[[], None]) -> None:
        super().__init__(planner, "point", meddle)
        self._stale = planner.define([table])

    def fresh_point(self) -> Point:
        """Alter the table, then return a point that knows no definitions."""
        self._now("point")
        return replace(self._planner.fresh_point(), definitions=None)

    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        """Return the outdated definition, then the present ones."""
        stale, self._stale = self._stale, []
        return stale or self._planner.define(tables)

    def chunks(
        self, point: Point, wanted: Sequence[TableRead]
    ) -> Mapping[TableName, Sequence[Chunk]]:
        """Return chunks of which no reader finds that the table was altered."""
        found = self._planner.chunks(point, wanted)
        return {
            name: [structs.replace(one, shape="") for one in some] for name, some in found.items()
        }


def test_rows_that_do_not_fit_the_plan_are_read_again(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """A server tells the second of an ALTER only: the target's refusal shows what was missed."""
    sql(mysql, mysql_url, "create table t (id int primary key, a varchar(3))")
    sql(mysql, mysql_url, "insert into t values (1, 'a')")

    def alter() -> None:
        sql(mysql, mysql_url, "alter table t modify a varchar(20)")
        sql(mysql, mysql_url, "insert into t values (2, 'longer')")

    config, name = between(mysql_url, target_url, tmp_path), database_of(mysql_url)
    with open_planner(config) as planner:
        unseeing = Unseeing(planner, TableName(name, "t"), alter)
        bulk_load(config, Here(), unseeing)  # type: ignore[arg-type]
    assert rows(target_url, f'select * from "{name}".t order by 1') == [(1, "a"), (2, "longer")]


@pytest.mark.parametrize("when", ["point", "plan"])
@pytest.mark.parametrize("how", ALTERATIONS)
def test_a_table_that_is_altered_in_postgres(
    source_url: str, target_url: str, tmp_path: Path, how: str, when: str
) -> None:
    """Rows arrive under their current names, in the table that the source has by then."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        connection.execute("create table t (id int primary key, a int, b int)")
        connection.execute("insert into t values (1, 10, 100), (2, 20, 200)")

    def alter() -> None:
        with psycopg.connect(source_url, autocommit=True) as connection:
            for statement in ALTERATIONS[how]:
                connection.execute(statement)

    config = between(source_url, target_url, tmp_path, tables="public.*")
    with open_planner(config) as planner:
        bulk_load(config, Here(), Meddling(planner, when, alter))  # type: ignore[arg-type]
    # A column that is added after the plan does not change the copy: it arrives through the log.
    columns = "id, a, b" if (how, when) == ("added", "plan") else "*"
    expected = rows(source_url, f"select {columns} from t order by 1")
    assert rows(target_url, "select * from t order by 1") == expected


@pytest.mark.parametrize("when", ["point", "plan"])
def test_a_table_that_is_dropped_meanwhile_is_left_out(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path, when: str
) -> None:
    """The other tables are loaded; it does not count as copied: its changes are passed over."""
    for table in ("t", "u"):
        sql(mysql, mysql_url, f"create table {table} (id int primary key)")
        sql(mysql, mysql_url, f"insert into {table} values (1)")
    config, name = between(mysql_url, target_url, tmp_path), database_of(mysql_url)
    with open_planner(config) as planner:
        meddling = Meddling(planner, when, lambda: sql(mysql, mysql_url, "drop table t"))
        result = bulk_load(config, Here(), meddling)  # type: ignore[arg-type]
    assert any("was dropped in the source" in note for note in result.notes)
    assert rows(target_url, f'select * from "{name}".u') == [(1,)]
    assert set(result.positions) == {TableName(name, "u")}
    assert start_positions(config.layout.state, BinlogPosition) == result.positions


def test_tables_that_are_all_dropped_meanwhile_leave_an_empty_copy(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """A load of no table differs from no load, after which changes of all tables count."""
    sql(mysql, mysql_url, "create table t (id int primary key)")
    config = between(mysql_url, target_url, tmp_path)
    assert start_positions(config.layout.state, BinlogPosition) is None
    with open_planner(config) as planner:
        meddling = Meddling(planner, "plan", lambda: sql(mysql, mysql_url, "drop table t"))
        bulk_load(config, Here(), meddling)  # type: ignore[arg-type]
    assert start_positions(config.layout.state, BinlogPosition) == {}


class CutOff(Exception):
    """Error that ends the first run of a bulk load like a kill."""


@pytest.mark.parametrize("target", ["postgres", "mysql"])
@pytest.mark.parametrize("how", ALTERATIONS)
def test_a_table_that_is_altered_between_two_runs(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path, how: str, target: str
) -> None:
    """The target table that the first run created is recreated: it holds no complete copy."""
    sql(mysql, mysql_url, "create table t (id int primary key, a int, b int)")
    sql(mysql, mysql_url, "insert into t values (1, 10, 100), (2, 20, 200)")

    def cut_off() -> None:
        raise CutOff

    name, place = database_of(mysql_url), target_url
    more = ""
    if target == "mysql":
        place = mysql.make_database()
        more = f'[target.map]\n"{name}" = "{database_of(place)}"'
    config = between(mysql_url, place, tmp_path, more=more)
    with open_planner(config) as planner, pytest.raises(CutOff):
        bulk_load(config, Here(), Meddling(planner, "plan", cut_off))  # type: ignore[arg-type]
    for statement in FOR_MYSQL.get(how, ALTERATIONS[how]):
        sql(mysql, mysql_url, statement)
    with open_planner(config) as planner:
        bulk_load(config, Here(), planner)  # type: ignore[arg-type]
    # The table stays if all columns fit, with its columns in their old order.
    columns = "id, a, b" if how in ("swapped", "added again") else "*"
    expected = mysql.execute(f"select {columns} from t order by 1", name)
    if target == "mysql":
        found = mysql.execute(f"select {columns} from t order by 1", database_of(place))
        keys = (
            "select index_name, seq_in_index, column_name from information_schema.statistics "
            "where table_name = 't' and table_schema = '{}' order by 1, 2"
        )
        here, there = (mysql.execute(keys.format(one)) for one in (name, database_of(place)))
        assert [*map(tuple, there)] == [*map(tuple, here)]
        mysql.drop_database(place)
    else:
        found = rows(target_url, f'select {columns} from "{name}".t order by 1')
    assert [*map(tuple, found)] == [*map(tuple, expected)]


@pytest.mark.parametrize("alteration", [*SWAP[:1], "alter table t rename column id to nr"])
def test_a_table_that_is_altered_between_its_copy_and_its_keys(
    mysql: MySQLServer,
    mysql_url: str,
    target_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    alteration: str,
) -> None:
    """The keys are those of the definition that was copied; the rest arrives through the log."""
    sql(mysql, mysql_url, "create table t (id int primary key, a int, b int, unique (a))")
    sql(mysql, mysql_url, "insert into t values (1, 10, 100), (2, 20, 200)")

    def cut_off(_: object) -> None:
        raise CutOff

    config, name = between(mysql_url, target_url, tmp_path), database_of(mysql_url)
    monkeypatch.setattr(bulk._Load, "add_all_keys", cut_off)
    with open_planner(config) as planner, pytest.raises(CutOff):
        bulk_load(config, Here(), planner)  # type: ignore[arg-type]
    monkeypatch.undo()
    sql(mysql, mysql_url, alteration)
    with open_planner(config) as planner:
        bulk_load(config, Here(), planner)  # type: ignore[arg-type]
    assert rows(target_url, f'select id, a, b from "{name}".t order by id') == [
        (1, 10, 100),
        (2, 20, 200),
    ]
    keys = rows(
        target_url,
        "select attname from pg_index join pg_attribute on attrelid = indrelid "
        "and attnum = any (indkey) where indisunique and indrelid = "
        f"'\"{name}\".t'::regclass order by 1",
    )
    assert keys == [("a",), ("id",)]


def test_a_table_of_the_users_own_is_not_recreated(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """A table of another shape is refused and stays."""
    sql(mysql, mysql_url, "create table t (id int primary key, a int)")
    config, name = between(mysql_url, target_url, tmp_path), database_of(mysql_url)
    with psycopg.connect(target_url, autocommit=True) as connection:
        connection.execute(f'create schema "{name}"')
        connection.execute(f'create table "{name}".t (id int primary key)')
    with open_planner(config) as planner, pytest.raises(TargetShapeDiffers):
        bulk_load(config, Here(), planner)  # type: ignore[arg-type]
    assert rows(target_url, f'select * from "{name}".t') == []


def check_dropped(config: Config, schema: str, execute: Callable[[str], object]) -> None:
    """Drop two of five tables between definition and plan; check that the others are planned."""
    tables = [f"t{number}" for number in range(5)]
    for table in tables:
        execute(f"create table {table} (id int primary key)")
    with open_planner(config) as planner:
        point = planner.fresh_point()
        reads = [
            TableRead(definition=one, columns=("id",), binary=False)
            for one in planner.define([TableName(schema, table) for table in tables])
        ]
        for table in ("t1", "t4"):
            execute(f"drop table {table}")
        found = planner.chunks(point, reads)
    assert {one.name for one in found} == {"t0", "t2", "t3"}


def test_tables_of_mysql_that_are_dropped_while_chunks_are_planned(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """The dropped tables are left out, like those that are dropped earlier."""
    config = between(mysql_url, target_url, tmp_path)
    check_dropped(config, database_of(mysql_url), lambda text: sql(mysql, mysql_url, text))


def test_tables_of_postgres_that_are_dropped_while_chunks_are_planned(
    source_url: str, target_url: str, tmp_path: Path
) -> None:
    """The dropped tables are left out, like those that are dropped earlier."""
    config = between(source_url, target_url, tmp_path, tables="public.*")
    with psycopg.connect(source_url, autocommit=True) as connection:
        check_dropped(config, "public", connection.execute)
