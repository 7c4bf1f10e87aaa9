"""Hints of errors, typed as they are printed at real servers: each leads where it says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.end_to_end import Pair
from harness.pipelines.mysql_extract import sql
from harness.pipelines.pipeline import Ran, penstock, write_pipeline
from plugins.mysql import MySQLServer, database_of
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

COMMAND = re.compile(r"penstock ((?:table )?[a-z]+(?: --?\w+| [\w./-]+\.toml| [A-Z]+)*)")
IDLE = {
    "changeExtractor": {
        "flushIntervalSeconds": 0.3,
        "exitWhenIdle": True,
        "idleWaitSeconds": 2.0,
    },
    "spark": {"master": "local[2]"},
}


def type_hint(hint: str, path: Path, table: str = "") -> list[Ran]:
    """Type every penstock command of a hint, in order, and answer yes.

    The words in capitals are replaced.
    """
    ran = []
    for text in COMMAND.findall(hint):
        words = shlex.split(text)
        names = {"FILE": str(path), path.name: str(path), "TABLE": table}
        arguments = [names.get(word, word) for word in words]
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *arguments],
            input="y\n",
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        ran.append(Ran(done.returncode, done.stdout, done.stderr))
    return ran


def write_entry(hint: str, path: Path) -> None:
    """Write the entry of a hint into [target.types], in place of an earlier one of this name."""
    found = re.search(r'"([^"]+)" = "([^"]+)"', hint)
    assert found, hint
    assert "[target.types]" in hint
    lines = path.read_text().splitlines()
    if "[target.types]" not in lines:
        lines.append("[target.types]")
    lines = [line for line in lines if not line.startswith(f'"{found[1]}"')]
    lines.insert(lines.index("[target.types]") + 1, found[0])
    path.write_text("\n".join(lines) + "\n")


def run(path: Path) -> Ran:
    """Run the pipeline until its source is idle."""
    return penstock("run", path, "--json", timeout_s=300)


@pytest.mark.long
def test_zero_dates_into_postgres(
    mysql: MySQLServer, mysql_url: str, target_url: str, tmp_path: Path
) -> None:
    """The plan asks for a choice; the one that refuses zero dates names table, column and entry.

    This holds for bulk load and changes; with the entry in the file the same command succeeds.
    """
    database = database_of(mysql_url)
    sql(mysql, mysql_url, "create table booking (id int primary key, day date)")
    insert = "set sql_mode = ''; insert into booking values ({}, '0000-00-00')"
    mysql.execute(insert.format(1), database)
    path = write_pipeline(tmp_path, mysql_url, target_url, tables=[f"{database}.*"], sections=IDLE)
    refused = run(path)
    assert refused.code == 1
    assert "zero dates" in json.dumps(refused.error)
    write_entry(refused.error["hint"], path)
    refused = run(path)
    assert refused.code == 1
    assert "booking" in refused.error["error"]
    assert "column day" in refused.error["error"]
    write_entry(refused.error["hint"], path)
    done = run(path)
    assert done.code == 0, done.err
    rows = f'select id, day from "{database}".booking order by id'
    with psycopg.connect(target_url, autocommit=True) as target:
        assert target.execute(rows).fetchall() == [(1, None)]
        path.write_text(path.read_text().replace('"zero dates" = "null"', '"zero dates" = "error"'))
        mysql.execute(insert.format(2), database)
        refused = run(path)
        assert refused.code == 1
        assert "booking" in refused.error["error"]
        write_entry(refused.error["hint"], path)
        done = run(path)
        assert done.code == 0, done.err
        assert target.execute(rows).fetchall() == [(1, None), (2, None)]


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Pair]:
    """A pipeline that has loaded a table and ended."""
    made = Pair(tmp_path_factory.mktemp("hints"), postgres, tables=("public.*",), sections=IDLE)
    try:
        made.run("create table item (id int primary key, n int)")
        made.run("insert into item values (1, 1), (2, 2)")
        done = run(made.path)
        assert done.code == 0, done.err
        yield made
    finally:
        made.close()


def check(pair: Pair) -> None:
    """Check that a change of the source arrives, and that both sides are equal."""
    pair.run("insert into item select max(id) + 1, 7 from item")
    done = run(pair.path)
    assert done.code == 0, done.err
    assert pair.differences("item") == []


@pytest.mark.long
def test_a_target_table_that_was_dropped(pair: Pair) -> None:
    """TG01 names `penstock table resync`, after which the same run succeeds."""
    ended_when_idle = pair.path.read_text()
    pair.path.write_text(ended_when_idle.replace("exitWhenIdle = true", "exitWhenIdle = false"))
    process = pair.start()
    pair.settle()
    pair.target.execute("drop table item")
    pair.run("update item set n = 9 where id = 1")
    assert process.wait_for_end() == 1
    assert process.error["code"] == "TG01"
    (asked,) = type_hint(process.error["hint"], pair.path, process.error["table"])
    assert asked.code == 0, asked.err
    pair.path.write_text(ended_when_idle)
    check(pair)


@pytest.mark.long
def test_a_slot_that_was_dropped(pair: Pair) -> None:
    """Doctor calls it an error, and its command starts over."""
    pair.source.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
    doctor = penstock("doctor", pair.path, "--json")
    assert doctor.code == 1
    (finding,) = [one for one in doctor.result["findings"] if one["code"] == "PG10"]
    assert finding["severity"] == "E"
    for ran in type_hint(finding["command"], pair.path):
        assert ran.code == 0, ran.err
    check(pair)


@pytest.mark.long
def test_a_directory_that_was_deleted(pair: Pair) -> None:
    """The error leads to `penstock reset --target`, not only to another slot's name."""
    shutil.rmtree(pair.directory)
    refused = run(pair.path)
    assert refused.code == 1
    hint: Any = refused.error["hint"]
    if "findings" in refused.error:
        hint = " ".join(one["command"] for one in refused.error["findings"])
    ran = type_hint(hint.partition("If the slot is that of another")[0], pair.path)
    assert len(ran) == 2, refused
    for one in ran:
        assert one.code == 0, one.err
    check(pair)
