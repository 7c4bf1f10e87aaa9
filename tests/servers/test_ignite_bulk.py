"""The bulk load of real Ignite nodes, with the changes after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.ignite.target import node_url, people_in, people_of, pipeline, rows_in, written_to
from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock
from plugins.ignite_live import LiveNode, LiveNodes
from plugins.mysql import MySQLServer

SCENARIOS = ("people", "transactions", "values", "shapes", "tables", "expiring", "destroyed")
pytestmark = [pytest.mark.spark, pytest.mark.slow]


def tables_in(sql: psycopg.Connection[Any], schema: str) -> list[str]:
    """Return the tables of a schema."""
    found = sql.execute("select tablename::text from pg_tables where schemaname = %s", (schema,))
    return [row[0] for row in found]


def in_postgres(url: str, schema: str = "public") -> dict[str, list[tuple[str | None, ...]]]:
    """Return all rows of all tables as text, each table preceded by its columns' names."""
    found: dict[str, list[tuple[str | None, ...]]] = {}
    with psycopg.connect(url, autocommit=True, options="-c timezone=UTC") as sql:
        for table in tables_in(sql, schema):
            names = [
                row[0]
                for row in sql.execute(
                    "select column_name::text from information_schema.columns where "
                    "table_schema = %s and table_name = %s order by column_name",
                    (schema, table),
                )
            ]
            listed = ", ".join(f'"{name}"::text' for name in names)
            rows = sql.execute(f'select {listed} from "{schema}"."{table}"').fetchall()
            found[table] = [tuple(names), *sorted(rows, key=str)]
    return found


def expiring_in(url: str) -> list[tuple[Any, ...]]:
    """Return the rows of `words` with whether they expire; no rows if the column does not exist."""
    with psycopg.connect(url, autocommit=True) as sql:
        try:
            return sql.execute(
                "select _key::text, _val, _expire_time is not null from public.words order by 1"
            ).fetchall()
        except psycopg.errors.UndefinedColumn:
            return []


def test_a_node_is_brought_into_postgres(
    live_node: LiveNode, target_url: str, tmp_path: Path
) -> None:
    """Existing rows, loaded under writers, and changes equal a scan in the end."""
    live_node.create("busy", partitions=8)
    live_node.ask("fill", "busy", 0, 3000, 20)
    live_node.create("words")
    live_node.ask("put", "words", 1, "never")
    live_node.await_linked()
    path = pipeline(tmp_path, node_url(live_node), target_url)
    with written_to(live_node, "busy", 4000) as end, Process(path) as run:
        run.until(lambda: len(people_in(target_url, "busy")) > 1000, "rows are in the target")
        end()
        live_node.await_linked()
        run.until(
            lambda: people_in(target_url, "busy") == people_of(live_node, "busy"), "it is equal"
        )
        live_node.ask("put", "words", 2, "late", 86_400_000)  # the first one that expires
        live_node.await_linked()
        wanted = [("1", "never", False), ("2", "late", True)]
        run.until(lambda: expiring_in(target_url) == wanted, "the column is new")
        status = penstock("status", path, "--json").result
        assert status["bulk"]["phase"] == "done"
        run.stop()


def ran(path: Path) -> None:
    """Run a pipeline until its source is idle."""
    done = penstock("run", path, "--json", timeout_s=240)
    assert done.code == 0, done.err


def bring(
    node: LiveNode,
    folder: Path,
    target: str,
    *,
    between: Callable[[], None],
    **sections: Mapping[str, str],
) -> None:
    """Load a node's rows, then, after between() has put these aside, only its changes.

    The changes are read from a copy of the present directories.
    """
    copy = folder / "copy"
    shutil.copytree(node.work / "db", copy / "db")
    changes = f"ignite://{copy}?consistentId={node.consistent_id}"
    idle = {"exitWhenIdle": True}
    # The changes of these do not begin with the rows of the tables.
    mixed = ("!value", "!expiring")
    for name, source, mode, left_out in (
        ("rows", node_url(node), "data+change", ()),
        ("changes", changes, "change", mixed),
    ):
        (folder / name).mkdir()
        ran(
            pipeline(
                folder / name,
                source,
                target,
                mode=mode,
                extractor=idle,
                sections=sections,
                tables=["*", "!place", *left_out],
            )
        )
        if name == "rows":
            between()


def without_type(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Return rows without `_type`.

    A table that gets the column only with a later batch, at the second type, has the first
    type's name in its existing rows; one that has the column from the beginning does not.
    """
    place = list(rows[0]).index("_type") if "_type" in rows[0] else len(rows[0])
    return [(*row[:place], *row[place + 1 :]) for row in rows]


def check_typed(rows: list[tuple[str | None, ...]]) -> None:
    """Check the row of the SQL table with every type, in PostgreSQL's texts."""
    names, row = rows
    found = dict(zip(names, row, strict=True))
    assert found["TS"] == "2024-02-29 12:34:56.123456+00"
    assert (found["DA"], found["TM"]) == ("2024-02-29", "12:34:56")
    assert (found["DE"], found["BI"], found["BO"]) == ("-0.0001", "5000000000", "true")
    assert (found["BIN"], found["VC"], found["CH"]) == ("\\x01020304", "other", "ab")
    assert found["UU"] == "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
    assert (found["RE"], found["DO"], found["SM"], found["TI"]) == ("1.5", "2.5", "300", "7")
    assert found["ID"] == "1"


def test_rows_are_in_postgres_what_changes_make_them(
    live_node: LiveNode, target_url: str, tmp_path: Path
) -> None:
    """Both paths give the same values: every type, scalars, objects, nulls, SQL tables."""
    for name in SCENARIOS:
        live_node.ask("scenario", name)
    live_node.await_linked()

    def put_aside() -> None:
        with psycopg.connect(target_url, autocommit=True) as sql:
            sql.execute("alter schema public rename to rows")
            sql.execute("create schema public")
            for table in tables_in(sql, "rows"):
                sql.execute(f'create table public."{table}" (like rows."{table}" including all)')
            sql.execute("drop schema wirekite cascade")

    bring(live_node, tmp_path, target_url, between=put_aside)
    rows, changes = in_postgres(target_url, "rows"), in_postgres(target_url)
    assert len(rows.pop("expiring")) - 1 == 2  # a scan omits expired entries
    values = rows.pop("value")
    assert len(values) - 1 == len(live_node.scan("value"))
    assert len(rows) == 7
    for table, found in rows.items():
        if table != "again":  # removals by clear() are not in the node's log
            assert without_type(found) == without_type(changes[table]), table
        assert len(found) - 1 == len(live_node.scan(table)), table
    check_typed(rows["typed"])


def test_rows_are_in_mysql_what_changes_make_them(
    live_node: LiveNode, mysql: MySQLServer, mysql_url: str, tmp_path: Path
) -> None:
    """Both paths give the same values in MySQL, whose statement computes the values."""
    for name in ("people", "transactions", "tables"):
        live_node.ask("scenario", name)
    live_node.await_linked()
    database, rows = mysql_url.rpartition("/")[2], {}

    def put_aside() -> None:
        rows.update(in_mysql(mysql, database))
        for table in rows:
            mysql.execute(f"truncate table `{database}`.`{table}`")
        mysql.execute("drop database wirekite")

    bring(live_node, tmp_path, mysql_url, between=put_aside, **{"target.map": {"public": database}})
    changes = in_mysql(mysql, database)
    assert len(rows) == 5
    for table, found in rows.items():
        assert without_type(found) == without_type(changes[table]), table
        assert len(found) - 1 == len(live_node.scan(table)), table


def in_mysql(server: MySQLServer, database: str) -> dict[str, list[Any]]:
    """Return all rows of all tables."""
    listed = server.execute(
        "select table_name as t, column_name as c from information_schema.columns "
        f"where table_schema = '{database}' order by table_name, column_name"
    )
    columns: dict[str, list[str]] = {}
    for table, column in listed:
        columns.setdefault(table, []).append(column)
    found: dict[str, list[Any]] = {}
    for table, names in columns.items():
        cells = ", ".join(f"hex(`{name}`)" for name in names)
        rows = server.execute(f"select {cells} from `{database}`.`{table}`")
        found[table] = [names, *sorted(rows, key=str)]
    return found


@pytest.mark.faults
def test_a_node_that_is_killed_meanwhile_loses_nothing(
    live_node: LiveNode, target_url: str, tmp_path: Path
) -> None:
    """The load waits for the node, continues with the missing rows, and changes follow."""
    count = 110_000  # three chunks
    live_node.create("large", partitions=16)
    live_node.ask("fill", "large", 0, count, 60)
    path = pipeline(
        tmp_path, node_url(live_node), target_url, sections={"dataLoader": {"maxThreads": 1}}
    )
    with Process(path) as run:
        run.until(lambda: rows_in(target_url, "large") is not None, "the table is there")
        live_node.kill()
        live_node.start()
        gone = range(0, count, 5000)
        for key in gone:
            live_node.ask("remove", "large", key)
        live_node.ask("person", "large", 200_000, "last", 1)
        live_node.await_linked()
        wanted = people_of(live_node, "large")
        assert len(wanted) == count - len(gone) + 1
        run.until(
            lambda: (
                rows_in(target_url, "large") == len(wanted)
                and people_in(target_url, "large") == wanted
            ),
            "it is equal",
            within_s=240,
        )
        run.stop()


def test_what_has_to_be_right_before_rows_are_read(
    ignite_nodes: LiveNodes, target_url: str, tmp_path: Path
) -> None:
    """A missing address or a wrong password is refused before anything is created."""
    node = ignite_nodes.start(authentication="true")
    for mode in ("data", "data+change"):
        refused = penstock("run", pipeline(tmp_path, node.url, target_url, mode=mode), "--json")
        assert refused.code == 1
        assert refused.error["code"] == "IG73"
        assert refused.error["parameter"] == "address"
    wrong = pipeline(
        tmp_path, f"{node_url(node)}&user=ignite&password=${{THE_PASSWORD}}", target_url
    )
    node.create("words")
    refused = penstock("run", wrong, "--json", environment={"THE_PASSWORD": "wrongword"})
    assert refused.code != 0
    assert "HS23" in refused.err + refused.out
    assert "wrongword" not in refused.err + refused.out
    done = pipeline(
        tmp_path,
        f"{node_url(node)}&user=ignite&password=${{THE_PASSWORD}}",
        target_url,
        mode="data",
    )
    node.ask("put", "words", 1, "one")
    ran_once = penstock("run", done, "--json", environment={"THE_PASSWORD": "ignite"})
    assert ran_once.code == 0, ran_once.err
    assert in_postgres(target_url)["words"] == [("_key", "_val"), ("1", "one")]
