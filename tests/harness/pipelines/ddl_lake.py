"""A lake as the target of random histories: read by delta-rs, pyiceberg, or Spark.

delta-rs does not read a table with type widening: Spark's own reader does. A lake has no keys, and
its columns may all be NULL. The types of its columns are compared with those of docs/types.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from pyiceberg.table import StaticTable

from harness.pipelines.ddl_lake_java import DELTA, ICEBERG_2, java_of
from harness.pipelines.ddl_sides import Facts, Row, Side, differences
from harness.pipelines.ddl_types import ORACLE, POSTGRES, SQLSERVER

NAMESPACE = "shop"
UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]|\A[._]")
SPARK_ONLY = "typeWidening"
TYPES = {
    **{"boolean": "bool", "integer": "int32", "int": "int32", "long": "int64", "bigint": "int64"},
    **{"float": "float32", "double": "float64", "timestamp_ntz": "timestamp"},
}
ZONED = {DELTA: "timestamp"}  # which is without a zone in Iceberg


class LakeUnread(Exception):
    """Error: a table cannot be read at this moment."""


def lake_url(kind: str, root: Path) -> str:
    """Return the URL of a target below a folder."""
    if kind == DELTA:
        return f"delta+file://{root}"
    version = 2 if kind == ICEBERG_2 else 3
    warehouse = quote(str(root), safe="/")
    return (
        f"iceberg://lake/{NAMESPACE}?formatVersion={version}"
        f"&catalog.type=hadoop&catalog.warehouse={warehouse}"
    )


@dataclass(frozen=True, slots=True)
class Content:
    """A table as a reader gives it.

    Attributes:
        types: of the columns, as penstock's documents name them.
        required: columns that must not be NULL.
        columns: values by name, as Python values, or as Spark's texts.
        reader: name of the reader.
    """

    types: Mapping[str, str]
    required: frozenset[str]
    columns: Mapping[str, list[Any]]
    reader: str


class LakeSide:
    """Tables of a lake, at their newest versions."""

    def __init__(self, kind: str, root: Path) -> None:
        """Keep the lake's folder."""
        self.kind = kind
        self._root = root

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Raise an error: a lake runs no statements."""
        raise NotImplementedError(sql)

    def tables(self, schema: str) -> list[str]:
        """Raise an error: histories ask the source alone."""
        raise NotImplementedError(schema)

    def facts(self, schema: str, table: str) -> Facts | None:
        """Return the facts about a table; None if there is none. Raises LakeUnread."""
        found = self.read(schema, table)
        if found is None:
            return None
        return Facts(
            types=found.types,
            key=frozenset(),
            nullable=frozenset(found.types.keys() - found.required),
        )

    def texts(self, schema: str, table: str, columns: Mapping[str, str]) -> list[Row]:
        """Return all rows as text. columns: kind of value by column. Raises LakeUnread."""
        found = self.read(schema, table)
        assert found is not None, "its facts were read"
        texts = [
            [_show(value, found.types[name], kind) for value in found.columns[name]]
            for name, kind in columns.items()
        ]
        return list(zip(*texts, strict=True))

    def has_row(self, schema: str, table: str, number: int) -> bool:
        """Return whether a table of numbers has this one; False if it cannot be read."""
        try:
            found = self.read(schema, table)
        except LakeUnread:
            return False
        return found is not None and number in found.columns["id"]

    def read(self, schema: str, table: str) -> Content | None:
        """Return a table; None if there is none. Raises LakeUnread."""
        try:
            return (
                self._read_delta(schema, table)
                if self.kind == DELTA
                else self._read_iceberg(schema, table)
            )
        except Exception as error:  # of readers of other makes, while a version is replaced
            raise LakeUnread(f"{schema}.{table}: {type(error).__name__}: {error}") from error

    def _read_delta(self, schema: str, table: str) -> Content | None:
        folder = self._root / _folder_name(schema) / _folder_name(table)
        if not (folder / "_delta_log").exists():
            return None
        try:
            opened = DeltaTable(str(folder))
            fields = opened.schema().fields
            types = {one.name: _type_of(one.type.type, DELTA) for one in fields}
            required = frozenset(one.name for one in fields if not one.nullable)
            builder = QueryBuilder().register("it", opened)
            rows = pa.table(builder.execute("select * from it").read_all())
        except DeltaError as error:
            if SPARK_ONLY.lower() not in str(error).lower():
                raise
            return _read_with_spark(folder)
        return Content(types, required, _values(rows), "delta-rs")

    def _read_iceberg(self, schema: str, table: str) -> Content | None:
        folder = self._root / NAMESPACE / schema / table / "metadata"
        hint = folder / "version-hint.text"
        if not hint.exists():
            return None
        opened = StaticTable.from_metadata(f"file://{folder}/v{hint.read_text()}.metadata.json")
        fields = opened.schema().fields
        types = {one.name: _type_of(str(one.field_type), self.kind) for one in fields}
        required = frozenset(one.name for one in fields if one.required)
        return Content(types, required, _values(opened.scan().to_arrow()), "pyiceberg")


def _folder_name(name: str) -> str:
    """Return the name of a folder, as docs/lake.md says."""
    return UNSAFE.sub(lambda found: "".join(f"~{b:02X}" for b in found[0].encode()), name)


def _type_of(name: str, kind: str) -> str:
    if name == ZONED.get(kind):
        return "timestamptz"
    return TYPES.get(name, name.replace(" ", ""))


def _values(rows: pa.Table) -> dict[str, list[Any]]:
    return dict(zip(rows.column_names, (one.to_pylist() for one in rows.columns), strict=True))


def _read_with_spark(folder: Path) -> Content:
    """Read a Delta table with Spark, every value as text."""
    spark = java_of(DELTA).spark
    spark.conf().set("spark.sql.session.timeZone", "UTC")
    frame = spark.read().format("delta").load(str(folder))
    fields = list(frame.schema().fields())
    types = {f.name(): _type_of(f.dataType().catalogString(), DELTA) for f in fields}
    required = frozenset(f.name() for f in fields if not f.nullable())
    listed = ", ".join(
        f"'\\\\x' || lower(hex({name}))" if types[one] == "binary" else f"cast({name} as string)"
        for one in types
        for name in ["`" + one.replace("`", "``") + "`"]
    )
    frame.createOrReplaceTempView("it")
    query = f"select to_json(collect_list(array({listed}))) from it"
    rows = json.loads(spark.sql(query).head().getString(0))
    columns = {name: [row[at] for row in rows] for at, name in enumerate(types)}
    return Content(types, required, columns, "spark")


def _show(value: Any, of_type: str, kind: str) -> str | None:
    """Return a value as text for the neutral rules. kind: of value."""
    match value:
        case None:
            return None
        case bool():
            return "t" if value else "f"
        case bytes():
            return f"\\x{value.hex()}"
        case Decimal() if kind != "bits":
            return format(value, "f")
        case datetime():
            return value.isoformat(" ").replace("+00:00", "+00")
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    if kind == "bits" and of_type != "string":
        return format(int(text), "b")
    return text


# -- types by docs/types.md

_DECIMAL = re.compile(r"(?:numeric|decimal|number)\((\d+),(\d+)\)")
_POSTGRES_TYPES = (
    (r"smallint$|integer$|(\w+\.)?(posint|small)$", "int32"),  # domains over them
    (r"(bigint|oid)$", "int64"),
    (r"real$", "float32"),
    (r"double precision$", "float64"),
    (r"boolean$", "bool"),
    (r"bytea$", "binary"),
    (r"date$", "date"),
    (r"timestamp(\(\d\))? without", "timestamp"),
    (r"timestamp(\(\d\))? with ", "timestamptz"),
)
_MYSQL_TYPES = (
    (r"bigint.*unsigned", "decimal(20,0)"),
    (r"bigint|int(\(\d+\))? unsigned|bit", "int64"),
    (r"tinyint|smallint|mediumint|int|year", "int32"),
    (r"float", "float32"),
    (r"double", "float64"),
    (r"(var)?binary|\w*blob", "binary"),
    (r"datetime", "timestamp"),
    (r"timestamp", "timestamptz"),
    (r"date", "date"),
)
_SQLSERVER_TYPES = (
    (r"bigint$", "int64"),
    (r"tinyint$|smallint$|int$", "int32"),
    (r"real$", "float32"),
    (r"float$", "float64"),
    (r"bit$", "bool"),
    (r"money$", "decimal(19,4)"),
    (r"(var)?binary", "binary"),
    (r"datetimeoffset", "timestamptz"),
    (r"datetime|smalldatetime", "timestamp"),
    (r"date$", "date"),
)
_ORACLE_TYPES = (
    (r"number\([1-9],0\)$", "int32"),
    (r"number\(1[0-8],0\)$", "int64"),
    (r"binary_float$", "float32"),
    (r"binary_double$", "float64"),
    (r"raw", "binary"),
    (r"timestamp(\(\d\))? with ", "timestamptz"),
    (r"timestamp|date$", "timestamp"),
)
_TYPES = {POSTGRES: _POSTGRES_TYPES, SQLSERVER: _SQLSERVER_TYPES, ORACLE: _ORACLE_TYPES}
_WIDER = {
    "int32": ("int64", "float64"),
    "float32": ("float64",),
    "date": ("timestamp",),
}


def lake_type(source: str, of_type: str) -> str:
    """Return the type that a lake's column has for a type of the source."""
    for pattern, found in _TYPES.get(source, _MYSQL_TYPES):
        if re.match(pattern, of_type):
            return found
    if parts := _DECIMAL.match(of_type):
        return f"decimal({parts[1]},{parts[2]})"
    return "string"


def is_type_kept(wanted: str, found: str) -> bool:
    """Return whether a lake's column has a type, or a wider one that it had before."""
    if found == wanted or found in _WIDER.get(wanted, ()):
        return True
    wide = re.fullmatch(r"decimal\((\d+),(\d+)\)", found)
    old = re.fullmatch(r"decimal\((\d+),(\d+)\)", wanted)
    if wide is None:
        return False
    digits, scale = int(wide[1]), int(wide[2])
    if old is None:
        return digits - scale >= {"int32": 10, "int64": 19}.get(wanted, 99)
    return scale >= int(old[2]) and digits - scale >= int(old[1]) - int(old[2])


class _AsInLake:
    """A source without the facts and values that a lake lacks."""

    def __init__(self, source: Side) -> None:
        self.kind = source.kind
        self.run, self.tables = source.run, source.tables
        self._source = source

    def facts(self, schema: str, table: str) -> Facts | None:
        """Return the facts, without the key."""
        found = self._source.facts(schema, table)
        return found and replace(found, key=frozenset())

    def texts(self, schema: str, table: str, columns: Mapping[str, str]) -> list[Row]:
        """Return all rows, with NULL for MySQL's days that are none, as the pipeline file says."""
        kinds = list(columns.values())
        return [
            tuple(
                None if kind == "moment" and value and value.startswith("0000-00-00") else value
                for kind, value in zip(kinds, row, strict=True)
            )
            for row in self._source.texts(schema, table, columns)
        ]


def lake_differences(
    source: Side, lake: LakeSide, schema: str, target_schema: str, table: str
) -> list[str]:
    """Return the differences of a table's copy in a lake; empty when it is equal."""
    try:
        ours, theirs = source.facts(schema, table), lake.facts(target_schema, table)
        found = differences(_AsInLake(source), lake, schema, target_schema, table)
    except LakeUnread as error:
        return [f"{table}: error {error}"]
    if ours is None or theirs is None:
        return found
    for name in ours.types.keys() & theirs.types.keys():
        wanted = lake_type(source.kind, ours.types[name])
        if not is_type_kept(wanted, theirs.types[name]):
            found.append(f"{table}: type of {name}, {ours.types[name]}, is {theirs.types[name]}")
    return found
