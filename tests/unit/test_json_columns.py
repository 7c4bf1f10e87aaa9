"""Values of the log as changefeeds write them in JSON."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.codec.columns import arrow_type
from penstock.codec.json_columns import json_values
from penstock.model import Column

MOMENT = datetime.datetime(2024, 2, 29, 10, 20, 30, 500_000)  # noqa: DTZ001 - as the log has it


@pytest.mark.parametrize(
    ("source_type", "neutral", "value", "expected"),
    [
        ("integer", "int32", -7, "-7"),
        ("bigint unsigned", "uint64", 2**64 - 1, "18446744073709551615"),
        ("boolean", "bool", True, "true"),
        ("real", "float32", 0.1, "0.1"),
        ("double precision", "float64", 1e300, "1e+300"),
        ("double precision", "float64", math.nan, '"NaN"'),
        ("double precision", "float64", -math.inf, '"-Infinity"'),
        ("numeric(10,2)", "decimal(10,2)", Decimal("4.50"), "4.50"),
        ("numeric(10,2)", "decimal(10,2)", Decimal("0.00"), "0.00"),
        ("numeric", "string", "400.0000", "400.0000"),
        ("numeric", "string", "NaN", '"NaN"'),
        ("integer", "string", "12", "12"),
        ("text", "string", 'a "b" \\ ä', '"a \\"b\\" \\\\ ä"'),
        ("text", "string", "12", '"12"'),
        ("bytea", "binary", b"\x00\xff", '"\\\\x00ff"'),
        ("uuid", "uuid", bytes(range(16)), '"00010203-0405-0607-0809-0a0b0c0d0e0f"'),
        ("date", "date", datetime.date(2024, 2, 29), '"2024-02-29"'),
        ("time", "time", datetime.time(4, 5, 6, 789_000), '"04:05:06.789"'),
        ("timestamp", "timestamp", MOMENT, '"2024-02-29T10:20:30.5"'),
        ("timestamptz", "timestamptz", MOMENT, '"2024-02-29T10:20:30.5Z"'),
        ("timestamp", "string", "infinity", '"infinity"'),
        ("bit(4)", "uint64", 11, '"1011"'),
        ("interval", "string", "1 year 2 mons", '"1 year 2 mons"'),
        ("jsonb", "string", '{"a": [1, null]}', '{"a": [1, null]}'),
        ("integer[]", "string", "{1,NULL,3}", "[1,null,3]"),
        ("integer[]", "string", "[0:1]={1,2}", "[1,2]"),
        ("numeric[]", "string", "{1.50,NaN}", '[1.50,"NaN"]'),
        ("boolean[]", "string", "{t,f,NULL}", "[true,false,null]"),
        ("text[]", "string", '{a,"b, \\"c\\"",NULL,"{}"}', '["a","b, \\"c\\"",null,"{}"]'),
        ("text[]", "string", '{"NULL"}', '["NULL"]'),
        ("text[]", "string", "{}", "[]"),
        ("text[]", "string", "{{a},{b}}", '[["a"],["b"]]'),
        ("text[]", "string", "{a", '"{a"'),
    ],
)  # fmt: skip
def test_a_value_is_written_as_a_changefeed_does(
    source_type: str, neutral: str, value: Any, expected: str
) -> None:
    """JSON has bare numbers, and strings for what it lacks; a NULL is null."""
    column = Column(name="c", source_type=source_type, neutral=neutral)
    found = json_values(pa.array([value, None], arrow_type(neutral)), column)
    assert found[1] is None
    text = msgspec.json.encode(found[0]).decode()
    assert text == expected
    json.loads(text)


def test_a_domain_is_what_is_below_it() -> None:
    """The domain's own name is ignored."""
    column = Column(name="c", source_type="public.tags", base_type="text[]", neutral="string")
    assert json_values(pa.array(["{a}"]), column) == [["a"]]
