"""Columns of an Ignite cache: which types hold which values, and values that are never cut."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.codec.ignite.columns import NotHeld, column_of, json_of, moment_text
from penstock.codec.ignite.kinds import holder, holds, neutral_of
from penstock.codec.ignite.values import BinaryObject, Date, JavaMap, SqlDate, Time, Timestamp


@pytest.mark.parametrize(
    ("kind", "values", "wider"),
    [
        ("tinyint", [127, 128], "smallint"),
        ("smallint", [-(2**15) - 1], "int"),
        ("int", [None, 2**31], "bigint"),
        ("bigint", [2**63], "decimal"),
        ("int", [1, "x"], "varchar"),
        ("bigint", [1.5], "varchar"),
        ("int", [1.5], "double"),
        ("double", [2**53 + 1], "varchar"),
        ("decimal(4,2)", [Decimal("1.234")], "decimal"),
        ("decimal(4,2)", [Decimal("123")], "decimal"),
        ("varchar(3)", ["abcd"], "varchar"),
        ("date", [SqlDate(1)], "timestamp"),
        ("timestamp", [Timestamp(0, 1)], "timestamp"),
        ("timestamp", [Date(2**62)], "timestamp"),
        ("time", [Time(-1)], "time"),
        ("boolean", [True, 1], "varchar"),
        ("uuid", [[1]], "object"),
    ],
)
def test_a_value_that_a_column_does_not_hold(kind: str, values: list[Any], wider: str) -> None:
    """The value is never cut, and the wider type holds it."""
    with pytest.raises(NotHeld) as error:
        column_of(kind, neutral_of(kind), values)
    assert error.value.kind == wider
    neutral = "string" if wider == kind else neutral_of(wider)
    assert len(column_of(wider, neutral, values)) == len(values)


def test_times_are_of_the_nodes_time_zone() -> None:
    """A SQL DATE is midnight there; moments do not depend on the zone."""
    berlin = datetime.datetime(2024, 7, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    ms = int(berlin.timestamp() * 1000)
    found = column_of("date", "date", [SqlDate(ms), None], "Europe/Berlin")
    assert found.to_pylist() == [datetime.date(2024, 7, 1), None]
    found = column_of("time", "time", [Time(0)], "Europe/Berlin")
    assert found.to_pylist() == [datetime.time(1)]
    moments = column_of("timestamp", "timestamptz", [Timestamp(ms, 5000), SqlDate(ms)])
    assert moments.cast(pa.int64()).to_pylist() == [ms * 1000 + 5, ms * 1000]


@pytest.mark.parametrize(
    ("ms", "nanos", "shown"),
    [
        (0, 0, "1970-01-01 00:00:00+00"),
        (-1, 999_999, "1969-12-31 23:59:59.999999999+00"),
        (1_709_210_096_120, 0, "2024-02-29 12:34:56.12+00"),
        (-62_135_596_800_000, 0, "0001-01-01 00:00:00+00"),
        (-62_135_596_800_001, 0, "0001-12-31 23:59:59.999+00 BC"),
        (253_402_300_800_000, 0, "10000-01-01 00:00:00+00"),
    ],
)
def test_moments_as_text(ms: int, nanos: int, shown: str) -> None:
    """Moments of any year are printed with all digits."""
    assert moment_text(ms, nanos) == shown


def test_json_of_what_has_no_column_type() -> None:
    """JSON loses no value that it can express; a value that contains itself ends."""
    inner = BinaryObject("t", 1, 2, {"a": Decimal("1.10"), "b": None}, {}, None)
    loop: list[Any] = [1]
    loop.append(loop)
    pairs = JavaMap("HashMap", [(1, "x"), ("y", b"\1")])
    value = [inner, float("nan"), pairs, JavaMap("HashMap", [("k", True)]), loop, "\0"]
    assert json_of(value) == (
        '[{"a":1.10,"b":null},"nan",[[1,"x"],["y","AQ=="]],{"k":true},[1,{"$up":1}],"\\u0000"]'
    )


def test_a_type_that_holds_another() -> None:
    """Every wider type holds what it was chosen for."""
    kinds = ["boolean", "tinyint", "int", "bigint", "real", "double", "decimal", "decimal(9,2)",
             "varchar", "varchar(9)", "uuid", "binary", "date", "timestamp", "time", "enum",
             "object", "other"]  # fmt: skip
    for one in kinds:
        for other in kinds:
            found = holder([one, other])
            assert found == holder([other, one])
            assert holds(found, one), (found, one, other)
            assert holds(found, other), (found, one, other)
    assert holds("decimal(12,2)", "decimal(9,2)")
    assert not holds("decimal(9,4)", "decimal(9,2)")
