"""Batches in lakes of the real formats on a local S3 server, with kills, read by other makes.

Java starts as commands start it, and jobs run in this process. Not here: a pipeline's processes
(`tests/servers/test_lake_s3.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

from harness.lake.applying import LakeRun, Shop, content_of, create_table
from harness.lake.partitioned import Java
from harness.lake.s3 import S3Server, serve_s3
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.iceberg.table import IcebergTable
from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.format import LakeFormat
from penstock.engines.lake.jars import ICEBERG_JARS, class_path, find_repository
from penstock.engines.lake.own_java import open_java
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.model import TableName

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]

BUCKET = "lake"
SQLITE_JAR = find_repository() / "org/xerial/sqlite-jdbc/3.50.3.0/sqlite-jdbc-3.50.3.0.jar"
POINTS = ("lake.lookup.after", "lake.commit.after", "lake.batch.after", "lake.compact.after")
Read = Callable[[TableName], pa.Table]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Server with one bucket."""
    with serve_s3(tmp_path_factory.mktemp("s3")) as server:
        server.make_bucket(BUCKET)
        yield server


def delta_url(s3: S3Server) -> str:
    """Return the URL of Delta tables."""
    settings = {f"s3a.{name}": value for name, value in s3.settings.items()}
    return f"delta+s3://{BUCKET}/delta?{urlencode(settings, quote_via=quote)}"


def iceberg_url(s3: S3Server, folder: Path) -> str:
    """Return the URL of Iceberg tables, whose catalogue is a file of SQLite."""
    catalogue = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder / 'catalogue.db'}",
        "warehouse": f"s3://{BUCKET}/ice",
    }
    settings = {
        **{f"s3a.{name}": value for name, value in s3.settings.items()},
        **{f"catalog.{name}": value for name, value in catalogue.items()},
    }
    return f"iceberg://lake/shop?{urlencode(settings, quote_via=quote)}"


@pytest.fixture(scope="module")
def java(s3: S3Server) -> Iterator[Java]:
    """JVM with both formats."""
    with open_java(delta_url(s3), f"{class_path(ICEBERG_JARS)}:{SQLITE_JAR}") as running:
        yield Java(running)


Side = tuple[LakeFormat, str, Read]


@pytest.fixture(params=["delta", "iceberg"])
def side(request: pytest.FixtureRequest, s3: S3Server, java: Java, tmp_path: Path) -> Side:
    """Format, URL, and a reader of another make."""

    def read_delta(name: TableName) -> pa.Table:
        place = f"s3://{BUCKET}/delta/{name.schema}/{name.name}"
        table = DeltaTable(place, storage_options=dict(s3.delta_options))
        return pa.table(QueryBuilder().register("t", table).execute("select * from t").read_all())

    def read_iceberg(name: TableName) -> pa.Table:
        found: Any = ICEBERG.open(iceberg_url(s3, tmp_path), java, {}).find(name)
        assert isinstance(found, IcebergTable)
        place = found.metadata_location()
        return StaticTable.from_metadata(place, s3.iceberg_properties).scan().to_arrow()

    if request.param == "delta":
        return DELTA, delta_url(s3), read_delta
    return ICEBERG, iceberg_url(s3, tmp_path), read_iceberg


def work(run: LakeRun, shop: Shop) -> None:
    """Apply batches until a fault ends it: upkeep has enough files after some."""
    while True:
        run.run(files_max=1)
        shop.write(2, per_segment=1)


def test_a_history_with_kills_on_s3(side: Side, s3: S3Server, java: Java, tmp_path: Path) -> None:
    """Each loader is killed at another step; the tables end equal, and are removed whole."""
    table_format, url, read = side
    log = tmp_path / "log"
    log.mkdir()
    shop = Shop(log, seed=4)
    catalogue = table_format.open(url, java, {})
    for table in shop.tables:
        create_table(catalogue, table.shape)
    for point in POINTS:
        shop.write(4, per_segment=2)
        run = LakeRun(table_format, url, log, jobs=java)
        with faults.arming(f"{point}:1:error"), pytest.raises(FaultInjected):
            work(run, shop)
        run.kill()
    run = LakeRun(table_format, url, log, jobs=java)
    run.run()
    run.close()
    shop.log.writer.close()
    for table in shop.tables:
        assert content_of(read(table.name).to_pylist()) == table.content, table.name
    left = table_format.open(url, java, {})
    for name in (BATCHES, *(table.name for table in shop.tables)):
        assert left.find(name) is not None
        left.drop(name)
    keys = [key for key in s3.keys(BUCKET) if key.startswith(("delta/", "ice/"))]
    assert [key for key in keys if not key.endswith("/") and "/_penstock/" not in key] == []
