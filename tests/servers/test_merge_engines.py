"""Servers of two engines merged into one log, and a shard that is split while it is written to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pymysql
import pytest

import penstock as package
from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.pipelines.shards import ACCOUNTS, LIVELY, Shards, Transfers, wait_until
from penstock.engines.postgres.connect import connect
from penstock.model.change import GLOBAL_PREFIX
from plugins.mysql import MySQLServer
from plugins.postgres import Server

pytestmark = pytest.mark.slow


def merged_file(folder: Path, *names: str) -> Path:
    """Write a merge of these pipelines' logs, without a target."""
    path = folder / "merged.toml"
    logs = ", ".join(f'"{name}.toml"' for name in names)
    path.write_text(
        f'[pipeline]\nname = "all"\ndirectory = "all"\n[merge]\nlogs = [{logs}]\njoinSeconds = 3\n'
        "[changeExtractor]\nflushIntervalSeconds = 0.5\n"
    )
    return path


def changes(folder: Path) -> list[Any]:
    """Return the changes of the merged log so far."""
    if not (folder / "all" / "log" / "LOG.json").exists():
        return []
    return list(package.read_log(folder / "all"))


@pytest.mark.server("mysql")
def test_two_engines_in_one_log(
    tmp_path: Path, mysql: MySQLServer, mysql_url: str, postgres: Server, source_url: str
) -> None:
    """Transactions come in the order of one client's commits on both.

    An XA transaction over both is one, by its id.
    """
    write_pipeline(
        tmp_path, mysql_url, None, name="my", directory="my", file="my.toml",
        tables=("*.*",), sections={"changeExtractor": LIVELY},
    )  # fmt: skip
    write_pipeline(
        tmp_path, source_url, None, name="pg", directory="pg", file="pg.toml",
        sections={"changeExtractor": LIVELY},
    )  # fmt: skip
    there = mysql.connect(mysql_url.rpartition("/")[2])
    with connect(source_url, application_name="test", autocommit=True) as here, there:
        here.execute("create table item (id int primary key, note text)")
        run(there, "create table thing (id int primary key, note text)")
        with (
            Process(tmp_path / "my.toml", "extract") as my,
            Process(tmp_path / "pg.toml", "extract") as pg,
            Process(merged_file(tmp_path, "my", "pg"), "merge") as merge,
        ):
            for process, name in ((my, "my"), (pg, "pg")):
                process.until((tmp_path / name / "log" / "LOG.json").exists, "the log is there")
            for number in range(10):
                here.execute("insert into item values (%s, 'here')", (number,))
                time.sleep(0.01)
                run(there, f"insert into thing values ({number}, 'there')")
                time.sleep(0.01)
            run(there, "xa start 'transfer-1', 'there'")
            run(there, "update thing set note = 'sent' where id = 1")
            run(there, "xa end 'transfer-1', 'there'")
            run(there, "xa prepare 'transfer-1', 'there'")
            here.execute("begin")
            here.execute(
                "select pg_logical_emit_message(true, %s, 'transfer-1')", (f"{GLOBAL_PREFIX}/2",)
            )
            here.execute("update item set note = 'got' where id = 1")
            here.execute("commit")
            run(there, "xa commit 'transfer-1', 'there'")
            merge.until(lambda: len(changes(tmp_path)) >= 22, "all of it is merged")
            merge.stop()
            my.stop()
            pg.stop()
    found = changes(tmp_path)
    names = [(one.table.rpartition(".")[2], one.row["id"]) for one in found[:20]]
    assert names == [(table, n) for n in range(10) for table in ("item", "thing")]
    last = found[20:]
    assert {one.row["note"] for one in last} == {"sent", "got"}
    assert len({one.trx for one in last}) == 1
    assert [one.gsn for one in found] == list(range(1, 23))


def run(connection: pymysql.Connection, text: str) -> None:
    """Run a statement that commits automatically, or belongs to an XA transaction."""
    with connection.cursor() as cursor:
        cursor.execute(text)


def test_a_shard_is_split_while_transfers_go_on(tmp_path: Path) -> None:
    """The shard's accounts move to two new servers' databases; each keeps its history."""
    with Shards(tmp_path, 2, has_target=False) as shards:
        for number in range(2):
            shards.extract(number)
        shards.until_extracted()
        for number in range(2):
            shards.fill(number)
        merge = Process(shards.merged, "merge")
        with merge:
            transfers = Transfers(shards, (0, 1), 1)
            transfers.start()
            wait_until(lambda: transfers.count > 40, "transfers go on")
            transfers.end()
            merge.until(lambda: changes(tmp_path), "some of it is merged")
            merge.stop()
        # Shard 1 is split: its rows move to two databases, whose extraction began earlier.
        for name in ("s2", "s3"):
            shards.add(shards.servers[1], name)
            shards.extract(len(shards.files) - 1)
        shards.until_extracted()
        rows = shards.rows([shards.urls[1]])
        for number, part in ((2, rows[: ACCOUNTS // 2]), (3, rows[ACCOUNTS // 2 :])):
            with connect(shards.urls[number], application_name="test") as sql, sql.cursor() as at:
                at.executemany("insert into account values (%s, %s, %s)", part)
                sql.commit()
                at.execute("update account set note = note || '!'")
                sql.commit()
        time.sleep(1)  # all of the old one is extracted
        shards.extractors[1].stop()
        shards.write_merged(split={"s1.toml": ["s2.toml", "s3.toml"]})
        expected = shards.rows([shards.urls[0], shards.urls[2], shards.urls[3]])
        with Process(shards.merged, "merge") as merge:
            merge.until(
                lambda: fold_changes(changes(tmp_path)) == expected, "it has what they have"
            )
            merge.stop()
        shards.write_merged([shards.files[n] for n in (0, 2, 3)])
        with Process(shards.merged, "merge") as merge:
            with connect(shards.urls[2], application_name="test") as sql:
                sql.execute("update account set note = 'later' where id = 1000")
                sql.commit()
            expected = shards.rows([shards.urls[0], shards.urls[2], shards.urls[3]])
            merge.until(
                lambda: fold_changes(changes(tmp_path)) == expected, "it goes on without it"
            )
            merge.stop()


def test_rows_of_before_come_with_a_resend(tmp_path: Path) -> None:
    """A merge has no bulk load: each shard's rows are written into its log."""
    with Shards(tmp_path, 2, has_target=False) as shards:
        for number in range(2):
            shards.fill(number)
            shards.extract(number)
        shards.until_extracted()
        shards.write_merged(ofOneLog="leave")
        with Process(shards.merged, "merge") as merge:
            for file in shards.files:
                ran = penstock("resend", file, "--tables", "public.account", "--json")
                assert ran.code == 0, ran.err
            expected = shards.rows(shards.urls)
            merge.until(lambda: fold_changes(changes(tmp_path)) == expected, "all rows are there")
            merge.stop()


def fold_changes(found: list[Any]) -> list[tuple[Any, ...]]:
    """Return the rows that remain after changes, by their keys."""
    rows: dict[int, tuple[Any, ...]] = {}
    for one in found:
        if one.op == "truncate":
            rows.clear()
        elif one.op == "delete":
            rows.pop(one.row["id"], None)
        else:
            rows[one.row["id"]] = tuple(one.row.values())
    return sorted(rows.values())
