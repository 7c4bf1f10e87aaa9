"""Columns of the log as SQL Server's bulk copy takes them."""

from __future__ import annotations

import time
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from penstock.codec.arrow_texts import text_values
from penstock.codec.columns import arrow_type
from penstock.codec.sqlserver.arrow_rows import (
    DAYS_MAX,
    DAYS_MIN,
    MICROSECONDS_MAX,
    MICROSECONDS_MIN,
    UNSIGNED,
    ValueUnfit,
    sent_type,
    sent_values,
)

UNCHANGED = (
    pa.array([True, None]),
    pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
    pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
    pa.array([2**32 - 1, None], pa.uint32()),
    pa.array([1.5, -0.0, None], pa.float64()),
    pa.array([Decimal("9" * 38), None], pa.decimal128(38, 0)),
    pa.array([DAYS_MIN, DAYS_MAX, None], pa.int32()).cast(pa.date32()),
    pa.array([MICROSECONDS_MIN, MICROSECONDS_MAX, None], pa.int64()).cast(pa.timestamp("us")),
    pa.array([MICROSECONDS_MAX, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
    pa.array(["", " ", "a\0b", "\U0001f600", None]),
    pa.array([b"", b"\0", None]),
)


@pytest.mark.parametrize("values", UNCHANGED, ids=lambda values: str(values.type))
def test_values_that_the_driver_takes_pass_unchanged(values: pa.Array) -> None:
    """Most columns go to the driver as they are, up to the edges of SQL Server's types."""
    assert sent_values(values, "c") is values
    assert sent_type(values.type) == values.type


def test_unsigned_64_bits_become_a_decimal() -> None:
    """The driver refuses unsigned 64-bit integers."""
    sent = sent_values(pa.array([0, 2**64 - 1, None], pa.uint64()), "c")
    assert sent.type == UNSIGNED == sent_type(pa.uint64())
    assert sent.to_pylist() == [Decimal(0), Decimal(2**64 - 1), None]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.0, float("nan")], pa.float64()),
        pa.array([float("inf"), None], pa.float32()),
        pa.array([float("-inf")], pa.float64()),
        pa.array([DAYS_MIN - 1], pa.int32()).cast(pa.date32()),
        pa.array([DAYS_MAX + 1], pa.int32()).cast(pa.date32()),
        pa.array([MICROSECONDS_MIN - 1], pa.int64()).cast(pa.timestamp("us")),
        pa.array([MICROSECONDS_MAX + 1], pa.int64()).cast(pa.timestamp("us", "UTC")),
    ],
    ids=lambda values: f"{values.type}-{values.to_numpy(zero_copy_only=False)[-1]!r:.12}",
)
def test_values_without_a_place_are_refused_by_the_columns_name(values: pa.Array) -> None:
    """NaN, infinity and years outside 1 to 9999 are refused before the first row is sent."""
    with pytest.raises(ValueUnfit) as caught:
        sent_values(values, "price")
    assert caught.value.column == "price"


def test_no_value_and_only_nulls_are_sent() -> None:
    """Columns without a value pass every check."""
    for kind in ("float64", "date", "timestamptz", "uint64"):
        for values in ([], [None, None]):
            given = pa.array(values, arrow_type(kind))
            assert sent_values(given, "c").null_count == len(values)


def test_text_is_what_the_source_prints() -> None:
    """Columns that are staged as text."""
    key = UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")
    cases = [
        (pa.array([True, False, None]), ["1", "0", None]),
        (pa.array([1.5, float("nan"), float("inf"), float("-inf"), None]),
         ["1.5", "NaN", "Infinity", "-Infinity", None]),
        (pa.array([1, None], pa.timestamp("us", "UTC")), ["1970-01-01 00:00:00.000001", None]),
        (pa.array([key.bytes, None], pa.binary(16)), [str(key), None]),
        (pa.array(["a", None]), ["a", None]),
        (pa.array([Decimal("1.20")], pa.decimal128(5, 2)), ["1.20"]),
    ]  # fmt: skip
    for values, expected in cases:
        assert text_values(values).to_pylist() == expected


def test_ten_columns_cost_less_than_a_tenth_of_the_budget() -> None:
    """Converting alone: the budget of 5 microseconds for a row includes the driver."""
    rows = 100_000
    columns = [
        *(pa.array(np.arange(rows), pa.int64()) for _ in range(3)),
        pa.array(np.arange(rows, dtype=np.uint64)),
        *(pa.array(np.random.default_rng(1).random(rows)) for _ in range(2)),
        pa.array(np.arange(rows), pa.int64()).cast(pa.timestamp("us")),
        pa.array(np.arange(rows) % 9999, pa.int32()).cast(pa.date32()),
        *(pa.array([f"text {n}" for n in range(rows)]) for _ in range(2)),
    ]
    began = time.process_time()
    for values in columns:
        sent_values(values, "c")
    assert (time.process_time() - began) / rows < 0.5e-6
