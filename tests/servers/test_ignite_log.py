"""A live node's caches through the change log and Spark into PostgreSQL, as a scan shows them."""

from __future__ import annotations

import datetime
import json
import struct
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.ignite.source import EPOCH, fold_rows, rows_of
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.codec.types import Engine, Server, map_column
from penstock.control.pipeline.config import load_config
from penstock.engines.postgres.connect import quote
from penstock.model import Relation
from penstock.ports.config import Config
from plugins.ignite_live import LiveNode

PG = Server(engine=Engine.POSTGRESQL, version=(18,))
IGNITE = Server(engine=Engine.IGNITE, version=(2,))
TYPED = (
    "create table typed (id int, bo boolean, ti tinyint, sm smallint, bi bigint, de decimal(10, 3),"
    " re real, dou double, ch char(3), vc varchar(40), da date, tm time, ts timestamp, uu uuid,"
    ' bn varbinary, primary key (id)) with "cache_name=typed,value_type=TypedRow"'
)
FULL = (
    "insert into typed values ({}, true, -128, 32767, 9000000000, 1234567.125, 1.5, 2.25, 'abc',"
    " 'Zoë 😀', date '2024-02-29', time '23:59:58', timestamp '2024-02-29 12:34:56.123456',"
    " '00000000-0000-0001-0000-000000000002', x'00ff10')"
)


def changes(node: LiveNode) -> None:
    """Make the changes before the pipeline starts: a table of every type, and a
    node's scenarios.
    """
    node.sql(TYPED)
    for statement in (
        FULL.format(1),
        FULL.format(2),
        "insert into typed (id) values (3)",
        "update typed set vc = null, bi = -1 where id = 2",
        "delete from typed where id = 3",
        "create table keyed (a int, b varchar(20), c varchar(20), primary key (a, b))"
        ' with "cache_name=keyed"',
        "insert into keyed values (1, 'x', 'one'), (2, 'y', 'two')",
    ):
        node.sql(statement)
    node.create("word", expiry=86_400_000)
    node.create("plain")
    node.create("ledger", atomicity="TRANSACTIONAL")
    node.ask("put", "word", 1, "one")
    node.ask("put", "word", 2, "two")
    node.ask("remove", "word", 2)
    node.ask("person", "plain", 1, "Ann", 31)
    node.ask("person", "plain", 2, "Bob", 32)
    for key in range(5):
        node.ask("put", "ledger", key, f"old {key}")
    node.await_linked()


def more_changes(node: LiveNode) -> None:
    """Make changes while the pipeline runs: columns, types, transactions, a cache created again."""
    for statement in (
        "alter table typed add column extra bigint",
        "update typed set extra = 7 where id = 1",
        FULL.replace("values (", "(id, bo, ti, sm, bi, de, re, dou, ch, vc, da, tm, ts, uu, bn)"
                     " values (").format(4),
        "delete from keyed where a = 2",
        "update keyed set c = 'changed' where a = 1",
    ):  # fmt: skip
        node.sql(statement)
    node.ask("put", "plain", 3, "a text beside objects")
    node.ask("person", "plain", 1, "Ann", 32)
    node.ask("remove", "plain", 2)
    for name, end in (("done", "commit"), ("undone", "rollback")):
        node.ask("tx", "begin", name)
        node.ask("tx", "put", name, "ledger", 1, f"{name} 1")
        node.ask("tx", "put", name, "ledger", 10, f"{name} 10")
        node.ask("tx", "remove", name, "ledger", 2)
        node.ask("tx", end, name)
    node.ask("destroy", "word")
    node.create("word", expiry=86_400_000)
    node.ask("put", "word", 7, "seven")
    node.await_linked()


def make_tables(sql: psycopg.Connection[Any], config: Config) -> None:
    """Create the tables of the target as the log has the caches at first."""
    first: dict[str, Relation] = {}
    for row in rows_of(config):
        if row.relation is not None:
            first.setdefault(row.table, row.relation)
    for relation in first.values():
        columns = [
            f"{quote(one.name)} {map_column(one, IGNITE, PG).target_type}"
            for one in relation.columns
        ]
        key = ", ".join(quote(relation.columns[at].name) for at in relation.key)
        name = quote(relation.schema, relation.name)
        sql.execute(f"create table {name} ({', '.join(columns)}, primary key ({key}))")


def in_target(sql: psycopg.Connection[Any], cache: str) -> list[dict[str, Any]]:
    """Return the rows of a table without their NULLs, in a fixed order."""
    cursor = sql.execute(f"select * from public.{quote(cache)}")
    assert cursor.description is not None
    names = [one.name for one in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return _order_rows([{n: v for n, v in row.items() if v is not None} for row in rows])


def in_cache(node: LiveNode, cache: str, key: str, *, typed: bool = False) -> list[dict[str, Any]]:
    """Return a scan of a cache in the form of a table's rows.

    key: name of the key's column, if the key is not an object. typed: adds a column for the values'
    types.
    """
    found = []
    for shown_key, shown_value, _ in node.scan(cache):
        row = _fields(shown_key, key) | _fields(shown_value, "_val")
        if typed:
            row["_type"] = shown_value[1] if shown_value[0] == "object" else "varchar"
        found.append({name: value for name, value in row.items() if value is not None})
    return _order_rows(found)


def _order_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))


def _fields(shown: Any, name: str) -> dict[str, Any]:
    if shown[0] == "object":
        return {field: _value(one) for field, one in shown[3].items()}
    return {name: _value(shown)}


def _value(shown: Any) -> Any:
    """Return a value of `Shown.java` in psycopg's form."""
    if shown is None:
        return None
    kind, *rest = shown
    if kind == "float":
        return struct.unpack("<f", struct.pack("<i", rest[0]))[0]
    if kind == "double":
        return struct.unpack("<d", struct.pack("<q", rest[0]))[0]
    if kind == "decimal":
        return Decimal(int(rest[0])).scaleb(-rest[1])
    if kind == "uuid":
        return uuid.UUID(rest[0])
    if kind == "byte[]":
        return bytes(one % 256 for _, one in rest[0])
    if kind == "date":
        return (EPOCH + datetime.timedelta(milliseconds=rest[0])).date()
    if kind == "time":
        return (EPOCH + datetime.timedelta(milliseconds=rest[0])).time()
    if kind == "timestamp":
        seconds = rest[0] // 1000
        return EPOCH + datetime.timedelta(seconds=seconds, microseconds=rest[1] // 1000)
    return rest[0]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_a_node_is_brought_into_postgres(
    live_node: LiveNode, target_url: str, tmp_path: Path
) -> None:
    """Rows of every type, later columns, removals, transactions and a recreated cache arrive."""
    changes(live_node)
    path = write_pipeline(
        tmp_path,
        live_node.url,
        target_url,
        mode="change",
        tables=["*"],
        sections={
            "changeExtractor": {**LIVELY, "exitWhenIdle": True},
            "spark": {"master": "local[2]"},
        },
    )
    path.write_text(path.read_text() + '[target.types]\n"*" = "error"\n')
    done = penstock("extract", path, "--json")
    assert done.code == 0, done.err
    config = load_config(path)
    with psycopg.connect(
        target_url, autocommit=True, options="-c timezone=UTC", prepare_threshold=None
    ) as sql:
        make_tables(sql, config)
        path.write_text(path.read_text().replace("exitWhenIdle = true\n", ""))
        (config.layout.log / "CHANGE.DONE").unlink()
        caches = {"typed": "ID", "keyed": "", "word": "_key", "ledger": "_key", "plain": "_key"}

        def equal() -> bool:
            for cache, key in caches.items():
                wanted = in_cache(live_node, cache, key, typed=cache == "plain" and is_mixed)
                rows = in_target(sql, cache)
                for row in rows:
                    row.pop("_expire_time", None)
                if rows != wanted:
                    return False
            return True

        is_mixed = False
        with Process(path) as run:
            run.until(equal, "what was there is in the target", 300)
            is_mixed = True
            more_changes(live_node)
            run.until(equal, "changes are in the target", 300)
            run.stop()
        assert all("_expire_time" in row for row in in_target(sql, "word"))
        assert [row["_key"] for row in in_target(sql, "word")] == [7]
    left = fold_rows(rows_of(config))
    assert {name: len(rows) for name, rows in left.items()} == {
        cache: len(live_node.scan(cache)) for cache in caches
    }
    status = json.loads(penstock("status", path, "--json").out.splitlines()[-1])
    assert status["applied"] is not None
