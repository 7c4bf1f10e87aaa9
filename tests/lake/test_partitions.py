"""Partitioned tables in Delta Lake and Iceberg, read by delta-rs, pyiceberg, polars and Spark.

Jobs of workers run in this process, commits in a JVM. Not here: transforms alone
(`tests/unit/test_lake_partitions.py`), failures (`test_partitions_core.py`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable

from harness.lake.applying import LakeRun
from harness.lake.moving import MOMENTS, REGIONS, SHAPE, Orders
from harness.lake.partitioned import IcebergSide, Java, Side, make_side, open_both
from penstock.engines.iceberg.table import IcebergTable
from penstock.engines.lake.format import FeatureUnknown
from penstock.model import Relation
from penstock.ports.target import ShapeNotApplicable, ValueRefused
from plugins.shared import SharedSpark

KINDS = ("delta", "iceberg v3", "iceberg v2")
CASES = (
    ("delta", ("region",)),
    ("delta", ("day", "amount")),
    ("iceberg v2", ("day(at)", "bucket(4, id)")),
    ("iceberg v2", ("at", "bucket(3, day)", "bucket(3, at)", "truncate(10, id)")),
    ("iceberg v3", ("region", "month(day)")),
    ("iceberg v3", ("hour(at)", "bucket(3, region)", "bucket(3, amount)", "day")),
    ("iceberg v3", ("year(at)", "truncate(100, amount)", "truncate(2, region)")),
)


@pytest.fixture(scope="module")
def java(shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """JVM with the classes of both formats."""
    shared_spark.close()
    with open_both(tmp_path_factory.mktemp("java")) as running:
        yield running


class Pipeline:
    """Source of a partitioned table, and a loader into a lake."""

    def __init__(
        self,
        java: Java,
        folder: Path,
        kind: str,
        terms: tuple[str, ...],
        *,
        shape: Relation = SHAPE,
        seed: int = 1,
    ) -> None:
        self.side: Side = make_side(kind, java, folder / "lake")
        self.orders = Orders(folder / "log", seed, shape=shape)
        self.side.create(terms, shape)
        self._run = LakeRun(self.side.table_format, self.side.url, folder / "log", jobs=java)

    def load(self) -> None:
        """Apply all batches."""
        self._run.run()

    def check(self) -> None:
        """Compare the table with the source, through every reader."""
        self.side.check(self.orders.content, by_spark=True)

    def close(self) -> None:
        """End both."""
        self._run.close()
        self.orders.log.writer.close()


@pytest.mark.parametrize(("kind", "terms"), CASES)
def test_rows_move_between_partitions(
    java: Java, tmp_path: Path, kind: str, terms: tuple[str, ...]
) -> None:
    """Rows move, another program rewrites files, all rows are removed: readers agree each time."""
    pipeline = Pipeline(java, tmp_path, kind, terms)
    for number in range(3):
        pipeline.orders.write(3)
        if number == 2:
            pipeline.side.disturb()
        pipeline.load()
        pipeline.side.check(pipeline.orders.content)
    pipeline.check()
    pipeline.orders.truncate()
    pipeline.orders.write(2)
    pipeline.load()
    pipeline.check()
    pipeline.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_moved_row_is_deleted_in_its_old_partition(java: Java, tmp_path: Path, kind: str) -> None:
    """The row is found by its key, wherever it is; its deletions are of that file's partition."""
    pipeline = Pipeline(java, tmp_path, kind, ("region",))
    first = [(number, "old", None, None, None, "x") for number in range(1, 5)]
    pipeline.orders.put(*first)
    pipeline.load()
    pipeline.orders.put((2, "new", None, None, None, "y"))
    pipeline.load()
    files = {
        file.partition: (file.row_count, file.dead_count)
        for file in pipeline.side.table().snapshot().files
    }
    assert files == {("old",): (4, 1), ("new",): (1, 0)}
    pipeline.check()
    pipeline.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_reads_the_files_of_its_partitions(java: Java, tmp_path: Path, kind: str) -> None:
    """The files of the others may be gone. Random keys make their bounds exclude nothing."""
    is_delta = kind == "delta"
    pipeline = Pipeline(java, tmp_path, kind, ("region",) if is_delta else ("bucket(8, id)",))
    pipeline.orders.put(
        *((number, REGIONS[number % 9], MOMENTS[1], None, None, None) for number in range(500))
    )
    pipeline.load()
    side = pipeline.side
    wanted = side.table().snapshot()
    where = "region = 'u s/a'" if is_delta else "id = 77"
    if isinstance(side, IcebergSide):
        metadata = cast(IcebergTable, side.table()).metadata_location()
        scan = StaticTable.from_metadata(metadata).scan(EqualTo("id", value=77))
        kept = {task.file.file_path for task in scan.plan_files()}
    else:
        kept = {file.location for file in wanted.files if file.partition == ("u s/a",)}
    assert len(kept) == 1
    assert len(wanted.files) == (9 if is_delta else 8)
    for file in wanted.files:
        if file.location not in kept and file.name not in kept:
            Path(file.location).unlink()
    expected = [row for row in pipeline.orders.content if row[0] == 77 or row[1] == "u s/a"]
    expected = [row for row in expected if (row[1] == "u s/a" if is_delta else row[0] == 77)]
    assert [row[0] for row in side.read_spark(where)] == sorted(str(row[0]) for row in expected)
    if is_delta:
        builder = QueryBuilder().register("t", RustTable(side.table().location))
        found = builder.execute(f"select count(*) as n from t where {where}").read_all()
        assert found.column("n").to_pylist() == [len(expected)]
    else:
        assert scan.to_arrow().column("id").to_pylist() == [77]
    pipeline.close()


def test_buckets_and_units_of_time_are_those_of_spark(java: Java, tmp_path: Path) -> None:
    """Spark writes the same rows into a table of the same partitions: the partitions are equal."""
    terms = ("bucket(5, id)", "bucket(5, region)", "bucket(5, amount)", "month(at)")
    pipeline = Pipeline(java, tmp_path, "iceberg v2", terms)
    for _ in range(2):
        pipeline.orders.write(4)
    pipeline.load()
    ours = pipeline.side.sql_name
    theirs = ours.replace("`orders`", "`theirs`")
    java.query(
        f"create table {theirs} using iceberg partitioned by (bucket(5, id), bucket(5, region), "
        f"bucket(5, amount), months(at)) as select * from {ours}"
    )
    query = "select to_json(partition) as p, record_count as n from {}.partitions where {}"

    def partitions(name: str, counted: str) -> list[tuple[str, int]]:
        return sorted((row["p"], row["n"]) for row in java.query(query.format(name, counted)))

    spark = partitions(theirs, "record_count > 0")
    live = java.query(
        f"select to_json(_partition) as p, count(*) as n from {ours} group by _partition"
    )
    assert sorted((row["p"], row["n"]) for row in live) == spark
    assert len(spark) > 5
    pipeline.close()


def test_strange_texts_are_partitions_of_delta(java: Java, tmp_path: Path) -> None:
    """Every text is one but the empty text, which Delta would read as NULL."""
    pipeline = Pipeline(java, tmp_path, "delta", ("region",))
    texts = [*REGIONS, "a\nb", "\t", " ", "null", "NULL", "x" * 300, "%20", "+", "#?&=;", "\\"]
    pipeline.orders.put(
        *((number, text, None, None, None, text) for number, text in enumerate(texts))
    )
    pipeline.load()
    pipeline.side.check(pipeline.orders.content)
    assert len(pipeline.side.table().snapshot().files) == len(texts)
    pipeline.orders.put((1, "", None, None, None, None))
    with pytest.raises(ValueRefused, match=r"column region of public\.orders has an empty text"):
        pipeline.load()
    pipeline.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_a_partition_is_renamed_but_not_dropped(
    java: Java, tmp_path: Path, kind: str
) -> None:
    """The table keeps its partitions through a rename; without the column it is copied again."""
    shape = with_ids(SHAPE)
    pipeline = Pipeline(java, tmp_path, kind, ("region",), shape=shape)
    pipeline.orders.write(2)
    pipeline.load()
    columns = [replace(one, name="area") if one.name == "region" else one for one in shape.columns]
    pipeline.orders.shape = replace(shape, columns=tuple(columns), version=2)
    pipeline.orders.write(2)
    pipeline.load()
    assert [one.source.name for one in pipeline.side.table().snapshot().partition] == ["area"]
    pipeline.check()
    kept = tuple(one for one in columns if one.name != "area")
    without = replace(shape, columns=kept, version=3)
    pipeline.orders.log.transaction(relations=[without])
    pipeline.orders.log.close_segment()
    with pytest.raises(ShapeNotApplicable, match="partitioned by column area") as refused:
        pipeline.load()
    assert "penstock table resync" in refused.value.hint
    pipeline.close()


def with_ids(shape: Relation) -> Relation:
    """Return a shape whose columns have identities, so that renames are known."""
    columns = tuple(replace(one, id=at) for at, one in enumerate(shape.columns, 1))
    return replace(shape, columns=columns, source_id=7)


def test_a_foreign_change_of_partitions_is_refused(java: Java, tmp_path: Path) -> None:
    """Another writer adds a field: penstock does not write files of another spec."""
    pipeline = Pipeline(java, tmp_path, "iceberg v3", ("region",))
    pipeline.orders.write(1)
    pipeline.load()
    side = pipeline.side
    java_table = cast(IcebergTable, side.table())._java
    java_table.updateSpec().addField("id").commit()
    with pytest.raises(FeatureUnknown, match="another partition spec"):
        side.table()
    pipeline.close()


def test_timestamps_before_1970_are_in_the_day_that_they_are_in(java: Java, tmp_path: Path) -> None:
    """One microsecond before 1970 is in the last day of 1969."""
    pipeline = Pipeline(java, tmp_path, "iceberg v3", ("day(at)",))
    moment = dt.datetime(1969, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001
    pipeline.orders.put((1, None, moment, None, None, None))
    pipeline.load()
    (partition,) = pipeline.side.files().values()
    assert tuple(partition) == (-1,)
    days = java.query(
        f"select cast(_partition.at_day as string) as d from {pipeline.side.sql_name}"
    )
    assert [row["d"] for row in days] == ["1969-12-31"]
    pipeline.close()
