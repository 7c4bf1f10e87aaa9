"""The planner of a bulk load asks the servers about all tables at once, not one after the other."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql.cursors
import pytest

from harness.pipelines.pipeline import pipeline
from penstock.control.pipeline.servers import source_tables
from penstock.model import TableDefinition, TableName
from penstock.ports.bulk import Chunk, TablePlan, TableRead, open_bulk_target, open_planner
from penstock.ports.config import Config
from plugins.mysql import MySQLServer, database_of

FEW, MANY = 3, 40
Chunks = dict[TableName, list[Chunk]]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Statements that are sent to servers from now on."""
    asked: list[str] = []

    def watch(kind: Any) -> None:
        execute = kind.execute

        def note_and_execute(self: Any, query: Any, *rest: Any, **how: Any) -> Any:
            asked.append(str(query))
            return execute(self, query, *rest, **how)

        monkeypatch.setattr(kind, "execute", note_and_execute)

    watch(psycopg.Cursor)
    watch(pymysql.cursors.Cursor)
    return asked


def plan_chunks(config: Config, statements: list[str], count: int) -> tuple[Chunks, int]:
    """Return the chunks of so many tables, and the number of statements at the source."""
    reads = [
        TableRead(definition=one, columns=tuple(column.name for column in one.columns))
        for one in source_tables(config)
    ][:count]
    assert len(reads) == count
    with open_planner(config) as planner:
        point = planner.fresh_point()
        statements.clear()
        found = {name: list(chunks) for name, chunks in planner.chunks(point, reads).items()}
        return found, len(statements)


def test_postgres_is_asked_as_often_for_many_tables(
    tmp_path: Path, source_url: str, statements: list[str]
) -> None:
    """Statements on sizes, partitions' storages and rewritten tables do not multiply
    with tables.
    """
    with psycopg.connect(source_url, autocommit=True) as connection:
        for number in range(MANY):
            connection.execute(f"create table t{number:02} (id int primary key, v text)")
            connection.execute(f"insert into t{number:02} select g from generate_series(1, 50) g")
        connection.execute("drop table t01")
        connection.execute(
            "create table t01 (id int primary key, v text) partition by range (id);"
            "create table one partition of t01 for values from (0) to (10);"
            "create table two partition of t01 for values from (10) to (100)"
        )
    config = pipeline(tmp_path, source_url, source_url)
    few, asked_for_few = plan_chunks(config, statements, FEW)
    many, asked_for_many = plan_chunks(config, statements, MANY)
    assert asked_for_few == asked_for_many < 12
    assert {name.name: len(chunks) for name, chunks in few.items()} == {
        "t00": 1,
        "t01": 2,
        "t02": 1,
    }
    assert len(many) == MANY
    assert many[TableName("public", "t01")] == few[TableName("public", "t01")]


def test_a_rewritten_table_is_left_out_alone(tmp_path: Path, source_url: str) -> None:
    """The others are read at the point, as if that table did not exist."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        connection.execute("create table a (id int primary key); create table b (id int)")
        config = pipeline(tmp_path, source_url, source_url)
        reads = [TableRead(definition=one, columns=("id",)) for one in source_tables(config)]
        with open_planner(config) as planner:
            point = planner.fresh_point()
            connection.execute("truncate b")
            found = planner.chunks(point, reads)
    assert [name.name for name in found] == ["a"]


def test_mysql_is_asked_as_often_for_many_tables(
    tmp_path: Path, mysql: MySQLServer, mysql_url: str, target_url: str, statements: list[str]
) -> None:
    """Key ranges, estimates and text keys each take one statement for all tables."""
    name = database_of(mysql_url)
    for number in range(MANY):
        key = (
            "id int primary key",
            "k varchar(9) primary key",
            "a int, b date, primary key (a, b)",
        )
        mysql.execute(f"create table t{number:02} ({key[number % 3]})", name)
    mysql.execute("insert into t00 values (1), (5), (9)", name)
    config = pipeline(tmp_path, mysql_url, target_url, tables=[f"{name}.*"])
    few, asked_for_few = plan_chunks(config, statements, FEW)
    many, asked_for_many = plan_chunks(config, statements, MANY)
    assert asked_for_few == asked_for_many < 12
    assert len(many) == MANY
    assert all(many[table] == chunks for table, chunks in few.items())


def test_the_target_is_asked_once_for_what_is_done(
    tmp_path: Path, source_url: str, target_url: str, statements: list[str]
) -> None:
    """The marks of all tables, and the chunks of each, take one statement."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        for number in range(MANY):
            connection.execute(f"create table t{number:02} (id int primary key)")
    config = pipeline(tmp_path, source_url, target_url)
    definitions = source_tables(config)
    with closing(open_bulk_target(target_url, {}, application_name="test", servers=None)) as target:
        asked = []
        for some in (definitions[:FEW], definitions):
            target.create(some)
            target.begin_afresh([plan_of(one) for one in some])
            statements.clear()
            assert set(target.marks()) == {one.name for one in some}
            asked.append(len(statements))
    assert asked[0] == asked[1] < 5


def plan_of(definition: TableDefinition) -> TablePlan:
    """Return a plan with nothing to do."""
    return TablePlan(
        source=definition.name,
        target=definition.name,
        columns=("id",),
        binary=True,
        position="0/1",
        snapshot_id="1",
        snapshot_text="1",
        chunks=(),
    )
