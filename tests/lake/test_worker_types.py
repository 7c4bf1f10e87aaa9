"""Values at the edges of every type, written by the workers and read by four readers.

A row with each value is inserted, updated, or deleted, so that values pass through data files,
deletions of each form, and rows that are completed with columns of their old ones.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from harness.lake import delta, iceberg
from harness.lake.positions import PositionTable, lake_columns
from harness.lake.spark import lake_session
from harness.pipelines.changes import Change, relation
from penstock.codec.columns import arrow_type
from penstock.codec.types import convert_values, map_lake_column
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.iceberg.table import IcebergTable
from penstock.engines.lake.format import LakeTable
from penstock.load.session import Session
from penstock.model import TableName
from plugins.shared import SharedSpark

UTC = dt.UTC
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001
CALENDAR = [FIRST, dt.datetime(1582, 10, 10, 1, 2, 3, 4), dt.datetime(1899, 12, 31), LAST]  # noqa: DTZ001
TEXTS = ["", "\0", " x ", "ä\u20ac\U0001f600", "'\"\\", "NULL", "z" * 400]
VALUES: dict[str, tuple[str, str, list[Any]]] = {
    "c_bool": ("boolean", "bool", [True, False]),
    "c_int16": ("smallint", "int16", [-(2**15), 2**15 - 1]),
    "c_int32": ("integer", "int32", [-(2**31), 2**31 - 1, 0]),
    "c_int64": ("bigint", "int64", [-(2**63), 2**63 - 1]),
    "c_oid": ("oid", "uint32", [0, 2**32 - 1]),
    "c_xid8": ("xid8", "uint64", [0, 2**64 - 1]),
    "c_float32": ("real", "float32", [0.5, -0.0, math.inf, -math.inf, math.nan]),
    "c_float64": ("double precision", "float64", [1e308, 5e-324, -0.0, math.inf, math.nan]),
    "c_small": ("numeric(5,2)", "decimal(5,2)", [Decimal("999.99"), Decimal("-0.01")]),
    "c_middle": ("numeric(18,0)", "decimal(18,0)", [Decimal(10**18 - 1), Decimal(-1)]),
    "c_wide": ("numeric(38,10)", "decimal(38,10)", [Decimal((0, (9,) * 38, -10)), Decimal(0)]),
    "c_number": ("numeric", "string", ["1e3", "0.00000000000000000000000000001", "NaN"]),
    "c_date": ("date", "date", [one.date() for one in CALENDAR]),
    "c_time": ("time without time zone", "time", [dt.time(0), dt.time(23, 59, 59, 999_999)]),
    "c_timestamp": ("timestamp without time zone", "timestamp", CALENDAR),
    "c_timestamptz": (
        "timestamp with time zone",
        "timestamptz",
        [one.replace(tzinfo=UTC) for one in CALENDAR],
    ),
    "c_uuid": ("uuid", "uuid", [bytes(16), bytes(range(240, 256))]),
    "c_bytes": ("bytea", "binary", [b"", b"\0\xff", bytes(range(256)) * 3]),
    "c_text": ("text", "string", TEXTS),
    "c_json": ("jsonb", "string", ['{"a": [1, null]}']),
    "c_array": ("integer[]", "string", ["{1,NULL,3}"]),
    "c_interval": ("interval", "string", ["1 year -2 days 03:04:05.6"]),
}
SHAPE = relation(
    ("id", "integer", "int32"), *((name, *kind) for name, (*kind, _) in VALUES.items())
)
ROW_COUNT = 2 * max(len(values) for *_, values in VALUES.values()) + 1


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Session with the classes of both formats."""
    shared_spark.close()
    with lake_session(tmp_path_factory.mktemp("spark")) as running:
        yield running


def row(number: int) -> tuple[Any, ...]:
    """Return a row with one value of each type; the last row has none."""
    if number == ROW_COUNT - 1:
        return (number, *([None] * len(VALUES)))
    return (number, *(values[number % len(values)] for *_, values in VALUES.values()))


def apply_batches(table: PositionTable) -> dict[int, tuple[Any, ...]]:
    """Insert all rows; delete one; change the ids of some, without sending their other columns."""
    rows = {number: row(number) for number in range(ROW_COUNT)}
    table.apply([Change(op="I", gsn=n + 1, after=one) for n, one in rows.items()], buckets=2)
    unsent = frozenset(range(1, len(SHAPE.columns)))
    changes = [Change(op="D", gsn=100, before=rows.pop(1))]
    for number in [one for one in rows if one % 2]:
        old = rows.pop(number)
        after = (number + 1000, *old[1:])
        rows[after[0]] = after
        changes.append(Change(op="U", gsn=100 + number, after=after, before=old, absent=unsent))
    table.apply(changes, buckets=2)
    assert table.found_count() == sum(one.required_count for one in table.staged) == len(changes)
    assert sum(one.completed_count for one in table.outcomes) == len(changes) - 1
    return rows


def list_columns(rows: dict[int, tuple[Any, ...]]) -> dict[str, list[str]]:
    """Return the columns as a lake has them, in the order of ids."""
    ordered = [rows[number] for number in sorted(rows)]
    found = {}
    for place, column in enumerate(SHAPE.columns):
        values = pa.array([one[place] for one in ordered], arrow_type(column.neutral))
        mapping = map_lake_column(column, "postgresql")
        lake = convert_values(values, mapping.type, neutral=column.neutral, mapping=mapping)
        found[column.name] = [show(value) for value in lake.to_pylist()]
    return found


def show(value: Any) -> str:
    """Return a value so that NaN equals NaN, and differs for each sign of zero."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat()
    return repr(value)


def check(found: dict[str, pa.Table], rows: dict[int, tuple[Any, ...]]) -> None:
    """Fail unless every reader read these rows."""
    wanted = list_columns(rows)
    for reader, table in found.items():
        ordered = table.sort_by("id").to_pydict()
        for name, values in wanted.items():
            assert [show(one) for one in ordered[name]] == values, (reader, name)


def test_delta_has_the_values_of_the_source(session: Session, tmp_path: Path) -> None:
    """Delta-rs, polars and Spark read what the log has."""
    catalogue = DELTA.open(f"delta+file://{tmp_path}/lake", session, {})
    lake = catalogue.create(TableName("public", "t"), lake_columns(SHAPE), key=["id"])
    table = PositionTable.of(lake, SHAPE)
    rows = apply_batches(table)
    check(delta.read_all(lake, session), rows)


@pytest.mark.parametrize("version", [2, 3])
def test_iceberg_has_the_values_of_the_source(
    session: Session, tmp_path: Path, version: int
) -> None:
    """pyiceberg, polars and Spark read what the log has."""
    place = iceberg.hadoop_place(tmp_path / "warehouse")
    place.register(session)
    catalogue = ICEBERG.open(place.url(version), session, {})
    lake: LakeTable = catalogue.create(TableName("public", "t"), lake_columns(SHAPE), key=["id"])
    table = PositionTable.of(lake, SHAPE)
    rows = apply_batches(table)
    check(iceberg.read_all(session, place, cast(IcebergTable, lake)), rows)
