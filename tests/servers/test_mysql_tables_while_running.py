"""`penstock table` on a running pipeline whose source or target is MySQL or MariaDB."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock, write_pipeline
from plugins.mysql import MySQLServer, database_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ITEM = "create table {name} (id int primary key, n int not null, t int)"
FILL = "insert into {name} values " + ", ".join(f"({n}, 0, {n})" for n in range(500))
QUICK = {"changeExtractor": {"flushIntervalSeconds": 0.3}, "spark": {"master": "local[2]"}}
QUERY = "select id, n, t from {name} order by id"


class Side:
    """One database of the pair: statements, and a table's rows."""

    def __init__(self, url: str, server: MySQLServer | None) -> None:
        self.url = url
        self.server = server
        self.schema = "public" if server is None else database_of(url)

    def run(self, *statements: str) -> None:
        """Run each statement in a transaction of its own."""
        if self.server is None:
            with psycopg.connect(self.url, autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement.encode())
            return
        with self.server.connect(self.schema) as connection, connection.cursor() as cursor:
            connection.autocommit(True)
            for statement in statements:
                cursor.execute(statement)

    def rows(self, name: str, schema: str) -> list[tuple[Any, ...]]:
        """Return all rows, ordered by their keys."""
        query = QUERY.format(name=f"{schema}.{name}")
        if self.server is None:
            with psycopg.connect(self.url) as connection:
                return connection.execute(query.encode()).fetchall()
        with self.server.connect(self.schema) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return [
                tuple(row.values()) if isinstance(row, dict) else tuple(row)
                for row in cursor.fetchall()
            ]


class Story:
    """A pipeline of two processes, with a constant writer at the source."""

    def __init__(self, folder: Path, source: Side, target: Side) -> None:
        self.source, self.target = source, target
        self.path = write_pipeline(
            folder,
            source.url,
            target.url,
            tables=[f"{source.schema}.{name}" for name in ("item", "other")],
            sections={
                "changeLoader": {"removeFiles": True},
                "target.map": {source.schema: target.schema},
                **QUICK,
            },
        )
        for name in ("item", "other", "late"):
            source.run(ITEM.format(name=name), FILL.format(name=name))
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    def _write(self) -> None:
        for number in itertools.count(1):
            if self._stop.wait(0.03):
                return
            key = number * 7 % 500
            for name in ("item", "other", "late"):
                self.source.run(
                    f"update {name} set n = n + 1 where id = {key}",
                    f"insert into {name} values ({1000 + number}, 1, 7)",
                    f"delete from {name} where id = {key + 1}",
                )

    def request(self, what: str, name: str) -> None:
        """Run a command for a table."""
        ran = penstock("table", what, self.path, f"{self.source.schema}.{name}", "--json")
        assert ran.code == 0, ran.err

    def state(self, name: str) -> str:
        """Return the state in `penstock table ls`; empty while the table changes its state."""
        ran = penstock("table", "ls", self.path, "--json")
        assert ran.code == 0, ran.err
        found = [json.loads(text) for text in ran.out.splitlines()]
        one = next((x for x in found if x["table"] == f"{self.source.schema}.{name}"), {})
        assert not one.get("error"), one
        return "" if one.get("wanted") else one.get("state", "")

    def equal(self, name: str) -> bool:
        """Return whether both sides have the same rows of a table."""
        there = self.target.rows(name, self.target.schema)
        return self.source.rows(name, self.source.schema) == there

    def run(self) -> None:
        """Run all commands, one after the other, while rows are written."""
        with Process(self.path, "extract") as extract, Process(self.path, "load") as load:

            def until(condition: Callable[[], bool], what: str) -> None:
                load.until(lambda: extract.running and condition(), what)

            until(lambda: self._has_rows("item"), "the bulk load")
            self._writer.start()
            self.request("add", "late")
            self.request("pause", "item")
            until(lambda: self.state("late") == "following", "late follows")
            until(lambda: self.state("item") == "paused", "item is paused")
            stands = self.target.rows("item", self.target.schema)
            others = len(self.target.rows("other", self.target.schema))
            until(
                lambda: len(self.target.rows("other", self.target.schema)) > others, "others flow"
            )
            assert self.target.rows("item", self.target.schema) == stands
            self.request("resume", "item")
            self.request("resync", "other")
            until(lambda: self.state("item") == "following", "item follows")
            until(lambda: self.state("other") == "following", "other follows")
            self.request("remove", "late")
            until(lambda: self.state("late") == "removed", "late is removed")
            left = self.target.rows("late", self.target.schema)
            self._stop.set()
            self._writer.join()
            until(lambda: self.equal("item") and self.equal("other"), "both are equal")
            assert self.target.rows("late", self.target.schema) == left
            self.request("add", "late")
            until(lambda: self.state("late") == "following", "late follows again")
            until(lambda: self.equal("late"), "late is equal")

    def _has_rows(self, name: str) -> bool:
        try:
            return len(self.target.rows(name, self.target.schema)) >= 500
        except (psycopg.Error, pymysql.Error):
            return False  # does not exist yet


def test_from_mysql_to_postgres(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """The binlog is read continuously; copies are taken at a position of it."""
    Story(tmp_path, Side(mysql_url, mysql), Side(target_url, None)).run()


@pytest.mark.promise
def test_from_postgres_to_mysql(
    mysql: MySQLServer, mysql_url: str, source_url: str, tmp_path: Path
) -> None:
    """The table's own position also moves in the transaction of its rows there."""
    with mysql.globals(local_infile="1"):
        Story(tmp_path, Side(source_url, None), Side(mysql_url, mysql)).run()
