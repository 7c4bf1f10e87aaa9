"""`penstock run` from PostgreSQL into a lake: bulk load, changes, kills, and the other commands.

The rows are read by readers of other makes, and compared with the source's. Not here: the formats'
commits (`tests/lake/test_delta.py`, `test_iceberg.py`), kills at every fault point
(`tests/lake/test_core_*.py`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

from harness.lake.readers import Rows, rows_of, text_of
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import Ran, penstock, write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]

WITHIN_S = 400.0
LOOK_S = 0.5
ReadTable = Callable[[Path, str], Any]

SETUP = (
    "create type mood as enum ('good', 'bad')",
    """create table orders (id bigint primary key, name text, price numeric(12,2),
       any_number numeric, at timestamptz, day date, local timestamp, ok boolean, part float8,
       whole int, tiny smallint, code uuid, facts jsonb, tags text[], raw bytea,
       fixed char(5), mood mood)""",
    "create table plain (a int, b text)",
    "alter table plain replica identity full",
    "create table gone (id int primary key)",
    "insert into gone select generate_series(1, 20)",
    "insert into plain select mod(g, 10), 'x' from generate_series(1, 100) g",
)
FILL = """insert into orders select g, 'n' || g, g * 1.25, g / 7.0,
    '2024-02-29 12:00:00.5+02'::timestamptz + g * interval '1 hour', '2024-01-01'::date + g,
    '2024-01-01 10:00:00.123456'::timestamp, mod(g, 2) = 0, g / 3.0::float8, g, mod(g, 100),
    md5(g::text)::uuid, jsonb_build_object('a', g), array['x', null, 'y"' || g],
    decode(lpad(to_hex(g), 8, '0'), 'hex'), 'ab', 'good' from generate_series(%s::int, %s::int) g"""
COLUMNS = (
    "id, name, price, any_number::text, at, day, local, ok, part, whole, tiny, code::text, "
    "facts::text, tags::text, raw, rpad(fixed, 5), mood::text"
)
CHANGES = (
    "update orders set price = price + 1, tags = null where mod(id, 7) = 0",
    "update orders set id = -id where mod(id, 11) = 0",
    "delete from orders where mod(id, 5) = 0",
    "delete from plain where ctid in (select min(ctid) from plain where a = 3)",
    "insert into plain values (3, null), (null, null)",
    "truncate gone",
    "insert into gone values (7)",
)


def read_delta(lake: Path, name: str) -> Any:
    """Read a table with delta-rs."""
    builder = QueryBuilder().register("it", DeltaTable(str(lake / "public" / name)))
    return pa.table(builder.execute("select * from it").read_all())


def read_iceberg(lake: Path, name: str) -> Any:
    """Read a table with pyiceberg."""
    metadata = lake / "shop" / "public" / name / "metadata"
    version = (metadata / "version-hint.text").read_text()
    found = StaticTable.from_metadata(f"file://{metadata}/v{version}.metadata.json")
    return found.scan().to_arrow()


class Shop:
    """A source, a lake and the pipeline between them."""

    def __init__(self, folder: Path, source_url: str, kind: str, version: int) -> None:
        """Create the source's tables and write the pipeline file."""
        self.lake = folder / "lake"
        self.source_url = source_url
        self.read: ReadTable = read_delta if kind == "delta" else read_iceberg
        with psycopg.connect(source_url, autocommit=True) as sql:
            for statement in SETUP:
                sql.execute(statement)
            sql.execute(FILL, (1, 3000))
        conf = {
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(self.lake),
        }
        target: dict[str, Any] = {"batchSeconds": 0.3}
        if kind == "iceberg":
            target["formatVersion"] = version
        self.path = write_pipeline(
            folder,
            source_url,
            f"delta+file://{self.lake}" if kind == "delta" else "iceberg://lake/shop",
            sections={
                "target": target,
                "changeExtractor": LIVELY,
                "spark": {"master": "local[2]"},
                "spark.conf": conf,
            },
        )

    def change(self, statements: Sequence[str], first: int) -> None:
        """Make changes at the source, and add orders from a number on."""
        with psycopg.connect(self.source_url, autocommit=True) as sql:
            for statement in statements:
                sql.execute(statement)
            sql.execute(FILL, (first, first + 500))

    def in_source(self, name: str) -> Rows:
        """Return the source's rows."""
        columns = COLUMNS if name == "orders" else "*"
        with psycopg.connect(self.source_url) as sql:
            sql.execute("set timezone to 'UTC'")
            found = sql.execute(f"select {columns} from {name}").fetchall()
        return sorted(tuple(map(text_of, row)) for row in found)

    def is_equal(self) -> bool:
        """Return whether each table has the source's rows; False while there is no table.

        A look at the lake costs more than a look at a database, so that looks have pauses.
        """
        time.sleep(LOOK_S)
        for name in ("orders", "plain", "gone"):
            try:
                found = self.read(self.lake, name)
            except Exception:  # no table yet, or a file that is being replaced
                return False
            if rows_of(found) != self.in_source(name):
                return False
        return True

    def show_difference(self) -> str:
        """Return rows that differ."""
        for name in ("orders", "plain", "gone"):
            there, here = rows_of(self.read(self.lake, name)), self.in_source(name)
            lacking, surplus = sorted(set(here) - set(there)), sorted(set(there) - set(here))
            if there != here:
                return f"{name}: {len(here)}, {len(there)}: {lacking[:1]}, {surplus[:1]}"
        return ""

    def pids(self) -> dict[str, int]:
        """Return the process ids of run, extract and load; 0 for one that does not run."""
        return {process.name: process.pid for process in processes(load_config(self.path))}

    def command(self, *arguments: object) -> Ran:
        """Run a command that must succeed."""
        first, *more = arguments
        done = penstock(first, self.path, *more, "--json", timeout_s=WITHIN_S)
        assert done.code == 0, (done.out, done.err)
        return done


@pytest.fixture(params=["delta-3", "iceberg-3", "iceberg-2"])
def shop(request: pytest.FixtureRequest, source_url: str, tmp_path: Path) -> Shop:
    """A shop for each format."""
    kind, _, version = request.param.partition("-")
    return Shop(tmp_path, source_url, kind, int(version))


def test_postgres_is_brought_into_a_lake(shop: Shop) -> None:
    """Rows are loaded, then changes, through kills of both kinds; every command knows the lake."""
    plan = shop.command("plan").result
    assert plan["ok"]
    assert plan["notes"]
    doctor = shop.command("doctor").result
    assert doctor["checks_skipped"] == 0
    with Process(shop.path) as run:
        run.until(shop.is_equal, "existing rows are in the lake", WITHIN_S)
        shop.change(CHANGES, 10_000)
        run.until(shop.is_equal, "changes are in the lake", WITHIN_S)
        before = shop.pids()["load"]
        shop.change(CHANGES[:3], 20_000)
        os.kill(before, signal.SIGKILL)
        shop.change(CHANGES[:1], 30_000)
        run.until(lambda: shop.pids()["load"] not in (0, before), "another one runs", WITHIN_S)
        run.until(shop.is_equal, f"all changes are in the lake: {shop.show_difference()}", WITHIN_S)
        assert shop.command("verify").result["equal"]
        status = shop.command("status").result
        assert status["bulk"]["phase"] == "done"
        assert status["applied"] is not None
        run.stop()
    shop.change(CHANGES[:2], 40_000)
    text = shop.path.read_text()
    shop.path.write_text(
        text.replace("[changeExtractor]", "[changeExtractor]\nexitWhenIdle = true")
    )
    shop.command("run")
    assert shop.is_equal(), shop.show_difference()
    assert shop.command("verify").result["equal"]
    shop.command("reset", "--target", "--yes")
    assert not list(shop.lake.rglob("*.parquet"))
    assert not list(shop.lake.rglob("_penstock"))
