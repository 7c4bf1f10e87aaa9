"""Tables that are created later on a MySQL or MariaDB source, and that a pattern matches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock, write_pipeline
from plugins.mysql import MySQLServer, database_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TWO = ((1, 1), (2, 2))
TABLE = "create table {} (id int primary key, n int); insert into {} values (1, 1), (2, 2)"


class Story:
    """A pipeline of all tables of a database, with both sides."""

    def __init__(self, mysql: MySQLServer, source: str, target: str, folder: Path) -> None:
        self.mysql, self.source, self.target, self.folder = mysql, source, target, folder
        self.place = database_of(source)
        self.file = self.write("add")

    def write(self, policy: str, *names: str) -> Path:
        """Write the pipeline's file with this policy and these tables, all if none is named."""
        sections = {
            "changeExtractor": {"flushIntervalSeconds": 0.3},
            "target.map": {self.place: "public"},
            "spark": {"master": "local[2]"},
            "source": {"newTables": policy},
        }
        tables = [f"{self.place}.{name}" for name in names or ("*",)]
        return write_pipeline(
            self.folder, self.source, self.target, tables=tables, sections=sections
        )

    def run(self, *statements: str) -> None:
        """Run statements at the source."""
        for statement in statements:
            self.mysql.execute(statement, self.place)

    def state(self, name: str) -> str:
        """Return the state of a table in `penstock table ls`."""
        ran = penstock("table", "ls", self.file, "--json")
        assert ran.code == 0, ran.err
        found = {one["table"]: one for one in map(json.loads, ran.out.splitlines())}
        return str(found.get(f"{self.place}.{name}", {}).get("state", ""))

    def add(self, name: str) -> None:
        """Add a table by the command."""
        ran = penstock("table", "add", self.file, f"{self.place}.{name}")
        assert ran.code == 0, ran.err

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Return the target's rows."""
        query: Any = f"select * from {name} order by id"
        with psycopg.connect(self.target) as connection:
            try:
                return connection.execute(query).fetchall()
            except psycopg.errors.UndefinedTable:
                return []

    def reach(self, process: Process, name: str, *rows: tuple[Any, ...]) -> None:
        """Wait until the target's table has exactly these rows."""
        process.until(lambda: self.rows(name) == list(rows), f"{name} holds {rows}")


@pytest.fixture
def story(mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path) -> Story:
    """Pipeline with one table, and no process yet."""
    made = Story(mysql, mysql_url, target_url, tmp_path)
    made.run(TABLE.format("item", "item"))
    return made


def test_new_tables_are_added_or_stop(story: Story) -> None:
    """A new table is added with its rows, at work or at the next start, beside the others."""
    with Process(story.file) as process:
        story.reach(process, "item", *TWO)
        story.run(TABLE.format("born", "born"), "update born set n = 7 where id = 2")
        story.run("create table _item_new like item", "drop table _item_new")
        story.reach(process, "born", (1, 1), (2, 7))
        story.run("insert into born values (3, 3)", "insert into item values (3, 3)")
        story.reach(process, "born", (1, 1), (2, 7), (3, 3))
        story.reach(process, "item", *TWO, (3, 3))
        process.stop()
    # Its first rows are in the binlog in another shape than the table has now.
    story.run(TABLE.format("late", "late"), "alter table late add column more int")
    story.run("insert into late values (3, 3, 3)", "alter table late drop column n")
    with Process(story.file) as process:
        story.reach(process, "late", (1, None), (2, None), (3, 3))
        story.run("insert into late values (4, 4)", "delete from item where id = 3")
        story.reach(process, "late", (1, None), (2, None), (3, 3), (4, 4))
        story.reach(process, "item", *TWO)
        process.stop()
    story.write("stop")
    with Process(story.file) as process:
        story.run(TABLE.format("halt", "halt"))
        assert process.wait_for_end() == 1
        assert process.error["code"] == "CT68", process.err
    story.add("halt")
    assert story.state("halt") == "waiting"


def test_a_table_that_the_file_leaves_out_for_a_while_loses_nothing(story: Story) -> None:
    """The table is copied again, as its changes meanwhile are not in the log."""
    story.run(TABLE.format("bag", "bag"))
    story.write("add", "item", "bag")
    with Process(story.file) as process:
        story.reach(process, "bag", *TWO)
        process.stop()
    story.write("add", "item")
    with Process(story.file) as process:
        story.run("delete from bag where id = 1", "insert into bag values (3, 3)")
        story.run("insert into item values (3, 3)")
        story.reach(process, "item", *TWO, (3, 3))
        process.until(lambda: story.state("bag") == "removed", "bag is removed")
        assert any("bag is not captured any more" in text for text in process.events)
        process.stop()
    story.write("add", "item", "bag")
    with Process(story.file) as process:
        story.reach(process, "bag", (2, 2), (3, 3))
        story.run("update bag set n = 4 where id = 2")
        story.reach(process, "bag", (2, 4), (3, 3))
        process.stop()
