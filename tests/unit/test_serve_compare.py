"""Comparisons as PostgreSQL makes them: NaN, -0, reals and doubles, constants in quotes."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from harness.servers.sql_compare import conditions, relation_of
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import Column, Relation
from penstock.serve.catalog.types import FLOAT4, FLOAT8, INT4, NUMERIC
from penstock.serve.compare import read_constant
from penstock.serve.row_filter import row_filter


def shape(*columns: tuple[str, str, str]) -> Relation:
    """Return a table of these columns: name, type, neutral type."""
    return Relation(
        schema="public",
        name="item",
        columns=tuple(Column(name=a, source_type=b, neutral=c) for a, b, c in columns),
        key=(0,),
        before=(0,),
    )


NUMBERS = shape(("d", "double precision", "float64"), ("r", "real", "float32"))
DOUBLES = [1.0, math.nan, math.inf, -math.inf, -0.0, None]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("d = 'NaN'", [0, 1, 0, 0, 0, 0]),
        ("d <> 'NaN'", [1, 0, 1, 1, 1, 0]),
        ("d > 1e300", [0, 1, 1, 0, 0, 0]),
        ("d > 'Infinity'", [0, 1, 0, 0, 0, 0]),
        ("d >= 'NaN'", [0, 1, 0, 0, 0, 0]),
        ("d < 'NaN'", [1, 0, 1, 1, 1, 0]),
        ("d <= 'NaN'", [1, 1, 1, 1, 1, 0]),
        ("d = 0", [0, 0, 0, 0, 1, 0]),
        ("d < 0", [0, 0, 0, 1, 0, 0]),
        ("d in ('NaN', 1)", [1, 1, 0, 0, 0, 0]),
        ("d not in ('NaN', 1)", [0, 0, 1, 1, 1, 0]),
        ("d between 1 and 'NaN'", [1, 1, 1, 0, 0, 0]),
        ("d is distinct from 'NaN'", [1, 0, 1, 1, 1, 1]),
        ("d is not distinct from 'NaN'", [0, 1, 0, 0, 0, 0]),
        ("d = r", [1, 1, 1, 1, 1, 0]),
        ("r < d", [0, 0, 0, 0, 0, 0]),
        ("not (d < 1)", [1, 1, 1, 0, 0, 0]),
    ],
)
def test_numbers_that_are_not_finite(condition: str, kept: list[int]) -> None:
    """NaN equals itself and is above all others, as in the server's trees."""
    columns = {"d": pa.array(DOUBLES), "r": pa.array(DOUBLES, pa.float32())}
    found = row_filter(condition, NUMBERS).keeps(columns)
    assert found.to_pylist() == [bool(one) for one in kept]


@pytest.mark.parametrize(
    ("condition", "is_kept"),
    [
        ("r = 0.1", False),  # as double precision
        ("r = '0.1'", True),  # as real
        ("r = '0.1'::float8", False),
        ("r in (0.1)", False),
        ("r in (0.1, 0.2)", True),  # an array of real
        ("r not in (0.1, 0.2)", False),
        ("r > 0.1", True),
        ("r = d", False),
    ],
)
def test_a_real_beside_other_numbers(condition: str, is_kept: bool) -> None:
    """A real is compared as double precision, except with reals and what is read as a real."""
    columns = {"d": pa.array([0.1]), "r": pa.array([0.1], pa.float32())}
    assert row_filter(condition, NUMBERS).keeps(columns).to_pylist() == [is_kept]


def test_a_real_is_rounded_once() -> None:
    """The number is not rounded to a double first, which would round it in the other direction."""
    text = "1.00000017881393432617187499"
    assert read_constant(text, FLOAT4).as_py() == float(np.float32(1.0000001))
    assert read_constant(text, FLOAT4).as_py() != float(np.float32(float(text)))


@pytest.mark.parametrize(
    ("column", "values", "condition", "kept"),
    [
        (("i", "bigint", "int64"), [2**63 - 1, 0], "i = 9223372036854775807", [True, False]),
        (("i", "bigint", "int64"), [2**63 - 1, 0], "i < 9223372036854775807.5", [True, True]),
        (("i", "integer", "int32"), [1, 2], "i < 1e1", [True, True]),
        (("i", "integer", "int32"), [1, 2], "i = '2'", [False, True]),
        (("i", "numeric(20,0)", "uint64"), [2**64 - 1, 1], "i > -1", [True, True]),
        (("i", "numeric(20,0)", "uint64"), [2**64 - 1, 1], f"i = {2**64 - 1}", [True, False]),
        (("n", "numeric(9,3)", "decimal(9,3)"), [Decimal("1.500"), None], "n = 1.5", [True, False]),
        (("b", "boolean", "bool"), [True, False], "b = 'ye'", [True, False]),
        (("b", "boolean", "bool"), [True, False], "b < true", [False, True]),
        (("t", "text", "string"), ["a", "A"], "t like 'A'", [False, True]),
    ],
)  # fmt: skip
def test_values_at_their_edges(
    column: tuple[str, str, str], values: list[Any], condition: str, kept: list[bool]
) -> None:
    """Values are compared exactly, whatever the types of both sides are."""
    kinds = {"int64": pa.int64(), "int32": pa.int32(), "uint64": pa.uint64(), "bool": pa.bool_()}
    kind = kinds.get(column[2], pa.decimal128(9, 3) if column[0] == "n" else pa.string())
    found = row_filter(condition, shape(column)).keeps({column[0]: pa.array(values, kind)})
    assert found.to_pylist() == kept


@pytest.mark.parametrize(
    "condition",
    [
        "i = '1_0'",
        "i = '٣'",
        "i = '1.0'",
        "d = n",
        "d = '0x10'",
        "d = 1e309",
        "d = '1e309'",
        "r = '1e39'",
        "g = '00000000 0000 0000 0000 000000000001'",
        "s = '2024-02-29 10:00:00+05'",
        "s = 'yesterday'",
        "z = '2024-02-29 10:00:00'",
        "t like 'a\\'",
        "t like t",
        "other.i = 1",
        "ctid = '(0,1)'",
    ],
)
def test_constants_that_are_refused(condition: str) -> None:
    """The server does not read their form or needs a setting, or penstock does not read it."""
    table = shape(
        ("i", "integer", "int32"),
        ("d", "double precision", "float64"),
        ("r", "real", "float32"),
        ("n", "numeric(9,3)", "decimal(9,3)"),
        ("g", "uuid", "uuid"),
        ("s", "timestamp without time zone", "timestamp"),
        ("z", "timestamp with time zone", "timestamptz"),
        ("t", "text", "string"),
    )
    with pytest.raises(Refused):
        row_filter(condition, table)


@pytest.mark.parametrize("text", ["", "1e", ".", "1..2", "NaN", "1e999999999", "9" * 5000])
@pytest.mark.parametrize("oid", [INT4, NUMERIC, FLOAT8])
def test_numbers_that_are_none(text: str, oid: int) -> None:
    """Such texts are refused, or are not a number where the type has one."""
    if (text, oid) == ("NaN", FLOAT8):
        assert math.isnan(read_constant(text, oid).as_py())
        return
    with pytest.raises((ValueError, ArithmeticError)):
        read_constant(text, oid)


def test_no_condition_ends_in_another_error() -> None:
    """The conditions are all those that are compared with a server, over a table without rows."""
    table, values = relation_of([])
    for condition in conditions(1, 200):
        try:
            assert row_filter(condition, table).keeps(values).to_pylist() == []
        except Refused:
            continue
