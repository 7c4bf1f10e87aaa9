"""Single values of MySQL and MariaDB: decimals, times, geometry, compressed columns, addresses."""

from __future__ import annotations

import zlib
from decimal import Decimal
from typing import Any

import pytest

from penstock.codec.mysql.binlog_cells import Cell, How
from penstock.codec.mysql.decimals import decimal_bytes, decimal_text, read_decimal
from penstock.codec.mysql.malformed import Malformed, Unfit
from penstock.codec.mysql.types import neutral_type, parse_type
from penstock.codec.mysql.values import decompress, ewkb_hex, value_reader


def read(how: How, data: str | bytes, neutral: str = "string", **more: Any) -> Any:
    """Read a value, given as bytes or their hexadecimal digits."""
    return value_reader(Cell(how=how, neutral=neutral, **more))(
        bytes.fromhex(data) if isinstance(data, str) else data
    )


@pytest.mark.parametrize(
    ("data", "precision", "scale", "text"),
    [
        ("7ffb2de9d1", 10, 4, "-1234.5678"),
        ("8000000000", 10, 4, "0.0000"),
        ("7fffffffff", 10, 4, "0.0000"),  # the minus of a zero is not printed
        ("806309", 4, 1, "99.9"),
        ("80000f423f", 8, 1, ""),
        ("8f4240270f", 10, 4, ""),  # exactly one too many
    ],
)
def test_decimals(data: str, precision: int, scale: int, text: str) -> None:
    """Decimals have groups of nine digits; a group with a larger value is malformed."""
    raw = bytes.fromhex(data)[: decimal_bytes(precision, scale)]
    if not text:
        with pytest.raises(Malformed):
            decimal_text(raw, precision, scale)
        return
    assert decimal_text(raw, precision, scale) == text
    assert read_decimal(raw, precision, scale) == Decimal(text)


@pytest.mark.parametrize(
    ("how", "precision", "data", "text"),
    [
        (How.TIME, 6, "7fffffffffff", "-00:00:00.000001"),
        (How.TIME, 3, "7ffffeec78", "-00:00:01.500"),
        (How.TIME, 0, "b46efb", "838:59:59"),
        (How.TIME, 0, "800000", "00:00:00"),
        (How.DATETIME, 0, "8000000000", "0000-00-00 00:00:00"),
        (How.DATE, 0, "000000", "0000-00-00"),
        (How.TIMESTAMP, 0, "00000000", "0000-00-00 00:00:00"),
        (How.TIMESTAMP, 2, "0000000063", "1970-01-01 00:00:00.99"),
        (How.TIMESTAMP, 0, "7fffffff", "2038-01-19 03:14:07"),
        (How.OLD_TIME, 0, "590a80", "-838:59:59"),
        (How.OLD_TIME, 0, "000000", "00:00:00"),
        (How.OLD_DATETIME, 0, "0000000000000000", "0000-00-00 00:00:00"),
        (How.OLD_TIMESTAMP, 0, "01000000", "1970-01-01 00:00:01"),
        (How.YEAR, 0, "00", "0000"),
        (How.YEAR, 0, "ff", "2155"),
    ],
)
def test_times_as_text(how: How, precision: int, data: str, text: str) -> None:
    """The text is exactly what the server prints."""
    assert read(how, data, precision=precision) == text


@pytest.mark.parametrize(
    ("how", "data", "neutral"),
    [
        (How.DATE, "000000", "date"),
        (How.DATE, "5fd00f", "date"),  # 31 February 2024
        (How.TIME, "7fffff", "time"),
        (How.TIME, "818000", "time"),  # 24 hours
        (How.DATETIME, "8000000000", "timestamp"),
        (How.TIMESTAMP, "00000000", "timestamptz"),
        (How.OLD_TIMESTAMP, "00000000", "timestamptz"),
        (How.SIGNED, "02", "bool"),
    ],
)
def test_values_that_need_text(how: How, data: str, neutral: str) -> None:
    """Such values are valid, but the neutral type cannot hold them."""
    with pytest.raises(Unfit):
        read(how, data, neutral)


@pytest.mark.parametrize(
    ("how", "data", "more"),
    [
        (How.DATE, "bf0100", {}),  # month 13
        (How.DATE, "ffffff", {}),
        (How.TIME, "80003c", {}),  # 60 seconds
        (How.TIME, "ffffff", {}),
        (How.TIME, "80000064", {"precision": 2}),
        (How.DATETIME, "0000000000", {}),
        (How.DATETIME, "ffffffffff", {}),
        (How.TIMESTAMP, "00000001640000"[:10], {"precision": 2}),
        (How.OLD_TIME, "630000", {}),
        (How.OLD_DATETIME, "ffffffffffffffff", {}),
        (How.HIRES_TIMESTAMP, "00000001ff", {"precision": 2}),
        (How.ENUM, "02", {"labels": ("a",)}),
        (How.SET, "02", {"labels": ("a",)}),
        (How.BIT, "02", {"precision": 1}),
        (How.PADDED, "0102", {"size": 1}),
        (How.FLOAT, "0000807f", {}),
        (How.DOUBLE, "000000000000f87f", {}),
        (How.GEOMETRY, "0000000001", {}),
        (How.GEOMETRY, "000000000001000000", {}),
        (How.JSON, "ff", {}),
    ],
)
def test_values_that_no_server_stores(how: How, data: str, more: dict[str, Any]) -> None:
    """Each is malformed, with no other outcome."""
    with pytest.raises(Malformed):
        read(how, data, **more)


def test_members() -> None:
    """Index zero of an ENUM is the value of a failed assignment."""
    labels = ("a", "b", "c")
    assert [read(How.ENUM, bytes((n,)), labels=labels) for n in range(4)] == ["", "a", "b", "c"]
    assert read(How.SET, "05", labels=labels) == "a,c"
    assert read(How.SET, "00", labels=labels) == ""
    for labels, expected in (
        (("", "a", "b"), ["", "", "a", "a", "b", "b", "a,b", "a,b"]),
        (("a", "", "b"), ["", "a", "", "a,", "b", "a,b", "b", "a,,b"]),
    ):
        found = [read(How.SET, f"{bits:02x}", labels=labels) for bits in range(8)]
        assert found == expected  # this is what the servers print


def test_padding() -> None:
    """Zeros at the end are not stored."""
    assert read(How.PADDED, "41", "binary", size=4) == b"A\0\0\0"
    assert read(How.INET4, "c0a801", size=4) == "192.168.1.0"
    assert read(How.INET6, b"", size=16) == "::"


def test_geometry_is_ewkb() -> None:
    """Geometry is as PostGIS writes it; it has an SRID only if the value has one."""
    point = "0101000000" + "000000000000f03f" * 2
    assert ewkb_hex(bytes.fromhex("00000000" + point)) == point.upper()
    assert (
        ewkb_hex(bytes.fromhex("e6100000" + point))
        == ("0101000020e6100000" + "000000000000f03f" * 2).upper()
    )


def test_compressed_columns() -> None:
    """Values are stored, zlib or raw deflate; wrong sizes are malformed."""
    text = b"text " * 200
    packed = zlib.compress(text)
    assert decompress(b"") == b""
    assert decompress(b"\0abc") == b"abc"
    assert decompress(b"\x82\x03\xe8" + packed) == text
    assert decompress(b"\x8a\x03\xe8" + packed[2:-4]) == text
    for broken in (
        b"\x82\x03\xe7" + packed,
        b"\x82\x03\xe9" + packed,
        b"\x82\x03\xe8" + packed[:-5],
        b"\x80" + packed,
        b"\x84\x7f\xff\xff\xff" + packed,
        b"\x12abc",
        b"\x82\x03",
        b"\x82\x03\xe8junk",
    ):
        with pytest.raises(Malformed):
            decompress(broken)


@pytest.mark.parametrize(
    ("text", "neutral"),
    [
        ("tinyint(1)", "int16"),
        ("tinyint unsigned", "int16"),
        ("smallint unsigned", "int32"),
        ("mediumint unsigned", "int32"),
        ("int(10) unsigned zerofill", "uint32"),
        ("bigint", "int64"),
        ("bigint(20) unsigned", "uint64"),
        ("float(7,3)", "float32"),
        ("double precision", "float64"),
        ("decimal", "decimal(10,0)"),
        ("decimal(5)", "decimal(5,0)"),
        ("numeric(38,10)", "decimal(38,10)"),
        ("decimal(39,0)", "string"),
        ("bit(1)", "uint64"),
        ("year(4)", "int16"),
        ("date", "date"),
        ("time(3)", "time"),
        ("datetime /* mariadb-5.3 */", "timestamp"),
        ("timestamp(6)", "timestamptz"),
        ("uuid", "uuid"),
        ("inet6", "string"),
        ("binary(4)", "binary"),
        ("longblob", "binary"),
        ("varchar(20)", "string"),
        ("enum('a)','b''c')", "string"),
        ("json", "string"),
        ("point", "string"),
        ("something else (", "string"),
    ],
)
def test_neutral_types(text: str, neutral: str) -> None:
    """Neutral types are derived from the catalogue's text."""
    assert neutral_type(text) == neutral


def test_type_texts_are_parsed() -> None:
    """Labels may have quotes, commas and parentheses; comments that servers add are handled."""
    parsed = parse_type("enum('a)','b''c','d,e','f\\\\g')")
    assert parsed is not None
    assert parsed.labels == ("a)", "b'c", "d,e", "f\\g")
    compressed = parse_type("varchar(20) /*M!100301 COMPRESSED*/")
    assert compressed is not None
    assert (compressed.arguments, compressed.compressed) == ((20,), True)
    assert parse_type("enum(a)") is None
    assert parse_type("int(x)") is None
