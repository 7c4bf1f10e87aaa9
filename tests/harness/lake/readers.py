"""Rows of a lake's tables as readers of other makes see them, as texts that can be compared."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

Rows = list[tuple[str, ...]]


def text_of(value: Any) -> str:
    """Return a value as text that is the same for every reader."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return value.hex()
    return repr(bytes(value)) if isinstance(value, (bytes, memoryview)) else str(value)


def rows_of(table: Any) -> Rows:
    """Return the rows of an Arrow table, sorted."""
    columns = [column.to_pylist() for column in table.columns]
    return sorted(tuple(map(text_of, row)) for row in zip(*columns, strict=True))


def read_delta(folder: Path) -> pa.Table:
    """Read a Delta table with delta-rs."""
    builder = QueryBuilder().register("it", DeltaTable(str(folder)))
    return pa.table(builder.execute("select * from it").read_all())


def read_iceberg(folder: Path) -> pa.Table:
    """Read a table of a Hadoop catalogue with pyiceberg."""
    metadata = folder / "metadata"
    version = (metadata / "version-hint.text").read_text()
    found = StaticTable.from_metadata(f"file://{metadata}/v{version}.metadata.json")
    return found.scan().to_arrow()


class LakeReader:
    """Reader of a lake's tables, of another make than penstock's."""

    def __init__(self, kind: str, lake: Path) -> None:
        """Keep the place. kind: `delta` or `iceberg`. lake: its folder; of Iceberg the warehouse,
        whose namespace is `shop`.
        """
        self._read = read_delta if kind == "delta" else read_iceberg
        self._folder = lake if kind == "delta" else lake / "shop"

    def rows(self, schema: str, name: str) -> Rows:
        """Return the rows of a table; none while it does not exist."""
        try:
            return rows_of(self._read(self._folder / schema / name))
        except Exception:  # no table yet, or a file that is being replaced
            return []
