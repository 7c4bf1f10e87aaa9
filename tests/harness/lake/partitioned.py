"""Partitioned tables for tests: a source whose rows move between partitions, and lakes.

What a file's partition should be is told by pyiceberg's transforms, not by penstock's. One JVM has
both formats; jobs of workers run in this process. Spark reads through it, without Python.
"""

from __future__ import annotations

import datetime as dt
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable as RustTable
from pyiceberg.table import StaticTable
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from harness.lake import delta, iceberg
from harness.lake.applying import InlineJobs, Row, create_table
from harness.lake.iceberg import Place, hadoop_place
from harness.lake.moving import ORDERS, SHAPE
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.iceberg.table import IcebergTable
from penstock.engines.lake.format import Catalogue, LakeFormat, LakeTable
from penstock.engines.lake.jars import DELTA_JARS, ICEBERG_JARS, class_path
from penstock.engines.lake.java import join_texts
from penstock.engines.lake.own_java import OwnJava, open_java
from penstock.model import Relation, TableName


class Java(InlineJobs):
    """JVM with both formats."""

    def __init__(self, java: OwnJava) -> None:
        """Keep it."""
        super().__init__()
        self._java = java
        self.jvm, self.spark, self.hadoop_conf = java.jvm, java.spark, java.hadoop_conf

    def query(self, statement: str) -> list[dict[str, Any]]:
        """Return the rows of a query of Spark's SQL; those of another statement are none."""
        rows = self.spark.sql(statement).toJSON().collectAsList()
        return [json.loads(line) for line in join_texts(self.jvm, rows).splitlines() if line]


@contextmanager
def open_both(folder: Path) -> Iterator[Java]:
    """Start the JVM; end it afterwards."""
    both = class_path((*DELTA_JARS, *ICEBERG_JARS))
    with open_java(f"delta+file://{folder}", both) as java:
        java.spark.conf().set("spark.sql.session.timeZone", "UTC")
        yield Java(java)


class Side(ABC):
    """Lake of one format.

    Attributes:
        partitions: Lists of terms that the format can have, for tests of histories.
    """

    table_format: LakeFormat
    is_delta: ClassVar[bool]
    url: str
    partitions: ClassVar[Sequence[Sequence[str]]]

    def __init__(self, java: Java) -> None:
        self.java = java
        self.kind = "delta"

    def catalogue(self) -> Catalogue:
        """Return the catalogue, as another process opens it."""
        return self.table_format.open(self.url, self.java, {})

    def table(self, name: TableName = ORDERS) -> LakeTable:
        """Return a table, as another process finds it."""
        found = self.catalogue().find(name)
        assert found is not None
        return found

    def create(self, partition: Sequence[str], shape: Relation = SHAPE) -> None:
        """Create the table."""
        create_table(self.catalogue(), shape, partition=partition, is_delta=self.is_delta)

    @abstractmethod
    def read_all(self) -> dict[str, pa.Table]:
        """Return the rows as each reader reads them."""

    @abstractmethod
    def disturb(self) -> None:
        """Rewrite the table's files, as another program's maintenance does."""

    @abstractmethod
    def files(self) -> Mapping[str, Sequence[Any]]:
        """Return the partition of each live file by its path, as another reader reads it."""

    def has_sources(self, names: Sequence[str]) -> bool:
        """Return whether a file of these columns has those by which the table is partitioned."""
        del names
        return True

    @abstractmethod
    def expect_partitions(self, rows: pa.Table) -> set[tuple[Any, ...]]:
        """Return the partitions that a file's rows, live or not, belong to."""

    @property
    @abstractmethod
    def sql_name(self) -> str:
        """Name of the table in Spark's SQL."""

    def read_spark(self, where: str = "true") -> list[Row]:
        """Return the rows as Spark reads them, as texts."""
        names = [column.name for column in self.table().snapshot().columns]
        columns = ", ".join(f"cast(`{name}` as string) as `{name}`" for name in names)
        rows = self.java.query(f"select {columns} from {self.sql_name} where {where}")
        return sorted((tuple(row.get(name) for name in names) for row in rows), key=repr)

    def check(self, rows: Sequence[Row], *, by_spark: bool = False) -> None:
        """Fail unless every reader reads these rows, and each file has rows of its partition."""
        if by_spark:
            texts = [tuple(None if one is None else as_text(one) for one in row) for row in rows]
            assert self.read_spark() == sorted(texts, key=repr)
        for reader, table in self.read_all().items():
            found = sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)
            assert found == rows, reader
        for path, partition in self.files().items():
            with pq.ParquetFile(path) as file:
                if self.has_sources(file.schema_arrow.names):
                    assert self.expect_partitions(file.read()) == {tuple(partition)}, path


class DeltaSide(Side):
    """Delta."""

    table_format = DELTA
    is_delta = True
    partitions = (("region",), ("day", "amount"))

    def __init__(self, java: Java, folder: Path) -> None:
        super().__init__(java)
        self.folder = folder
        self.url = f"delta+file://{folder}"

    @property
    def sql_name(self) -> str:
        return f"delta.`{self.table().location}`"

    def read_all(self) -> dict[str, pa.Table]:
        found = {"delta-rs": delta.read_rust(self.table())}
        files = self.table().snapshot().files
        has_folders = any("/" in file.name for file in files)  # of Delta's own OPTIMIZE
        if not has_folders and "columnMapping" not in self.table().snapshot().features:
            found["polars"] = delta.read_polars(self.table())
        return found

    def disturb(self) -> None:
        self.java.query(f"optimize {self.sql_name}")

    def _rust(self) -> RustTable:
        return RustTable(self.table().location)

    def files(self) -> Mapping[str, Sequence[Any]]:
        rust = self._rust()
        names = rust.metadata().partition_columns
        actions = pa.table(rust.get_add_actions(flatten=True)).to_pylist()
        return {
            f"{self.table().location}/{unquote(one['path'])}": [
                one[f"partition.{name}"] for name in names
            ]
            for one in actions
        }

    def has_sources(self, names: Sequence[str]) -> bool:
        # Delta's own writers leave the columns out, penstock does not.
        return set(self._rust().metadata().partition_columns) <= set(names)

    def expect_partitions(self, rows: pa.Table) -> set[tuple[Any, ...]]:
        names = self._rust().metadata().partition_columns
        return set(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


class IcebergSide(Side):
    """Iceberg of one format version."""

    table_format = ICEBERG
    is_delta = False
    partitions = (
        ("day(at)", "bucket(4, id)"),
        ("region", "month(day)"),
        ("year(at)", "truncate(100, amount)", "truncate(2, region)"),
        ("hour(at)", "bucket(3, region)", "bucket(3, amount)", "day"),
        ("at", "bucket(3, day)", "bucket(3, at)", "truncate(10, id)"),
    )

    def __init__(self, java: Java, folder: Path, format_version: int) -> None:
        super().__init__(java)
        self.place: Place = hadoop_place(folder)
        self.place.register(cast(Any, java))
        self.url = self.place.url(format_version)
        self.kind = f"iceberg v{format_version}"

    def _static(self) -> StaticTable:
        return StaticTable.from_metadata(cast(IcebergTable, self.table()).metadata_location())

    @property
    def sql_name(self) -> str:
        return self.place.sql_name(cast(IcebergTable, self.table()))

    def read_all(self) -> dict[str, pa.Table]:
        table = cast(IcebergTable, self.table())
        return {"pyiceberg": iceberg.read_pyiceberg(table), "polars": iceberg.read_polars(table)}

    def disturb(self) -> None:
        name = ".".join((self.place.namespace, *ORDERS))
        self.java.query(
            f"call {self.place.name}.system.rewrite_data_files(table => '{name}', "
            "options => map('rewrite-all', 'true'))",
        )

    def files(self) -> Mapping[str, Sequence[Any]]:
        tasks = list(self._static().scan().plan_files())
        for task in tasks:
            for one in task.delete_files:
                assert tuple(one.partition) == tuple(task.file.partition)
        return {task.file.file_path: tuple(task.file.partition) for task in tasks}

    def expect_partitions(self, rows: pa.Table) -> set[tuple[Any, ...]]:
        table = self._static()
        schema = table.schema()
        columns = []
        for field in table.spec().fields:
            source = schema.find_field(field.source_id)
            by_id = {
                int(one.metadata[b"PARQUET:field_id"]): at for at, one in enumerate(rows.schema)
            }
            apply = field.transform.transform(source.field_type)
            values = rows.column(by_id[field.source_id]).to_pylist()
            columns.append([apply(_internal(value)) for value in values])
        return set(zip(*columns, strict=True))


def _internal(value: Any) -> Any:
    """Return a value as pyiceberg's transforms take it."""
    if isinstance(value, dt.datetime):
        return datetime_to_micros(value)
    return date_to_days(value) if isinstance(value, dt.date) else value


def as_text(value: Any) -> str:
    """Return a value as Spark casts it to a text."""
    if not isinstance(value, dt.datetime):
        return str(value)
    text = value.isoformat(" ")
    return text.rstrip("0") if "." in text else text


def make_side(kind: str, java: Java, folder: Path) -> Side:
    """Return a lake: `delta`, `iceberg v3` or `iceberg v2`."""
    if kind == "delta":
        return DeltaSide(java, folder)
    return IcebergSide(java, folder, int(kind[-1]))
