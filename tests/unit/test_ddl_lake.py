"""Comparison of a lake with the source in random histories: it finds planted differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from harness.pipelines.ddl_lake import LakeSide, is_type_kept, lake_differences, lake_type, lake_url
from harness.pipelines.ddl_lake_java import DELTA, ICEBERG_2
from harness.pipelines.ddl_sides import Facts, Row
from penstock.engines.lake.url import parse_url

TYPES = {
    "id": "integer",
    "price": "numeric(10,2)",
    "any": "numeric",
    "at": "timestamp with time zone",
    "day": "date",
    "raw": "bytea",
    "ok": "boolean",
    "bits": "bit(8)",
}
ROW: Row = ("1", "1.50", "2.5", "2024-01-02 03:04:05.5+00", "2024-01-02", "\\x00ff", "t", "0101")
COPY: Mapping[str, Any] = {
    "id": pa.array([1], pa.int32()),
    "price": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
    "any": pa.array(["2.5"]),
    "at": pa.array([datetime(2024, 1, 2, 3, 4, 5, 500_000, UTC)], pa.timestamp("us", "UTC")),
    "day": pa.array([date(2024, 1, 2)]),
    "raw": pa.array([b"\x00\xff"]),
    "ok": pa.array([True]),
    "bits": pa.array(["0101"]),
}


@dataclass
class Source:
    """A PostgreSQL server with one table."""

    rows: list[Row] = field(default_factory=lambda: [ROW])
    kind: str = "postgres"

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Raise an error: nothing runs here."""
        raise NotImplementedError(sql)

    def tables(self, schema: str) -> list[str]:
        """Return the table."""
        return [f"{schema} t"]

    def facts(self, schema: str, table: str) -> Facts | None:
        """Return the facts, with a key that a lake lacks."""
        nullable = frozenset(TYPES.keys() - {"id"})
        return Facts(types=TYPES, key=frozenset({"id"}), nullable=nullable)

    def texts(self, schema: str, table: str, columns: Mapping[str, str]) -> list[Row]:
        """Return the rows."""
        places = [list(TYPES).index(name) for name in columns]
        return [tuple(row[place] for place in places) for row in self.rows]


def compare(folder: Path, copy: Mapping[str, Any], rows: list[Row] | None = None) -> list[str]:
    """Write a copy, and return how it differs from the source."""
    write_deltalake(str(folder / "t0" / "or~20der"), pa.table(dict(copy)))
    source = Source() if rows is None else Source(rows)
    return lake_differences(source, LakeSide(DELTA, folder), "h0", "t0", "or der")


def test_an_equal_copy_has_no_differences(tmp_path: Path) -> None:
    """All types are compared by the source's rules."""
    assert compare(tmp_path, COPY) == []


@pytest.mark.parametrize(
    ("name", "other", "line"),
    [
        ("id", pa.array([2], pa.int32()), "has id='2'"),
        ("price", pa.array([Decimal("1.51")], pa.decimal128(10, 2)), "price='1.51'"),
        ("at", pa.array([datetime(2024, 1, 2, 3, 4, 5, 0, UTC)], pa.timestamp("us", "UTC")), "has"),
        ("raw", pa.array([b"\x00"]), "has"),
        ("ok", pa.array([None], pa.bool_()), "ok=None"),
        ("id", pa.array([1], pa.int64()), ""),
        ("price", pa.array(["1.50"]), "type of price"),
        ("at", COPY["at"].cast(pa.timestamp("us")), "type of at"),
        ("any", pa.array([Decimal("2.50")], pa.decimal128(10, 2)), "type of any"),
    ],
)
def test_another_value_or_type_is_found(tmp_path: Path, name: str, other: Any, line: str) -> None:
    """A copy with another value or type differs; a wider type does not."""
    found = compare(tmp_path, {**COPY, name: other})
    assert bool(found) is bool(line)
    assert line in " ".join(found)


def test_missing_rows_columns_and_tables_are_found(tmp_path: Path) -> None:
    """A row too few, one too many, a column that is gone, and a table that is gone."""
    assert "lacks" in compare(tmp_path / "a", COPY, [ROW, ROW])[0]
    assert "has" in compare(tmp_path / "b", COPY, [])[0]
    short = {name: values for name, values in COPY.items() if name != "bits"}
    assert "columns" in compare(tmp_path / "c", short)[0]
    lake = LakeSide(DELTA, tmp_path / "nowhere")
    assert "no such table" in lake_differences(Source(), lake, "h0", "t0", "or der")[0]


def test_an_unreadable_table_is_a_difference(tmp_path: Path) -> None:
    """A log that no reader understands is told, not taken for an empty table."""
    log = tmp_path / "t0" / "or~20der" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{}")
    lake = LakeSide(DELTA, tmp_path)
    assert "error" in lake_differences(Source(), lake, "h0", "t0", "or der")[0]


@pytest.mark.parametrize(
    ("source", "of_type", "wanted"),
    [
        ("postgres", "smallint", "int32"),
        ("postgres", "integer[]", "string"),
        ("postgres", "timestamp(3) without time zone", "timestamp"),
        ("postgres", "time without time zone", "string"),
        ("mysql", "bigint(20) unsigned", "decimal(20,0)"),
        ("mysql", "int unsigned", "int64"),
        ("mysql", "bit(8)", "int64"),
        ("mariadb", "timestamp", "timestamptz"),
        ("mariadb", "datetime(3)", "timestamp"),
        ("mariadb", "enum('a','b')", "string"),
        ("mysql", "varbinary(20)", "binary"),
        ("mysql", "decimal(14,4)", "decimal(14,4)"),
    ],
)
def test_types_are_those_of_the_documents(source: str, of_type: str, wanted: str) -> None:
    """The types are those of docs/types.md."""
    assert lake_type(source, of_type) == wanted


def test_only_wider_types_may_stay() -> None:
    """A column keeps a type that holds more than the source's."""
    assert is_type_kept("int32", "int64")
    assert is_type_kept("decimal(10,2)", "decimal(14,4)")
    assert is_type_kept("int64", "decimal(20,0)")
    assert not is_type_kept("int64", "int32")
    assert not is_type_kept("decimal(14,4)", "decimal(14,2)")
    assert not is_type_kept("timestamp", "timestamptz")


def test_urls_name_the_format(tmp_path: Path) -> None:
    """URLs of the harness are those that a pipeline file may have."""
    assert parse_url(lake_url(DELTA, tmp_path)).root == f"file://{tmp_path}"
    iceberg = parse_url(lake_url(ICEBERG_2, tmp_path))
    assert iceberg.format_version == 2
    assert iceberg.properties["warehouse"] == str(tmp_path)
