"""`penstock run` from PostgreSQL into lakes on a local S3 server: load, changes, kill, and the end.

Each lake is read by a reader of another make that knows S3 itself. Not here: lakes on disk
(`test_lake_run.py`), and the classes that reach S3 (`tests/lake/test_object_store.py`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog

from harness.lake.s3 import S3Server, serve_s3
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes
from penstock.engines.lake.jars import find_repository

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(2400)]

WITHIN_S = 600.0
LOOK_S = 1.0
BUCKET = "lake"
SQLITE_JAR = find_repository() / "org/xerial/sqlite-jdbc/3.50.3.0/sqlite-jdbc-3.50.3.0.jar"
SETUP = (
    "create table orders (id int primary key, name text, price numeric(12,2))",
    "create table gone (id int primary key)",
    "insert into orders select g, 'n' || g, g * 1.25 from generate_series(1, 500) g",
    "insert into gone select generate_series(1, 20)",
)
CHANGES = (
    "update orders set price = price + 1 where mod(id, 7) = 0",
    "delete from orders where mod(id, 11) = 0",
    "insert into orders select max(id) + 1, 'new', 1 from orders",
    "truncate gone",
    "insert into gone values (7)",
)
Rows = list[tuple[Any, ...]]


class Shop:
    """Source, lake on S3 and the pipeline between them."""

    def __init__(self, folder: Path, source_url: str, s3: S3Server, kind: str) -> None:
        """Create the source's tables, the bucket and the pipeline file."""
        self._folder = folder
        self._source_url = source_url
        self.s3 = s3
        self._read: Callable[[str], Any] = self._delta if kind == "delta" else self._iceberg
        s3.make_bucket(BUCKET)
        self.change(SETUP)
        self.path = write_pipeline(
            folder,
            source_url,
            f"delta+s3://{BUCKET}/delta" if kind == "delta" else "iceberg://lake/shop",
            sections={
                "target": {"batchSeconds": 1.0},
                "changeExtractor": LIVELY,
                "spark": {"master": "local[2]"},
                "spark.conf": {**s3.conf, **(self._catalogue() if kind == "iceberg" else {})},
            },
        )

    def _catalogue(self) -> dict[str, str]:
        prefix = "spark.sql.catalog.lake."
        return {
            f"{prefix}type": "jdbc",
            f"{prefix}uri": f"jdbc:sqlite:{self._folder / 'catalogue.db'}",
            f"{prefix}warehouse": f"s3://{BUCKET}/ice",
            "spark.driver.extraClassPath": str(SQLITE_JAR),
        }

    def _delta(self, name: str) -> Any:
        """Read a table with delta-rs."""
        place = f"s3://{BUCKET}/delta/public/{name}"
        table = DeltaTable(place, storage_options=dict(self.s3.delta_options))
        return pa.table(QueryBuilder().register("it", table).execute("select * from it").read_all())

    def _iceberg(self, name: str) -> Any:
        """Read a table with pyiceberg."""
        catalogue = SqlCatalog(
            "lake",
            uri=f"sqlite:///{self._folder / 'catalogue.db'}",
            init_catalog_tables="false",
            **self.s3.iceberg_properties,
        )
        try:
            return catalogue.load_table(("shop", "public", name)).scan().to_arrow()
        finally:
            catalogue.engine.dispose()

    def change(self, statements: tuple[str, ...]) -> None:
        """Make changes at the source."""
        with psycopg.connect(self._source_url, autocommit=True) as sql:
            for statement in statements:
                sql.execute(statement)

    def _in_source(self, name: str) -> Rows:
        with psycopg.connect(self._source_url) as sql:
            return sorted(sql.execute(f"select * from {name}").fetchall())

    def _in_lake(self, name: str) -> Rows:
        columns = [column.to_pylist() for column in self._read(name).columns]
        return sorted(zip(*columns, strict=True))

    def is_equal(self) -> bool:
        """Return whether both tables have the source's rows; False while there is no table."""
        time.sleep(LOOK_S)
        try:
            return all(self._in_lake(name) == self._in_source(name) for name in ("orders", "gone"))
        except Exception:  # no table yet
            return False

    def pid(self) -> int:
        """Return the process id of load; 0 if it does not run."""
        config = load_config(self.path)
        return {process.name: process.pid for process in processes(config)}["load"]

    def command(self, *arguments: object) -> Any:
        """Run a command that must succeed; return its result."""
        first, *more = arguments
        done = penstock(first, self.path, *more, "--json", timeout_s=WITHIN_S)
        assert done.code == 0, (done.out, done.err)
        return done.result


@pytest.fixture(params=["delta", "iceberg"])
def shop(request: pytest.FixtureRequest, source_url: str, tmp_path: Path) -> Iterator[Shop]:
    """A shop for each format."""
    with serve_s3(tmp_path) as s3:
        yield Shop(tmp_path, source_url, s3, request.param)


def test_postgres_is_brought_into_an_object_store(shop: Shop) -> None:
    """Rows are loaded, then changes, through a kill; verify and reset know the object store."""
    with Process(shop.path) as run:
        run.until(shop.is_equal, "existing rows are in the lake", WITHIN_S)
        shop.change(CHANGES)
        run.until(shop.is_equal, "changes are in the lake", WITHIN_S)
        before = shop.pid()
        shop.change(CHANGES)
        os.kill(before, signal.SIGKILL)
        shop.change(CHANGES)
        run.until(lambda: shop.pid() not in (0, before), "another one runs", WITHIN_S)
        run.until(shop.is_equal, "all changes are in the lake", WITHIN_S)
        assert shop.command("verify")["equal"]
        run.stop()
    assert shop.s3.keys(BUCKET)
    shop.command("reset", "--target", "--yes")
    assert [key for key in shop.s3.keys(BUCKET) if not key.endswith("/")] == []
