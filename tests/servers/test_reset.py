"""`penstock reset` removes what a pipeline created, and some recoveries are one command."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.end_to_end import Pair
from harness.pipelines.pipeline import Ran, penstock, pipeline, write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.run.reset import at_rest, carry_out, look
from penstock.engines.mysql.connect import connect as mysql_connect
from penstock.engines.mysql.target.progress import MySQLProgress
from penstock.engines.postgres.source.slot_owner import (
    SlotOfAnother,
    SlotOwner,
    claim_slot,
    disclaim_slot,
)
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.log import load_state
from penstock.model import TableName
from penstock.ports.config import Config
from penstock.ports.target import TableRecord, TargetFollowsAnotherLog
from plugins.mysql import MySQLServer, database_of
from plugins.postgres import Server

SLOT, PUBLICATION = "wirekite_replication_slot", "wirekite_publication"
ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")


class Killed(BaseException):
    """Error that kills the reset."""


def killed_after(count: int) -> Callable[[str], None]:
    """Return a function that is called for each removed object; it raises at this number."""
    left = [count]

    def count_down(_: str) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed

    return count_down


def fill_directory(config: Config) -> None:
    """Write a file into each folder of the pipeline."""
    layout = config.layout
    for path in (layout.state, layout.log, layout.spill, layout.run, layout.consumers):
        path.mkdir(parents=True, exist_ok=True)
        (path / "something").write_text("x")
    (config.directory / "not-ours.txt").write_text("kept")


@pytest.fixture
def run_config(source_url: str, target_url: str, tmp_path: Path) -> Iterator[Config]:
    """A pipeline as a run has left it, put together without Spark, which is fast."""
    config = pipeline(tmp_path, source_url, target_url)
    with psycopg.connect(source_url, autocommit=True) as source:
        source.execute("create table orders (id int primary key)")
        source.execute("create table items (id int primary key, of int references orders (id))")
        source.execute(f"create publication {PUBLICATION} for table orders, items")
        source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    with psycopg.connect(target_url, autocommit=True) as target:
        target.execute("create table orders (id int primary key)")
        target.execute("create table items (id int primary key, of int references orders (id))")
        target.execute("create table child () inherits (orders)")
        target.execute("insert into orders values (1)")
        target.execute("insert into child values (7)")
        target.execute("insert into items values (1, 1)")
        progress = PostgresProgress(target)
        progress.ensure_tables()
        progress.bind_log("log-1")
        records = [
            TableRecord(
                source=name, target=name, merge_name=f"{name.name}_wkm", made=made, columns=()
            )
            for name, made in ((ORDERS, False), (ITEMS, True))
        ]
        progress.write_tables(records)
    fill_directory(config)
    write_state(config, "log-1")
    return config


def read_left(config: Config) -> dict[str, Any]:
    """Return what is left of the pipeline."""
    with psycopg.connect(config.source.url) as source, psycopg.connect(config.target.url) as target:
        one = lambda connection, sql: connection.execute(sql).fetchone()[0]  # noqa: E731
        has_items = one(target, "select to_regclass('items') is not null")
        return {
            "slot": one(
                source,
                f"select count(*) from pg_replication_slots where slot_name = '{SLOT}'"
                " and database = current_database()",
            ),
            "publication": one(source, "select count(*) from pg_publication"),
            "wirekite": one(target, "select to_regnamespace('wirekite') is not null"),
            "orders": one(target, "select count(*) from only orders"),
            "items": one(target, "select count(*) from items") if has_items else None,
            "child": one(target, "select count(*) from child"),
            "files": sorted(path.name for path in config.directory.iterdir()),
        }


GONE = {"slot": 0, "publication": 0, "wirekite": False, "child": 1, "files": ["not-ours.txt"]}


def test_a_reset_takes_back_what_the_pipeline_made(run_config: Config) -> None:
    """Slot, publication, schema wirekite and directory are removed; target rows and other files
    stay.
    """
    ran = penstock("reset", run_config.path, "--yes")
    assert ran.code == 0, ran.err
    for statement in (
        f"select pg_drop_replication_slot('{SLOT}');",
        f'drop publication "{PUBLICATION}";',
        "drop schema wirekite cascade;",
    ):
        assert statement in ran.out
    assert read_left(run_config) == {**GONE, "orders": 1, "items": 1}
    again = penstock("reset", run_config.path, "--yes")
    assert (again.code, again.out) == (0, "nothing to take back\n")


def test_the_target_is_emptied_where_asked_for(run_config: Config) -> None:
    """Tables created by penstock are dropped, others emptied; tables that inherit from them keep
    rows.
    """
    ran = penstock("reset", run_config.path, "--target", "--yes", "--json")
    assert ran.code == 0, ran.err
    assert read_left(run_config) == {**GONE, "orders": 0, "items": None}


def test_a_slot_of_another_pipeline_stays(run_config: Config) -> None:
    """A slot that says so is refused; one of our name, without a log, has to be checked."""
    with psycopg.connect(run_config.source.url, autocommit=True) as source:
        claim_slot(source, PUBLICATION, SLOT, SlotOwner(pipeline="other", log_id="log-2"))
    before = read_left(run_config)
    with pytest.raises(SlotOfAnother, match="pipeline other"):
        look(run_config, with_tables=False)
    (run_config.layout.log / "LOG.json").unlink()
    with pytest.raises(SlotOfAnother, match="pipeline other"):
        look(run_config, with_tables=False)
    with psycopg.connect(run_config.source.url, autocommit=True) as source:
        disclaim_slot(source, PUBLICATION, SLOT)
        ours = SlotOwner(pipeline=run_config.pipeline.name, log_id="log-2")
        claim_slot(source, PUBLICATION, SLOT, ours)
    assert "change log log-2" in look(run_config, with_tables=False).unsure
    ran = penstock("reset", run_config.path, "--yes", "--json")
    assert ran.error["code"] == "CT81"
    assert {**before, "files": read_left(run_config)["files"]} == read_left(run_config)


def test_it_asks_first_and_changes_nothing_meanwhile(run_config: Config) -> None:
    """No answer and "no" leave everything unchanged; --json cannot ask."""
    before = read_left(run_config)
    ran = penstock("reset", run_config.path)
    assert ran.code != 0
    assert "Remove all this?" in ran.out
    assert penstock("reset", run_config.path, "--json").code == 2
    assert read_left(run_config) == before


def test_a_target_that_may_be_anothers_is_asked_for(run_config: Config) -> None:
    """The directory is missing, the target follows a log: a person has to answer, not --yes."""
    run_config.layout.log.joinpath("LOG.json").unlink()
    before = read_left(run_config)
    refused = penstock("reset", run_config.path, "--yes", "--json")
    assert refused.error["code"] == "CT81"
    assert read_left(run_config) == before
    command = [sys.executable, "-m", "penstock", "reset", str(run_config.path)]
    subprocess.run(command, input="y\n", text=True, check=True, capture_output=True)
    assert read_left(run_config) == {**GONE, "orders": 1, "items": 1}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_reset_that_is_killed_is_repeated(run_config: Config, count: int) -> None:
    """The same command removes the rest after a kill at any step."""
    with pytest.raises(Killed), at_rest(run_config):
        carry_out(run_config, look(run_config, with_tables=True), on_done=killed_after(count))
    ran = penstock("reset", run_config.path, "--target", "--yes")
    assert ran.code == 0, ran.err
    assert read_left(run_config) == {**GONE, "orders": 0, "items": None}


def test_what_is_not_this_pipelines_stays(run_config: Config) -> None:
    """A slot with a reader, a target of another log, and a publication of all tables stay."""
    with psycopg.connect(run_config.source.url, autocommit=True) as source:
        source.execute(f"drop publication {PUBLICATION}")
        source.execute(f"create publication {PUBLICATION} for all tables")
    found = look(run_config, with_tables=False)
    assert [one.what for one in found.source if one.by_hand] == [
        f"publication {PUBLICATION} at the source"
    ]
    with at_rest(run_config):
        ran = penstock("reset", run_config.path, "--yes", "--json")
    assert ran.error["code"] == "CT02"
    write_state(run_config, "log-2")
    with pytest.raises(TargetFollowsAnotherLog):
        look(run_config, with_tables=False)


def write_state(config: Config, log_id: str) -> None:
    """Record this log as the directory's."""
    from penstock.log.layout import LogState, save_state
    from penstock.model import FlushPoint

    save_state(
        config.layout.log,
        LogState(log_id=log_id, source={}, number_next=0, end=FlushPoint(position=0)),
    )
    assert load_state(config.layout.log) is not None


@pytest.mark.parametrize("with_tables", [False, True])
def test_a_reset_of_mysql_on_both_sides(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path, with_tables: bool
) -> None:
    """Database wirekite and the directory are removed; tables have foreign keys; a repeat does
    nothing.
    """
    source, target = mysql_url, mysql.make_database("target")
    here, there = database_of(source), database_of(target)
    for database in (here, there):
        mysql.execute(
            "create table orders (id int primary key);"
            "create table items (id int primary key, o int, foreign key (o) references orders(id));"
            "insert into orders values (1); insert into items values (1, 1)",
            database,
        )
    path = write_pipeline(
        tmp_path, source, target, tables=[f"{here}.*"], sections={"target.map": {here: there}}
    )
    config = load_config(path)
    fill_directory(config)
    with mysql_connect(target, application_name="test") as connection:
        progress = MySQLProgress(connection)
        progress.ensure_tables()
        records = [
            TableRecord(
                source=TableName(here, name),
                target=TableName(there, name),
                merge_name=f"{name}_wkm",
                made=made,
                columns=(),
            )
            for name, made in (("orders", True), ("items", False))
        ]
        progress.write_tables(records)
    options = ["--target"] if with_tables else []
    ran = penstock("reset", path, "--yes", *options)
    assert ran.code == 0, ran.err
    assert (
        mysql.value(
            "select count(*) from information_schema.schemata where schema_name = 'wirekite'"
        )
        == 0
    )
    rows = "select count(*) from"
    assert mysql.value(f"{rows} items", there) == (0 if with_tables else 1)
    tables = {row[0] for row in mysql.execute("show tables", there)}
    assert ("orders" in tables) is not with_tables
    assert mysql.value(f"{rows} items", here) == 1
    assert [p.name for p in config.directory.iterdir()] == ["not-ours.txt"]
    if not with_tables:
        assert penstock("reset", path, "--yes").out == "nothing to take back\n"
    mysql.drop_database(target)


def follow(error: dict[str, Any]) -> list[str]:
    """Return the commands of a hint, as a reader would type them."""
    found = re.search(r"(penstock reset \S+ --target), then (penstock run \S+)", error["hint"])
    assert found, error
    return [found[1], found[2]]


def type_command(command: str, *more: str) -> Ran:
    """Run a command of a hint."""
    return penstock(*shlex.split(command)[1:], *more)


@pytest.mark.spark
@pytest.mark.slow
def test_hints_lead_back_to_a_running_pipeline(postgres: Server, tmp_path: Path) -> None:
    """After the command of PG54's hint and `penstock run` both sides are equal."""
    pair = Pair(tmp_path, postgres)
    try:
        pair.run("create table item (id int primary key, n int); insert into item values (1, 1)")
        pair.start()
        pair.check("item")
        refused = penstock("reset", pair.path, "--yes", "--json")
        assert refused.error["code"] == "CT02"
        pair.stop()
        # Another reader consumes changes of the slot.
        pair.run("insert into item values (2, 2)")
        pair.run("checkpoint")  # a slot does not move past the flushed position
        pair.run(f"select pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())")
        process = pair.start()
        assert process.wait_for_end() == 1
        assert process.error["code"] == "PG54"
        reset, run = follow(process.error)
        done = type_command(reset, "--yes")
        assert done.code == 0, done.err
        assert shlex.split(run)[1:] == ["run", str(pair.path)]
        pair.start()
        pair.check("item")
        pair.stop()
    finally:
        pair.close()
