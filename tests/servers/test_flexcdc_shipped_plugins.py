"""The plugins that penstock ships, over real servers, killed and started again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.flexcdc import WAIT_S, Command, Flex, until
from harness.pipelines.pipeline import write_pipeline
from penstock.consume.plugins import JsonFile
from plugins.mysql import MySQLServer, database_of


@pytest.fixture
def flex(mysql: MySQLServer, mysql_url: str, tmp_path: Path) -> Iterator[Callable[..., Flex]]:
    """Make a FlexCDC over one server."""
    url = mysql.make_database("flex")

    def make(plugin: Any, section: str, **keys: str) -> Flex:
        sections = {section: keys}
        database = url.rpartition("/")[2]
        return Flex(
            mysql_url, mysql.url(), tmp_path, plugins=[plugin], sections=sections, database=database
        )

    yield make
    mysql.drop_database(url)


@pytest.fixture
def command(mysql: MySQLServer, mysql_url: str, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Maker of `penstock flexcdc` with a plugin, after setup, over the captured table t (id, v)."""
    url = mysql.make_database("flex")
    made: list[Command] = []

    def make(plugin: str, section: str, keys: dict[str, Any]) -> Command:
        flexcdc = {
            "dest": mysql.url(),
            "database": url.rpartition("/")[2],
            "sleep_increment": 0.1,
            "plugin": f"penstock.consume.plugins:{plugin}",
        }
        Flex(mysql_url, mysql.url(), tmp_path).source_sql(
            "create table t (id int primary key, v varchar(20))"
        )
        name = database_of(mysql_url)
        sections = {"flexcdc": flexcdc, f"flexcdc.{section}": keys}
        file = write_pipeline(
            tmp_path, mysql_url, None, directory=".", tables=[f"{name}.*"], sections=sections
        )
        made.append(Command(file))
        made[-1]("setup")
        made[-1]("add-table", "--schema", name, "--table", "t")
        return made[-1]

    yield make
    for one in made:
        one.close()
    mysql.drop_database(url)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, which may be missing."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.each_server
def test_json_lines(flex: Callable[..., Flex], tmp_path: Path) -> None:
    """Values of a real server are typed, and have the numbers of the state tables."""
    one = flex(JsonFile(), "json_file", path="changes.json")
    one.source_sql("create table t (id bigint unsigned primary key, d decimal(9,2), b blob)")
    one.begin("t")
    one.source_sql(
        "begin", "insert into t values (18446744073709551615, 1.10, x'00ff')",
        "update t set d = null", "commit", "truncate table t",
    )  # fmt: skip
    one.step()
    metadata = {"MYSQL_TABLE": "t", "MYSQL_SCHEMA": one.namespace}
    row = {"id": 2**64 - 1, "d": "1.10", "b": "AP8="}
    assert lines_of(tmp_path / "changes.json") == [
        {**row, "MYSQL_ACTION": "I", **metadata, "MYSQL_TRX": 2, "MYSQL_SEQ": 2},
        {**row, "MYSQL_ACTION": "UB", **metadata, "MYSQL_TRX": 2, "MYSQL_SEQ": 3},
        {**row, "d": None, "MYSQL_ACTION": "UA", **metadata, "MYSQL_TRX": 2, "MYSQL_SEQ": 4},
        {"MYSQL_ACTION": "T", **metadata, "MYSQL_TRX": 3, "MYSQL_SEQ": 4},
    ]


@pytest.mark.promise
def test_json_lines_killed(
    command: Callable[..., Command], mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """Every image comes once and in order after kills before, in the middle of and
    after the write.
    """
    run = command("JsonFile", "json_file", {"path": "changes.json", "add_metadata": True})
    flex = Flex(mysql_url, mysql.url(), tmp_path)
    points = [
        "flexcdc.plugin.row", "flexcdc.plugin.before_commit", "flexcdc.lines.half",
        "flexcdc.lines.written", "flexcdc.plugin.committed", "flexcdc.lines.half",
    ]  # fmt: skip
    for number, point in enumerate(points):
        rows = ", ".join(f"({3 * number + n}, 'row')" for n in range(3))
        flex.source_sql(f"insert into t values {rows}")
        run.start(fault=f"{point}:1:kill")
        assert run.process.wait(WAIT_S) == -9, run.out.read_text()
    run.start()
    until(lambda: len(lines_of(tmp_path / "changes.json")) >= 3 * len(points), run)
    assert run.stop() == 0
    found = lines_of(tmp_path / "changes.json")
    assert [line["id"] for line in found] == [*range(3 * len(points))]
    first = found[0]["MYSQL_SEQ"]
    assert [line["MYSQL_SEQ"] for line in found] == [*range(first, first + len(found))]
