"""Histories in lakes of the real formats: failures, foreign maintenance, readers of other makes.

Each batch's versions are replayed: the history of a table leads to the table. Delta is read by
delta-rs, Iceberg by pyiceberg. The tasks of jobs run in this process, beside a JVM of the test's
own. Not here: each step's failures (`test_history_core.py`), Spark (`test_lake_history.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from pyiceberg.table import StaticTable

from harness.lake.applying import InlineJobs, LakeRun, Shop, content_of, create_table
from harness.lake.histories import check_changes, in_order, replay
from harness.lake.iceberg import hadoop_place
from harness.pipelines.changes import Change, relation
from harness.pipelines.loader import LogMaker
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.iceberg.table import IcebergTable
from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.format import Catalogue, LakeFormat
from penstock.engines.lake.history_shape import history_name
from penstock.engines.lake.own_java import OwnJava, open_java
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.model import Column, Relation, TableName

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DOCUMENT = Path(__file__).parents[2] / "docs" / "lake.md"
ROUNDS = 6
POINTS = (
    "lake.history.before",
    "lake.history.after",
    "lake.history.done",
    "lake.commit.before",
    "lake.commit.after",
    "lake.batch.before",
    "lake.compact.after",
)


class JavaJobs(InlineJobs):
    """Session whose jobs run in this process, beside a JVM of its own."""

    def __init__(self, java: OwnJava, *, has_spark: bool) -> None:
        """Keep the JVM's classes. has_spark: the format needs a SparkSession of the JVM."""
        super().__init__()
        self.jvm, self.hadoop_conf = java.jvm, java.hadoop_conf
        self.spark = java.spark if has_spark else None


class Lake:
    """Lake of one format with histories, a JVM, and a reader of another make."""

    def __init__(self, kind: str, folder: Path) -> None:
        """Keep the place."""
        self.is_delta = kind == "delta"
        self.folder = folder
        self.format: LakeFormat = DELTA if self.is_delta else ICEBERG
        if self.is_delta:
            self.url = f"delta+file://{folder}?history=true"
        else:
            self.url = f"{hadoop_place(folder).url(int(kind[-1]))}&history=true"
        self.jobs: Any = None

    def catalogue(self) -> Catalogue:
        """Return the catalogue, as another process opens it."""
        return self.format.open(self.url, self.jobs, {})

    def connect(self, log: Path) -> LakeRun:
        """Return a new loader."""
        return LakeRun(self.format, self.url, log, jobs=self.jobs)

    def read(self, name: TableName, version: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a table, in its newest or another version."""
        found: list[dict[str, Any]] = self._read(name, version).to_pylist()
        return found

    def _read(self, name: TableName, version: int | None) -> pa.Table:
        if self.is_delta:
            table = RustTable(self.folder / name.schema / name.name, version=version)
            builder = QueryBuilder().register("t", table)
            return pa.table(builder.execute("select * from t").read_all())
        found = cast(IcebergTable, self.catalogue().find(name))
        metadata = StaticTable.from_metadata(found.metadata_location())
        return metadata.scan(snapshot_id=version).to_arrow()

    def disturb(self, name: TableName) -> None:
        """Rewrite a table's files, as another program's maintenance does."""
        if self.is_delta:
            path = self.folder / name.schema / name.name
            self.jobs.spark.sql(f"optimize delta.`{path}`").collect()


@pytest.fixture(params=["delta", "iceberg v3", "iceberg v2"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """Yield a lake of each format, with histories."""
    lake = Lake(request.param, tmp_path / "lake")
    with open_java(lake.url) as java:
        lake.jobs = JavaJobs(java, has_spark=lake.is_delta)
        yield lake


def test_histories_lead_to_their_tables(lake: Lake, tmp_path: Path) -> None:
    """Fail at random steps, rewrite histories as another program, and replay each batch."""
    log = tmp_path / "log"
    log.mkdir()
    shop = Shop(log, seed=5)
    for table in shop.tables:
        create_table(lake.catalogue(), table.shape)
    choose, failed = shop.random, 0

    run = lake.connect(log)
    for number in range(ROUNDS):
        shop.write(choose.randint(2, 6), per_segment=3)
        point, nth = choose.choice(POINTS), choose.randint(1, 3)
        try:
            with faults.arming(f"{point}:{nth}:error"):
                run.run(files_max=choose.randint(1, 3))
        except FaultInjected:
            failed += 1
            choose.choice([run.fail, run.kill])()
            run = lake.connect(log)
        if number % 3 == 1:
            lake.disturb(history_name(choose.choice(shop.tables).name))
    run.run()
    run.close()
    shop.log.writer.close()
    keys = {}
    for table in shop.tables:
        rows = lake.read(history_name(table.name))
        key = keys[table.name] = [table.shape.columns[index].name for index in table.shape.key]
        assert replay(rows, key) == table.content, table.name
        assert content_of(lake.read(table.name)) == table.content, table.name
        check_changes(rows, log, table.shape)
    checked = 0
    for row in lake.read(BATCHES):
        versions = json.loads(row["versions"] or "{}")
        for name, key in keys.items():
            version = versions.get(str(history_name(name)))
            if version is not None:
                rows = lake.read(history_name(name), version)
                found = replay(rows, key)
                assert found == shop.states[int(row["position"])][name], (row["gsn"], name)
                checked += 1
    assert checked >= len(shop.tables)
    assert failed
    if lake.is_delta:
        check_documented_query(lake, shop)


def check_documented_query(lake: Lake, shop: Shop) -> None:
    """Run the query of docs/lake.md: versions that are valid still are the table."""
    text = DOCUMENT.read_text()
    query = text.partition("```sql\nselect id, name, price, _commit_time")[2].partition("```")[0]
    assert "orders_history" in query
    path = lake.folder / "public" / "orders_history"
    builder = QueryBuilder().register("orders_history", RustTable(path))
    asked = "select id, a, b, big, _commit_time" + query
    rows = pa.table(builder.execute(asked).read_all()).to_pylist()
    valid = [row for row in rows if row["valid_to"] is None]
    assert content_of([{k: row[k] for k in ("id", "a", "b", "big")} for row in valid]) == (
        shop.tables[0].content
    )
    assert all(row["valid_to"] is None or row["valid_to"] >= row["valid_from"] for row in rows)


def test_a_history_keeps_what_its_table_loses(lake: Lake, tmp_path: Path) -> None:
    """Add, rename, drop and retype columns; leave values out of updates."""
    first = relation(("id", "bigint", "int64"), ("a", "integer", "int32"), ("b", "text", "string"))

    def shape(version: int, *columns: tuple[int, str, str, str]) -> Relation:
        made = tuple(Column(id=i, name=n, source_type=s, neutral=k) for i, n, s, k in columns)
        return replace(first, columns=made, source_id=7, version=version)

    key, b = (1, "id", "bigint", "int64"), (3, "b", "text", "string")
    shapes = [
        shape(1, key, (2, "a", "integer", "int32"), b),
        shape(2, key, (2, "n", "integer", "int32"), b),
        shape(3, key, (2, "n", "integer", "int32"), (4, "c", "date", "date")),
        shape(4, key, (2, "n", "integer", "int32"), (5, "c", "text", "string")),
    ]
    create_table(lake.catalogue(), shapes[0])
    directory = tmp_path / "log"
    directory.mkdir()
    log = LogMaker(directory)
    run = lake.connect(directory)
    inserts = [(1, 1, "x"), (2, 2, "y"), (3, 3, None), (4, 4, "text")]
    for number, (after, version) in enumerate(zip(inserts, shapes, strict=True)):
        update = Change(op="U", gsn=0, after=(1, 9, None), absent=frozenset([2]))
        log.transaction((version, Change(op="I", gsn=0, after=after)))
        log.transaction((version, update))
        log.close_segment()
        if number != 1:
            run.run()
    run.close()
    log.writer.close()
    name = history_name(TableName("public", first.name))
    found = in_order(lake.read(name))
    told = [(r["_op"], r["id"], r["n"], r["b"], r["c"], r["c_string"]) for r in found]
    assert told == [
        ("insert", 1, 1, "x", None, None),
        ("update", 1, 9, "x", None, None),
        ("insert", 2, 2, "y", None, None),
        ("update", 1, 9, "x", None, None),
        ("insert", 3, 3, None, None, None),
        ("update", 1, 9, None, None, None),
        ("insert", 4, 4, None, None, "text"),
        ("update", 1, 9, None, None, None),
    ]
    assert all(row["_absent"] is None for row in found)
