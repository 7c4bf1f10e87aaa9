"""Rows for a binary COPY: kernel and twin write the same blocks, and stop at the same value."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.postgres import copy_binary
from penstock.codec.postgres.copy_binary import RowWriter, Unwritable, make_row_writer

WRITERS: list[type[RowWriter]] = [RowWriter]
if copy_binary.COMPILED:
    WRITERS.append(copy_binary._KernelWriter)
BOTH = pytest.mark.parametrize("kind", WRITERS)


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _bits(kind: pa.DataType, carrier: pa.DataType, bits: int) -> tuple[Any, Any, Any]:
    return kind, carrier, _integers(bits)


# Type, type of the drawn values, which are then viewed as the type, values.
FIXED = [
    (pa.bool_(), pa.bool_(), st.booleans()),
    _bits(pa.int16(), pa.int16(), 16),
    _bits(pa.int32(), pa.int32(), 32),
    _bits(pa.int64(), pa.int64(), 64),
    _bits(pa.float32(), pa.int32(), 32),
    _bits(pa.float64(), pa.int64(), 64),
    _bits(pa.time64("us"), pa.int64(), 64),
    (pa.date32(), pa.int32(), st.integers(-2_440_588, 2_145_042_905) | _integers(32)),
    (pa.timestamp("us"), pa.int64(), st.integers(-210_866_803_200_000_000, 2**63 - 1)),
    (pa.timestamp("us", "UTC"), pa.int64(), st.integers(-(10**17), 2**63 - 1) | _integers(64)),
    (pa.binary(16), pa.binary(16), st.binary(min_size=16, max_size=16)),
    (pa.binary(), pa.binary(), st.binary(max_size=40)),
    (pa.string(), pa.string(), st.text(max_size=20)),
]


@st.composite
def decimals(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """Return a decimal type, and numbers of any length, often with zeros at either end."""
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    kind = pa.decimal128(precision, scale)

    def number(digits: int, zeros: int, value: int) -> Decimal:
        shown = value % 10**digits * 10**zeros % 10**precision
        return Decimal((int(value < 0), tuple(map(int, str(shown))), -scale))

    places = st.integers(0, precision)
    return kind, kind, st.builds(number, places, places, _integers(130))


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[bytes]]:
    """Return a batch of any columns, perhaps a slice of a longer one, and the columns' heads."""
    plain = st.sampled_from(FIXED) | decimals()
    size, start = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    arrays, heads = [], []
    for _ in range(draw(st.integers(0, 8))):
        kind, carrier, values = draw(plain)
        some = values | st.none() if draw(st.booleans()) else values
        head = b""
        if draw(st.integers(0, 3)) == 0:
            lists = st.none() | st.lists(some, max_size=5)
            rows = draw(st.lists(lists, min_size=start + size, max_size=start + size))
            found = pa.array(rows, pa.list_(carrier))
            inner = found.values if kind == carrier else found.values.view(kind)
            bits = pa.py_buffer(found.buffers()[0]) if found.null_count else None
            kept = [bits, found.buffers()[1]]
            found = pa.Array.from_buffers(pa.list_(kind), len(found), kept, children=[inner])
        else:
            rows = draw(st.lists(some, min_size=start + size, max_size=start + size))
            found = pa.array(rows, carrier)
            found = found if kind == carrier else found.view(kind)
            if kind in (pa.binary(), pa.string()):
                head = draw(st.binary(max_size=3))
        arrays.append(found)
        heads.append(head)
    batch = pa.RecordBatch.from_arrays(arrays, [f"c{i}" for i in range(len(arrays))])
    return batch.slice(start, size), heads


def write_blocks(
    kind: type[RowWriter], batch: pa.RecordBatch, heads: Sequence[bytes] = ()
) -> list[Any]:
    """Return the blocks, and where and why they end."""
    found: list[Any] = []
    try:
        found += kind(batch.schema, heads).blocks(batch)
    except Unwritable as error:
        found.append((error.column, error.row, str(error)))
    return found


@given(
    drawn=batches(), block_bytes=st.integers(1, 200), field_max=st.just(2**30) | st.integers(36, 60)
)
def test_the_kernel_writes_what_the_twin_does(
    drawn: tuple[pa.RecordBatch, list[bytes]], block_bytes: int, field_max: int
) -> None:
    """This covers all types, NULLs, slices, lists, values without a form, blocks of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_binary, "BLOCK_BYTES", block_bytes)
        patch.setattr(copy_binary, "FIELD_BYTES_MAX", field_max)
        found = [write_blocks(kind, *drawn) for kind in WRITERS]
        assert found[1:] == found[:-1]
    if found[0] and isinstance(found[0][-1], bytes):
        assert len(list(fields(b"".join(found[0]), drawn[0].num_columns))) == drawn[0].num_rows


def fields(data: bytes, count: int) -> Iterator[list[bytes | None]]:
    """Return the fields of each row, read back as the manual says."""
    at = 0
    while at < len(data):
        assert struct.unpack_from(">H", data, at) == (count,)
        at += 2
        row: list[bytes | None] = []
        for _ in range(count):
            [size] = struct.unpack_from(">i", data, at)
            at += 4
            row.append(None if size < 0 else data[at : at + size])
            at += max(size, 0)
        yield row
    assert at == len(data)


def forms(kind: type[RowWriter], values: Any, head: bytes = b"") -> list[str | None]:
    """Return each value's form, in hex."""
    batch = pa.RecordBatch.from_arrays([values], ["c"])
    data = b"".join(kind(batch.schema, [head]).blocks(batch))
    return [one and one.hex() for [one] in fields(data, 1)]


@BOTH
def test_forms_are_those_that_the_server_sends(kind: type[RowWriter]) -> None:
    """The server prints them with `select ..._send(value)`."""
    numbers = [Decimal(n) for n in ("0.00", "1.10", "-9999999999.99", "10000.00", "0.01")]
    assert forms(kind, pa.array(numbers, pa.decimal128(12, 2))) == [
        "0000000000000002",
        "0002000000000002000103e8",
        "00040002400000020063270f270f26ac",
        "00010001000000020001",
        "0001ffff000000020064",
    ]
    assert forms(kind, pa.array([1], pa.int32()).cast(pa.date32())) == ["ffffd534"]
    moments = pa.array([946_684_800_000_001], pa.int64())
    assert forms(kind, moments.cast(pa.timestamp("us"))) == ["0000000000000001"]
    assert forms(kind, pa.array(["{}", None]).cast(pa.binary()), b"\1") == ["017b7d", None]
    assert forms(kind, pa.array([["a", None], [], None, ["b"]])) == [
        "000000010000000100000019000000020000000100000001" + "61" + "ffffffff",
        "000000000000000000000019",
        None,
        "000000010000000000000019000000010000000100000001" + "62",
    ]


@BOTH
@pytest.mark.parametrize(
    ("kind_of", "values", "row"),
    [
        (pa.date32(), [0, -2_440_588, 2_145_042_905, 2_145_042_906], 3),
        (pa.date32(), [-2_440_589], 0),
        (pa.date32(), [-(2**31)], 0),
        (pa.timestamp("us"), [2**63 - 1, -210_866_803_200_000_000, -210_866_803_200_000_001], 2),
        (pa.timestamp("us", "UTC"), [-(2**63)], 0),
    ],
)
def test_what_postgresql_has_no_form_for_is_named(
    kind: type[RowWriter], kind_of: Any, values: list[int], row: int
) -> None:
    """The value is never taken for infinity, nor for another time after an overflow."""
    carrier = pa.int32() if pa.types.is_date32(kind_of) else pa.int64()
    batch = pa.RecordBatch.from_arrays([pa.array(values, carrier).view(kind_of)], ["at"])
    with pytest.raises(Unwritable, match=f"column at, row {row} ") as caught:
        list(kind(batch.schema).blocks(batch))
    assert (caught.value.column, caught.value.row) == ("at", row)


@BOTH
def test_blocks_end_after_a_row(kind: type[RowWriter]) -> None:
    """A block is about as long as requested; a longer row ends its block."""
    texts = ["x" * 40_000] * 4 + ["y" * 600_000, "z", None]
    batch = pa.RecordBatch.from_arrays([pa.array(texts)], ["c"])
    sizes = [len(block) for block in kind(batch.schema).blocks(batch)]
    assert sizes == [3 * 40_006, 40_006 + 600_006, 7 + 6]


@BOTH
def test_other_types_and_batches_are_refused(kind: type[RowWriter]) -> None:
    """No value is read as another type."""
    for other in (pa.uint32(), pa.large_string(), pa.timestamp("ns"), pa.list_(pa.uint64())):
        with pytest.raises(ValueError, match="no binary form of type"):
            kind(pa.schema([("c", other)]))
    for headed in (pa.int64(), pa.list_(pa.string())):
        with pytest.raises(ValueError, match="a head before"):
            kind(pa.schema([("c", headed)]), [b"\1"])
    with pytest.raises(ValueError, match="2 heads for 1 columns"):
        kind(pa.schema([("c", pa.string())]), [b"", b""])
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.int64())], ["c"])
    with pytest.raises(ValueError, match="not a batch"):
        list(kind(pa.schema([("c", pa.int32())])).blocks(batch))


def test_the_kernel_is_taken_where_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_PURE=1 forbids it; without a compiler the twin does the work."""
    schema = pa.schema([("c", pa.string())])
    monkeypatch.delenv("PENSTOCK_PURE", raising=False)
    assert (type(make_row_writer(schema)) is not RowWriter) == copy_binary.COMPILED
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    assert type(make_row_writer(schema)) is RowWriter
