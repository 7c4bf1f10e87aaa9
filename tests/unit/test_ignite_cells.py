"""Fields of many values as columns, without Python objects in between: twin and kernel."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from harness.ignite.recordings import types_of, walk_entries
from penstock.codec.ignite import _marshal, cells, marshal, wal
from penstock.codec.ignite.cells import Cell, cell_of, read_cells
from penstock.codec.ignite.types import BinaryType, Types, cache_id
from penstock.codec.ignite.values import JavaList, SqlDate, Timestamp

Read = Callable[[list[bytes | None], tuple[Cell, ...], Types], Any]


def of_kernel(data: list[bytes | None], columns: tuple[Cell, ...], types: Types) -> Any:
    """Return the compiled form."""
    return _marshal.Decoder(types).cells(data, columns)


BOTH = pytest.mark.parametrize("read", [read_cells, of_kernel], ids=["twin", "kernel"])
NAMES = ("a", "b")
PAIR = BinaryType(
    type_id=7, type_name="Pair", names={1: "a", 2: "b"}, schemas={5: NAMES, 6: ("b",)}
)
NO_TYPES = Types()
NULL = b"\x65"


def pair(*fields: bytes, schema: int = 5, flags: int = 0x2B, type_id: int = 7) -> bytes:
    """Return an object with a footer of single bytes."""
    body, footer = b"", b""
    for one in fields:
        footer += bytes([24 + len(body)])
        body += one
    length = 24 + len(body) + len(footer)
    head = struct.pack("<BBHiiiii", 103, 1, flags, type_id, 9, length, schema, 24 + len(body))
    return head + body + footer


def text(value: str) -> bytes:
    """Return a string."""
    return b"\x09" + struct.pack("<i", len(value.encode())) + value.encode()


def number(unscaled: int, scale: int) -> bytes:
    """Return a decimal."""
    size = max(1, (abs(unscaled).bit_length() + 8) // 8)
    digits = bytearray(abs(unscaled).to_bytes(size, "big"))
    digits[0] |= 0x80 if unscaled < 0 else 0
    return b"\x1e" + struct.pack("<ii", scale, len(digits)) + bytes(digits)


def types() -> Types:
    """Return the one type."""
    return Types({7: PAIR}.get)


def column(read: Read, form: str, values: list[bytes | None], *digits: int) -> Any:
    """Return one column of values by themselves."""
    made, met = read(values, (Cell("", form, *digits),), NO_TYPES)
    assert met == []
    return made[0]


@BOTH
def test_every_form(read: Read) -> None:
    """Each value is in the column that the log has for it; a missing value is NULL."""
    ms = struct.pack("<q", 1_700_000_000_123)
    for form, data, kind, value in (
        ("bool", b"\x08\x01", pa.bool_(), True),
        ("bool", b"\x08\x00", pa.bool_(), False),
        ("int8", b"\x01\xff", pa.int16(), -1),
        ("int16", b"\x02\xff\x7f", pa.int16(), 32767),
        ("int16", b"\x01\x80", pa.int16(), -128),
        ("int32", b"\x03" + struct.pack("<i", -70_000), pa.int32(), -70_000),
        ("int64", b"\x04" + struct.pack("<q", 1 << 40), pa.int64(), 1 << 40),
        ("int64", b"\x02\x05\0", pa.int64(), 5),
        ("float32", b"\x05" + struct.pack("<f", 1.5), pa.float32(), 1.5),
        ("float64", b"\x06" + struct.pack("<d", -2.5), pa.float64(), -2.5),
        ("float64", b"\x05" + struct.pack("<f", 1.5), pa.float64(), 1.5),
        ("string", text("zwölf \U0001f600"), pa.string(), "zwölf \U0001f600"),
        ("string", text(""), pa.string(), ""),
        ("binary", b"\x0c\x02\0\0\0\xff\0", pa.binary(), b"\xff\0"),
        ("uuid", b"\x0a" + bytes(range(16)), pa.binary(16),
         bytes([*range(7, -1, -1), *range(15, 7, -1)])),
        ("date", b"\xfe\x0f\0\0\0" + marshal.SQL_DATE + ms, pa.int64(), 1_700_000_000_123),
        ("time", b"\x24" + ms, pa.int64(), 1_700_000_000_123),
    ):  # fmt: skip
        found = column(read, form, [None, data, NULL, data])
        found.validate(full=True)
        assert (found.type, found.to_pylist()) == (kind, [None, value, None, value])
        assert column(read, form, []).type == kind


@BOTH
def test_moments(read: Read) -> None:
    """Moments are microseconds of a Timestamp and of a Date; one with nanoseconds is not cut."""
    ms = struct.pack("<q", -1)
    exact, date = b"\x21" + ms + struct.pack("<i", 999_000), b"\x0b" + ms
    found = column(read, "moment", [exact, date])
    assert found.type == pa.timestamp("us", "UTC")
    assert found.cast(pa.int64()).to_pylist() == [-1, -1000]
    for other in (b"\x21" + ms + struct.pack("<i", 999_001), b"\x0b" + struct.pack("<q", 1 << 62)):
        assert isinstance(column(read, "moment", [exact, other]), list)
    assert column(read, "moment", [exact, b"\x21" + ms + b"\1\0\0\0"])[1] == Timestamp(-1, 1)


@BOTH
def test_decimals(read: Read) -> None:
    """Decimals are exact text, or have the column's digits."""
    for unscaled, scale, shown in (
        (0, 0, "0"), (0, 2, "0.00"), (-5, 3, "-0.005"), (12345, 2, "123.45"), (-1, 0, "-1"),
        (10**18 - 1, 0, "9" * 18), (7, 30, "0." + "0" * 29 + "7"),
    ):  # fmt: skip
        assert column(read, "number", [number(unscaled, scale)]).to_pylist() == [shown]
    for unscaled, scale in ((10**18, 0), (1, 31), (1, -1), (10**30, 2)):
        found = column(read, "number", [number(5, 1), number(unscaled, scale)])
        assert list(map(str, found)) == ["0.5", str(marshal.as_decimal(unscaled, scale))]
    made = column(read, "decimal", [number(-12345, 2), number(7, 0), number(1, 4)], 9, 4)
    assert made.type == pa.decimal128(9, 4)
    assert list(map(str, made.to_pylist())) == ["-123.4500", "7.0000", "0.0001"]
    for unscaled, scale in ((1, 5), (10**5, 0), (10**9, 4)):
        assert isinstance(column(read, "decimal", [number(unscaled, scale)], 9, 4), list)
    assert column(read, "decimal", [number(10**16, 0)], 38, 1).to_pylist()[0] == 10**16
    assert isinstance(column(read, "decimal", [number(10**16, 0)], 38, 2), list)


@BOTH
def test_a_value_of_another_form_makes_the_column_a_list(read: Read) -> None:
    """The value may be anywhere: earlier ones are in the list too; other columns stay columns."""
    data: list[bytes | None] = [
        pair(b"\x03\x01\0\0\0", text("x")),
        pair(b"\x04" + bytes(8), text("y")),
        None,
        pair(b"\x18\x01\0\0\0\x01\x65", NULL),
        pair(flags=0x21),
        pair(text("z"), schema=6),
    ]
    made, met = read(data, (Cell("a", "int32"), Cell("b", "string")), types())
    assert made[0] == [1, 0, None, [None], None, None]
    assert isinstance(made[0][3], JavaList)
    assert made[1].to_pylist() == ["x", "y", None, None, None, "z"]
    assert met == [PAIR]
    for form in cells._CODES:
        found = column(read, form, [NULL, b"\x07a\0"], 9, 2)
        assert found == [None, "a"]
    wide = b"\x02\x01\0"
    assert column(read, "int8", [b"\x01\1", wide]) == [1, 1]
    old = b"\xfe\x0f\0\0\0" + marshal.SQL_DATE + bytes(8)
    assert column(read, "date", [old, b"\x0b" + bytes(8)])[0] == SqlDate(0)


@BOTH
def test_what_is_not_plain_is_left_to_the_decoder(read: Read) -> None:
    """No value is built of it, and it is not an error here."""
    columns = (Cell("a", "int32"), Cell("b", "string"))
    one, two = b"\x03\x01\0\0\0", text("x")
    whole = pair(one, two)
    assert read([whole], columns, types()) is not None
    for other in (
        b"", whole[:-1], whole + b"\0", one, b"\x1b" + whole, pair(one, schema=5),
        pair(one, two, flags=0x2A | 4), pair(one, two, flags=0x0B), pair(one, two, schema=9),
        pair(flags=0x21, type_id=8), pair(one, two, type_id=8),
        pair(one, two, type_id=0), b"g\2" + whole[2:],
        pair(one, b"\x09\xff\0\0\0x"), pair(one, b"\x09\x01\0\0\0\xff"),
        pair(b"\x08\x02", two), pair(b"\x63", two), whole[:-1] + b"\x17", whole[:-1] + b"\x32",
    ):  # fmt: skip
        assert read([whole, other], columns, types()) is None, other
    assert read([whole], columns[:1], types()) is None, "a field has no column"
    assert read([pair(one, NULL)], columns[:1], types()) is not None
    for scalar in (b"", whole, b"\xfd1", b"\x1b" + whole, b"\x63", b"\x09\x09\0\0\0"):
        assert read([scalar], (Cell("", "string"),), NO_TYPES) is None, scalar


@BOTH
def test_columns_are_those_of_the_decoded_values(read: Read) -> None:
    """The recorded table has every SQL type."""
    types_found = types_of("one")
    entries = [
        one
        for one in walk_entries("one", (wal.Walk, wal.Entry), marshal.decode)
        if one.cache_id == cache_id("typed") and one.has_value
    ]
    known = types_found.find(entries[0].value.type_id)
    assert known is not None
    columns = tuple(Cell(name, "other") for name in known.fields)
    made, met = read([one.value_bytes for one in entries], columns, types_found)
    assert met == [known]
    assert len(entries) == 3
    for cell, found in zip(columns, made, strict=True):
        assert found == [one.value[cell.name] for one in entries]


def test_columns_of_kinds() -> None:
    """The type in the log decides the form; digits, if there are any, are the column's."""
    assert cell_of("n", "bigint", "int64") == Cell("n", "int64")
    assert cell_of("n", "decimal(20,4)", "decimal(20,4)") == Cell("n", "decimal", 20, 4)
    assert cell_of("n", "decimal", "string") == Cell("n", "number")
    assert cell_of("n", "varchar(5)", "string") == Cell("n", "string")
    assert cell_of("n", "timestamp", "timestamptz") == Cell("n", "moment")
    assert cell_of("n", "timestamp", "string") == cell_of("n", "object", "string")
    assert cell_of("n", "enum", "string") == Cell("n", "other")


def test_the_kernel_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_PURE=1 selects the twin."""
    monkeypatch.delenv("PENSTOCK_PURE", raising=False)
    data = b"..\x03\x05\0\0\0.", np.array([2, 9]), np.array([5, -1]), (Cell("", "int32"),)
    kernel = cells.cell_reader(NO_TYPES)
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    twin = cells.cell_reader(NO_TYPES)
    assert type(kernel) is not type(twin)
    for read in (kernel, twin):
        assert read(*data)[0][0].to_pylist() == [5, None]
