"""Columns of SQL Server's rows: what is selected, and what the driver's Arrow becomes."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.codec.sqlserver.columns import (
    SourceColumn,
    ValueBroken,
    ewkb_hex,
    make_columns,
    select_expression,
)
from penstock.codec.sqlserver.types import catalogue_type, neutral_type, parse_type

SAMPLES = Path(__file__).parents[1] / "data" / "sqlserver_cdc_samples.jsonl"


def make(type_text: str, values: list[Any], kind: pa.DataType, neutral: str = "") -> Any:
    """Return the columns of one column's values."""
    batch = pa.record_batch({"v": pa.array(values, kind)})
    return make_columns(batch, [SourceColumn.of("v", type_text, neutral)])


def values_of(type_text: str, values: list[Any], kind: pa.DataType, neutral: str = "") -> list[Any]:
    """Return the values that a column has in the log."""
    array = make(type_text, values, kind, neutral).arrays[0]
    if pa.types.is_timestamp(array.type):
        return list(array.cast(pa.int64()).to_pylist())
    return list(array.to_pylist())


TEXT, BYTES = pa.large_string(), pa.large_binary()


@pytest.mark.parametrize(
    ("type_text", "kind", "given", "neutral", "expected"),
    [
        ("bit", pa.bool_(), [True, False, None], "bool", [True, False, None]),
        ("tinyint", pa.uint8(), [0, 255, None], "int16", [0, 255, None]),
        ("smallint", pa.int16(), [-32768, 32767], "int16", [-32768, 32767]),
        ("int", pa.int32(), [-(2**31), 2**31 - 1], "int32", [-(2**31), 2**31 - 1]),
        ("bigint", pa.int64(), [-(2**63), 2**63 - 1], "int64", [-(2**63), 2**63 - 1]),
        (
            "decimal(38,10)",
            pa.decimal128(38, 10),
            [Decimal("-1234567890123456789012345678.0123456789"), None],
            "decimal(38,10)",
            [Decimal("-1234567890123456789012345678.0123456789"), None],
        ),
        (
            "decimal(38,38)",
            pa.decimal128(38, 38),
            [Decimal(f"0.{'9' * 38}")],
            "decimal(38,38)",
            [Decimal(f"0.{'9' * 38}")],
        ),
        (
            "money",
            pa.decimal128(19, 4),
            [Decimal("922337203685477.5807"), Decimal("-922337203685477.5808")],
            "decimal(19,4)",
            [Decimal("922337203685477.5807"), Decimal("-922337203685477.5808")],
        ),
        (
            "smallmoney",
            pa.decimal128(10, 4),
            [Decimal("-214748.3648"), Decimal("214748.3647")],
            "decimal(10,4)",
            [Decimal("-214748.3648"), Decimal("214748.3647")],
        ),
        (
            "float",
            pa.float64(),
            [1.7976931348623157e308, -2.2250738585072014e-308, -0.0],
            "float64",
            [1.7976931348623157e308, -2.2250738585072014e-308, -0.0],
        ),
        ("real", pa.float32(), [3.4028234663852886e38], "float32", [3.4028234663852886e38]),
        (
            "date",
            pa.date32(),
            [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
            "date",
            [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
        ),
        (
            "time(7)",
            pa.time64("ns"),
            [86_399_999_999_000, 0, None],
            "time",
            [dt.time(23, 59, 59, 999_999), dt.time(0), None],
        ),
        (
            "datetime",
            pa.timestamp("us"),
            [-6_847_804_800_000_000, 1_772_600_767_997_000],
            "timestamp",
            [-6_847_804_800_000_000, 1_772_600_767_997_000],
        ),
        ("char(4)", TEXT, ["ab  ", "", None], "string", ["ab  ", "", None]),
        ("nchar(4)", TEXT, ["é😀 "], "string", ["é😀 "]),
        ("nvarchar(max)", TEXT, ["你好😀", "a\0b"], "string", ["你好😀", "a\0b"]),
        ("xml", TEXT, ['<a b="1"/>'], "string", ['<a b="1"/>']),
        ("binary(4)", BYTES, [b"\1\2\0\0", None], "binary", [b"\1\2\0\0", None]),
        ("varbinary(max)", BYTES, [b"", b"\xff\0"], "binary", [b"", b"\xff\0"]),
        ("rowversion", BYTES, [bytes(6) + b"\7\xd1"], "binary", [bytes(6) + b"\7\xd1"]),
        ("hierarchyid", TEXT, ["/1/2/"], "string", ["/1/2/"]),
        ("sql_variant", TEXT, ["int:5", None], "string", ["int:5", None]),
    ],
)
def test_values_of_each_type(
    type_text: str, kind: pa.DataType, given: list[Any], neutral: str, expected: list[Any]
) -> None:
    """The extremes of a type arrive as they are, in the type's neutral type."""
    found = make(type_text, given, kind)
    assert found.as_text == ()
    assert SourceColumn.of("v", type_text).neutral == neutral
    assert values_of(type_text, given, kind) == expected


def test_a_guid_has_the_bytes_of_its_text() -> None:
    """SQL Server's own order of bytes is another one."""
    text = "6F9619FF-8B86-D011-B42D-00C04FC964FF"
    found = values_of("uniqueidentifier", [text, None, text.lower()], TEXT)
    assert found == [uuid.UUID(text).bytes, None, uuid.UUID(text).bytes]


@pytest.mark.parametrize("text", ["6F9619FF-8B86-D011-B42D-00C04FC964F", "g" * 36])
def test_a_broken_guid_is_refused(text: str) -> None:
    """Neither a digit that is missing nor one that does not exist is guessed."""
    with pytest.raises(ValueBroken, match="column v of type uniqueidentifier"):
        make("uniqueidentifier", [text], TEXT)


@pytest.mark.parametrize("separator", ["T", " "])
def test_seven_digits_of_a_datetime2(separator: str) -> None:
    """The first value with a seventh digit turns the column into exact text; none is rounded."""
    texts = [f"0001-01-01{separator}00:00:00", f"2026-03-04{separator}05:06:07.123456", None]
    found = make("datetime2(7)", texts, TEXT)
    assert found.as_text == ()
    assert found.columns[0].neutral == "timestamp"
    assert values_of("datetime2(7)", texts, TEXT) == [
        -62_135_596_800_000_000,
        1_772_600_767_123_456,
        None,
    ]
    finer = make("datetime2(7)", [*texts, f"9999-12-31{separator}23:59:59.9999999"], TEXT)
    assert finer.as_text == (0,)
    assert finer.columns[0].neutral == "string"
    assert finer.arrays[0].to_pylist() == [
        "0001-01-01 00:00:00",
        "2026-03-04 05:06:07.123456",
        None,
        "9999-12-31 23:59:59.9999999",
    ]
    # Later batches continue as text, also without such a value.
    assert values_of("datetime2(7)", texts[:1], TEXT, "string") == ["0001-01-01 00:00:00"]


def test_seven_digits_of_a_time() -> None:
    """A time(7) becomes text, too."""
    found = make("time(7)", [86_399_999_999_900, None, 36_000_000_000_000], pa.time64("ns"))
    assert found.as_text == (0,)
    assert found.arrays[0].to_pylist() == ["23:59:59.9999999", None, "10:00:00"]


def test_a_datetimeoffset_keeps_its_offset() -> None:
    """Moments that are equal in UTC stay different; zeros at the end of a fraction are left out."""
    texts = [
        "2026-03-04T05:06:07.1234567+05:30",
        "2026-03-03T23:36:07.1234567+00:00",
        "0001-01-01T00:00:00-14:00",
        "9999-12-31T23:59:59.5000000 +14:00",
        None,
    ]
    assert values_of("datetimeoffset(7)", texts, TEXT) == [
        "2026-03-04 05:06:07.1234567+05:30",
        "2026-03-03 23:36:07.1234567+00:00",
        "0001-01-01 00:00:00-14:00",
        "9999-12-31 23:59:59.5+14:00",
        None,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-29T00:00:00+00:00",  # no leap year
        "2026-13-01T00:00:00+00:00",
        "0000-01-01T00:00:00+00:00",
        "2026-01-01T24:00:00+00:00",
        "2026-01-01T00:00:00+14:01",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00.+00:00",
        "2026-01-01T00:00:00.12345678+00:00",
        "2026-01-01T00:0x:00+00:00",
        "",
    ],
)
def test_a_broken_moment_is_refused(text: str) -> None:
    """Any other text is an error that names the column."""
    with pytest.raises(ValueBroken, match=r"column v of type datetimeoffset\(7\)"):
        make("datetimeoffset(7)", [text], TEXT)


def test_a_null_column_keeps_its_type() -> None:
    """A column without a value has the neutral type, whatever the driver says of it."""
    for type_text in ("int", "datetimeoffset(7)", "uniqueidentifier", "datetime2(7)", "money"):
        found = make(type_text, [None, None], pa.null())
        assert found.arrays[0].null_count == 2
        assert found.arrays[0].type == make(type_text, [None], TEXT).arrays[0].type


def test_slices_of_a_batch() -> None:
    """A slice has its own rows only, in every conversion that looks at bytes."""
    texts = ["2026-03-04T05:06:07+05:30", None, "2026-03-04T05:06:08+05:30"]
    guids = ["6F9619FF-8B86-D011-B42D-00C04FC964FF", "0" * 8 + "-0000-0000-0000-" + "0" * 12, None]
    batch = pa.record_batch({"o": pa.array(texts, TEXT), "g": pa.array(guids, TEXT)}).slice(1)
    columns = [SourceColumn.of("o", "datetimeoffset(0)"), SourceColumn.of("g", "uniqueidentifier")]
    found = make_columns(batch, columns)
    assert [one.to_pylist() for one in found.arrays] == [
        [None, "2026-03-04 05:06:08+05:30"],
        [bytes(16), None],
    ]


def test_ewkb_of_a_geometry() -> None:
    """The SRID is in EWKB; without one, EWKB is WKB."""
    wkb = "0101000000000000000000244000000000000 0F03F".replace(" ", "")
    assert ewkb_hex(f"0:{wkb}") == wkb.lower()
    assert ewkb_hex(f"4326:{wkb}") == "0101000020e6100000" + wkb[10:].lower()
    for text in ("", "4326", ":", "x:01", "4326:0001", f"-1:{wkb}", "1:zz"):
        with pytest.raises(ValueBroken):
            ewkb_hex(text)


@pytest.mark.parametrize(
    ("type_text", "expression"),
    [
        ("int", "[a]]b]"),
        ("datetime2(6)", "[a]]b]"),
        ("datetime2(7)", "CONVERT(varchar(34), [a]]b], 126) AS [a]]b]"),
        ("datetimeoffset(0)", "CONVERT(varchar(34), [a]]b], 126) AS [a]]b]"),
        ("hierarchyid", "[a]]b].ToString() AS [a]]b]"),
        ("json", "CONVERT(nvarchar(max), [a]]b]) AS [a]]b]"),
    ],
)
def test_select_expressions(type_text: str, expression: str) -> None:
    """Only what the driver would lose is printed by the server; names are quoted."""
    assert select_expression(SourceColumn.of("a]b", type_text)) == expression


def test_a_variant_is_printed_with_its_base_type() -> None:
    """The name is quoted everywhere, and each type with hidden digits has a style."""
    text = select_expression(SourceColumn.of("v", "sql_variant"))
    assert text.endswith("END AS [v]")
    assert "{" not in text
    for part in ("CONVERT(money, [v]), 2)", "CONVERT(float, [v]), 3)", "[v]), 126)"):
        assert part in text


@pytest.mark.parametrize(
    ("text", "printed", "neutral"),
    [
        ("NVARCHAR(40)", "nvarchar(40)", "string"),
        ("varchar(MAX)", "varchar(max)", "string"),
        ("numeric(12, 2)", "decimal(12,2)", "decimal(12,2)"),
        ("decimal", "decimal(18,0)", "decimal(18,0)"),
        ("decimal(5)", "decimal(5,0)", "decimal(5,0)"),
        ("timestamp", "rowversion", "binary"),
        ("datetime2", "datetime2(7)", "timestamp"),
        ("datetimeoffset(3)", "datetimeoffset(3)", "string"),
        ("float(24)", "real", "float32"),
        ("float(53)", "float", "float64"),
        ("char", "char(1)", "string"),
        ("sysname", "nvarchar(128)", "string"),
        ("double precision", "float", "float64"),
        ("shop.point type", "shop.point type", "string"),
    ],
)
def test_texts_of_types(text: str, printed: str, neutral: str) -> None:
    """Synonyms have one text, and a printed type is read as itself."""
    assert parse_type(text).text == printed
    assert parse_type(printed) == parse_type(text)
    assert neutral_type(text) == neutral


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (("nvarchar", 80, 0, 0), "nvarchar(40)"),
        (("nvarchar", -1, 0, 0), "nvarchar(max)"),
        (("varchar", 50, 0, 0), "varchar(50)"),
        (("decimal", 17, 38, 10), "decimal(38,10)"),
        (("datetime2", 8, 27, 7), "datetime2(7)"),
        (("time", 3, 8, 0), "time(0)"),
        (("int", 4, 10, 0), "int"),
        (("timestamp", 8, 0, 0), "rowversion"),
        (("real", 4, 24, 0), "real"),
    ],
)
def test_types_of_the_catalogue(row: tuple[str, int, int, int], text: str) -> None:
    """A row of sys.columns has lengths in bytes."""
    assert catalogue_type(*row).text == text


def _driver_value(type_text: str, value: Any) -> Any:
    """Return a recorded value as the driver returns it for `select_expression`."""
    if not isinstance(value, dict):
        return value
    ((tag, text),) = value.items()
    if tag == "$hex":
        return bytes.fromhex(text)
    if tag == "$num":
        return Decimal(text)
    if tag == "$date":
        return dt.date.fromisoformat(text)
    if tag == "$time":
        hour, minute, rest = text.split(":")
        ticks = round(Decimal(rest) * 10**7)
        return ((int(hour) * 60 + int(minute)) * 60) * 10**9 + ticks * 100
    if tag == "$ts" and type_text not in ("datetime2(7)",):
        return dt.datetime.fromisoformat(text)
    return text


_ARROW = {"bit": pa.bool_(), "tinyint": pa.uint8(), "smallint": pa.int16(), "int": pa.int32(),
          "bigint": pa.int64(), "float": pa.float64(), "real": pa.float32(), "date": pa.date32(),
          "time": pa.time64("ns"), "datetime": pa.timestamp("us"), "binary": BYTES,
          "smalldatetime": pa.timestamp("us"), "varbinary": BYTES,
          "money": pa.decimal128(19, 4), "smallmoney": pa.decimal128(10, 4)}  # fmt: skip


def test_recorded_rows_of_all_types() -> None:
    """The recorded change rows arrive value by value, with every digit and offset."""
    lines = [json.loads(line) for line in SAMPLES.read_text().splitlines()]
    instance = next(one for one in lines if one.get("capture_instance") == "dbo_all_types")
    types = {one["column_name"]: one["type"] for one in instance["captured_columns"]}
    rows = [one for one in lines if one["record"] == "row" and one["case"] == "all_types"]
    rows = [one for one in rows if one["capture_instance"] == "dbo_all_types"]
    assert len(rows) >= 4
    arrays = []
    for name, text in types.items():
        kind = parse_type(text)
        arrow = _ARROW.get(kind.base, TEXT)
        if kind.base == "decimal":
            arrow = pa.decimal128(*kind.arguments)
        arrays.append(pa.array([_driver_value(text, row[name]) for row in rows], arrow))
    batch = pa.RecordBatch.from_arrays(arrays, names=list(types))
    columns = [SourceColumn.of(name, text) for name, text in types.items()]
    found = make_columns(batch, columns)
    texts = {columns[at].name for at in found.as_text}
    assert texts == {"c_time", "c_dt2"}
    first = {
        column.name: array[0].as_py() for column, array in zip(columns, found.arrays, strict=True)
    }
    assert first["c_dec"] == Decimal("-1234567890123456789012345678.0123456789")
    assert first["c_time"] == "23:59:59.9999999"
    assert first["c_dt2"] == "9999-12-31 23:59:59.9999999"
    assert first["c_dto"] == "2026-03-04 05:06:07.1234567+05:30"
    assert first["c_guid"] == uuid.UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff").bytes
    assert first["c_char"] == "ab  "
    assert first["c_rv"] == bytes.fromhex("00000000000007d1")
    assert first["c_money"] == Decimal("922337203685477.5807")
    nulls = {
        column.name: array[1].as_py() for column, array in zip(columns, found.arrays, strict=True)
    }
    assert {name for name, value in nulls.items() if value is not None} == {"id", "c_rv"}
