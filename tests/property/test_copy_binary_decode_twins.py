"""Rows of a binary COPY: kernel and twin decode the same rows, and refuse the same bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.twins.pgoutput import assert_same_batch
from penstock.codec.columns import arrow_type
from penstock.codec.exact_text import date_text, exact_texts, time_text, timestamp_text
from penstock.codec.postgres import copy_binary_decode
from penstock.codec.postgres.copy_binary import HEADER, TRAILER, make_row_writer
from penstock.codec.postgres.copy_binary_decode import CopyDecoder, RowDecoder, make_copy_decoder
from penstock.codec.postgres.copy_binary_outcome import (
    NEUTRALS,
    BinaryCopyBroken,
    Form,
    Stop,
    find_form,
)
from penstock.codec.postgres.pgbinary import EPOCH_DAYS, EPOCH_US, numeric_bytes
from penstock.model import Column, Relation

MakeDecoder = Callable[..., RowDecoder]
DECODERS: list[MakeDecoder] = [CopyDecoder]
if copy_binary_decode.COMPILED:
    DECODERS.append(copy_binary_decode._Kernel)  # type: ignore[attr-defined]
BOTH = pytest.mark.parametrize("kind", DECODERS)
MUTATIONS = 10_000
UNLIMITED = {"row_limit": 1 << 20, "byte_limit": 1 << 30}
DAY_US = 86_400_000_000

Cells = Sequence[bytes | None]


def relation(*neutrals: str) -> Relation:
    """Return a table with a column of each neutral type."""
    columns = tuple(
        Column(name=f"c{place}", source_type="?", neutral=neutral)
        for place, neutral in enumerate(neutrals)
    )
    return Relation(schema="public", name="t", columns=columns)


def frame(payload: bytes) -> bytes:
    """Return a CopyData message."""
    return b"d" + struct.pack(">I", len(payload) + 4) + payload


def row(cells: Cells) -> bytes:
    """Return a row in binary form."""
    parts = [struct.pack(">h", len(cells))]
    for cell in cells:
        parts.append(b"\xff" * 4 if cell is None else struct.pack(">i", len(cell)) + cell)
    return b"".join(parts)


def copy_of(rows: Sequence[Cells]) -> bytes:
    """Return a COPY as servers send it: the header with the first row, a frame for each other."""
    payloads = [row(cells) for cells in rows]
    return b"".join(map(frame, [HEADER + b"".join(payloads[:1]), *payloads[1:], TRAILER]))


def decode(
    kind: MakeDecoder,
    shape: Relation,
    forms: Sequence[Form],
    block: bytes,
    cuts: Sequence[int] = (),
    **limits: int,
) -> list[Any]:
    """Return all results of a decoder that gets a block in pieces: batches, stops, the error.

    A column with a value that does not fit becomes text, as readers do it.
    """
    decoder = kind(shape, forms, **{**UNLIMITED, **limits})
    found: list[Any] = []
    start = 0
    try:
        for end in [*sorted(cut % (len(block) + 1) for cut in cuts), len(block)]:
            end = max(end, start)
            while True:
                start = decoder.feed(block, start, end)
                found.append((start, decoder.stop, decoder.unfit, decoder.buffered))
                found.append((decoder.row_count, decoder.byte_count, decoder.ended))
                if decoder.stop is Stop.MORE:
                    break
                found.append(decoder.take())
                if decoder.unfit >= 0:
                    decoder.keep_as_text(decoder.unfit)
                    found.append(decoder.relation)
    except BinaryCopyBroken as error:
        found.append((error.code, error.message, error.hint, error.fields))
    else:
        found.append(decoder.take())
        found.append(start)
    return found


def assert_same(results: Sequence[list[Any]]) -> None:
    """Raise an error unless all decoders did the same."""
    for other in results[1:]:
        assert len(other) == len(results[0])
        for left, right in zip(results[0], other, strict=True):
            if isinstance(left, pa.RecordBatch):
                assert_same_batch(left, right)
            else:
                assert left == right


def batches(found: Sequence[Any]) -> list[pa.RecordBatch]:
    """Return the batches among the results."""
    return [one for one in found if isinstance(one, pa.RecordBatch)]


def values(kind: MakeDecoder, form: Form, neutral: str, *cells: bytes | None) -> tuple[str, Any]:
    """Return the neutral type that a column ends as, and its values as exact texts."""
    shape = relation(neutral)
    found = decode(kind, shape, [form], copy_of([[cell] for cell in cells]))
    assert not isinstance(found[-1], tuple), found[-1]
    texts: list[str | None] = []
    for batch in batches(found):
        is_text = pa.types.is_string(batch.schema[0].type)
        texts += exact_texts(batch.column(0), "string" if is_text else neutral)
    last = [one for one in found if isinstance(one, Relation)] or [shape]
    return last[-1].columns[0].neutral, texts


# --- any bytes


def _pack(kind: str, numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return numbers.map(lambda number: struct.pack(kind, number))


_FULL = st.integers(-(2**63), 2**63 - 1)
_EDGES = st.sampled_from(
    [
        *(-(2**63), 2**63 - 1, 0, -1, 86_400_000_000, 86_399_999_999, 2**63 - 1 - EPOCH_US),
        *(2**63 - EPOCH_US, 9_223_371_331_200_000_000, 9_223_371_331_199_999_999),
        *(-211_813_488_000_000_000, -211_813_488_000_000_001, -63_145_440_000_000_001),
    ]
)
_MOMENTS = _pack(">q", _EDGES | _FULL | st.integers(-(10**14), 10**14))
_DATES = st.sampled_from(
    [-(2**31), 2**31 - 1, 0, -2_451_545, -2_451_546, 2_145_031_948, 2_145_031_949, 2_145_031_950]
)


@st.composite
def numerics(draw: st.DrawFn) -> bytes:
    """Return a numeric's form: mostly of a number, sometimes with one part of any value."""
    if draw(st.integers(0, 3)):
        digits = draw(
            st.text("0123456789", min_size=1, max_size=draw(st.sampled_from([6, 20, 45])))
        )
        scale = draw(st.integers(0, len(digits)) | st.just(0))
        sign = draw(st.sampled_from(["", "-"]))
        end = draw(st.sampled_from(["", "", "0" * 9, "0" * 33]))
        whole = digits[: len(digits) - scale] + end or "0"
        return numeric_bytes(f"{sign}{whole}.{digits[len(digits) - scale :]}".rstrip("."))
    if not draw(st.integers(0, 3)):
        return numeric_bytes(draw(st.sampled_from(["NaN", "Infinity", "-Infinity"])))
    groups = draw(st.lists(st.sampled_from([0, 0, 1, 10, 4500, 9999, 10000]), max_size=12))
    weight = draw(st.integers(-5, 11) | st.sampled_from([-(2**15), 2**15 - 1]))
    sign = draw(st.sampled_from([0, 0, 0x4000, 0xC000, 0xD000, 0xF000, 1]))
    scale = draw(st.integers(0, 30) | st.sampled_from([0x3FFF, 0x4000]))
    count = len(groups) + draw(st.sampled_from([0] * 9 + [1]))
    return struct.pack(f">HhHH{len(groups)}H", count, weight, sign, scale, *groups)


PLAIN: dict[Form, st.SearchStrategy[bytes]] = {
    Form.BOOL: st.sampled_from([b"\0", b"\1"]),
    Form.INT16: st.binary(min_size=2, max_size=2),
    Form.INT32: st.binary(min_size=4, max_size=4),
    Form.INT64: st.binary(min_size=8, max_size=8),
    Form.UINT32: st.binary(min_size=4, max_size=4),
    Form.UINT64: st.binary(min_size=8, max_size=8),
    Form.FLOAT32: st.binary(min_size=4, max_size=4) | _pack(">f", st.floats(width=32)),
    Form.FLOAT64: st.binary(min_size=8, max_size=8) | _pack(">d", st.floats()),
    Form.NUMERIC: numerics(),
    Form.DATE: _pack(">i", _DATES | st.integers(-(2**31), 2**31 - 1)),
    Form.TIME: _pack(">q", _EDGES | st.integers(0, DAY_US)),
    Form.TIMESTAMP: _MOMENTS,
    Form.TIMESTAMPTZ: _MOMENTS,
    Form.UUID: st.binary(min_size=16, max_size=16),
    Form.BYTES: st.binary(max_size=40),
    Form.TEXT: st.text(max_size=30).map(str.encode),
    Form.JSONB: st.text(max_size=30).map(lambda text: b"\1" + text.encode()),
}
DECIMALS = ("decimal(5,2)", "decimal(38,0)", "decimal(38,10)", "decimal(18,4)", "decimal(38,38)")


@st.composite
def tables(draw: st.DrawFn) -> tuple[Relation, list[Form], list[list[bytes | None]]]:
    """Return a table of any columns and its rows; rarely a value is any bytes."""
    forms = draw(st.lists(st.sampled_from(Form), min_size=1, max_size=6))
    neutrals = []
    for form in forms:
        neutral = draw(st.sampled_from(NEUTRALS[form]))
        neutrals.append(draw(st.sampled_from(DECIMALS)) if neutral == "decimal" else neutral)
    cells = [
        st.one_of(PLAIN[form], PLAIN[form], PLAIN[form], st.none())
        if draw(st.integers(0, 9))
        else st.none() | st.binary(max_size=20)
        for form in forms
    ]
    rows = draw(st.lists(st.tuples(*cells).map(list), max_size=12))
    return relation(*neutrals), forms, rows


@given(
    drawn=tables(),
    cuts=st.lists(st.integers(0, 2**16), max_size=6),
    row_limit=st.integers(1, 5) | st.just(1 << 20),
    byte_limit=st.integers(1, 90) | st.just(1 << 30),
)
def test_the_kernel_decodes_what_the_twin_does(
    drawn: tuple[Relation, list[Form], list[list[bytes | None]]],
    cuts: list[int],
    row_limit: int,
    byte_limit: int,
) -> None:
    """This covers all forms, NULLs, values that do not fit, broken values, cuts and limits."""
    shape, forms, rows = drawn
    block = copy_of(rows)
    limits = {"row_limit": row_limit, "byte_limit": byte_limit}
    assert_same([decode(kind, shape, forms, block, cuts, **limits) for kind in DECODERS])


def every_form() -> tuple[Relation, list[Form], bytes]:
    """Return a table with a column of each form, and a valid copy of it."""
    dice = random.Random(7)
    samples: dict[Form, Callable[[], bytes]] = {
        Form.BOOL: lambda: bytes([dice.randrange(2)]),
        Form.INT16: lambda: dice.randbytes(2),
        Form.NUMERIC: lambda: numeric_bytes(str(Decimal(dice.randrange(10**9)).scaleb(-2))),
        Form.DATE: lambda: struct.pack(">i", dice.randrange(-9999, 9999)),
        Form.TIME: lambda: struct.pack(">q", dice.randrange(DAY_US)),
        Form.TEXT: lambda: "Größe 表 😀"[: dice.randrange(9)].encode(),
        Form.JSONB: lambda: b'\1{"a": 1}',
        Form.BYTES: lambda: dice.randbytes(dice.randrange(9)),
        Form.UUID: lambda: dice.randbytes(16),
        **dict.fromkeys((Form.INT32, Form.UINT32, Form.FLOAT32), lambda: dice.randbytes(4)),
        **dict.fromkeys((Form.INT64, Form.UINT64, Form.FLOAT64), lambda: dice.randbytes(8)),
        **dict.fromkeys(
            (Form.TIMESTAMP, Form.TIMESTAMPTZ),
            lambda: struct.pack(">q", dice.randrange(-(10**17), 10**17)),
        ),
    }
    forms = [*Form, *(form for form in Form if len(NEUTRALS[form]) > 1)]
    neutrals = [NEUTRALS[form][0] for form in Form]
    neutrals[neutrals.index("decimal")] = "decimal(12,2)"
    shape = relation(*neutrals, *["string"] * (len(forms) - len(neutrals)))
    rows = [
        [None if dice.randrange(8) == 0 else samples[form]() for form in forms] for _ in range(3)
    ]
    return shape, forms, copy_of(rows)


@pytest.mark.slow
def test_mutated_copies_are_refused_alike() -> None:
    """Each mutation ends in the same batches or the same typed error, which names its row."""
    shape, forms, valid = every_form()
    names = {column.name for column in shape.columns}
    dice = random.Random(33)
    outcomes: dict[str, int] = {}
    for _ in range(MUTATIONS):
        block = bytearray(valid)
        for _ in range(dice.choice([1, 1, 1, 2, 5])):
            at = dice.randrange(len(block))
            match dice.randrange(4):
                case 0:
                    block[at] = dice.randrange(256)
                case 1:
                    block[at] ^= 1 << dice.randrange(8)
                case 2:
                    del block[at : at + dice.randrange(1, 9)]
                case _:
                    block[at:at] = dice.randbytes(dice.randrange(1, 5))
        cuts = [dice.randrange(len(block))]
        results = [decode(kind, shape, forms, bytes(block), cuts) for kind in DECODERS]
        assert_same(results)
        last = results[0][-1]
        reason = "none"
        if isinstance(last, tuple):
            code, message, hint, fields = last
            reason = fields["reason"]
            assert (code, bool(hint)) == ("DC72", True)
            assert f"row {fields['row']} of a binary COPY of public.t" in message
            assert fields.get("column", "c0") in names
        outcomes[reason] = outcomes.get(reason, 0) + 1
    assert set(outcomes) == {
        *("none", "header", "truncated", "column_count", "length", "value", "utf8", "trailing")
    }


# --- values


@BOTH
@given(
    digits=st.integers(-(10**38) + 1, 10**38 - 1),
    scale=st.integers(0, 38),
    precision=st.integers(1, 38),
)
def test_numbers_are_exact(kind: MakeDecoder, digits: int, scale: int, precision: int) -> None:
    """A number that the decimal type holds is the same number; any other one is exact text."""
    number = Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -scale))
    places = min(scale, precision)
    neutral, texts = values(
        kind, Form.NUMERIC, f"decimal({precision},{places})", numeric_bytes(str(number))
    )
    held = number.copy_abs() < Decimal(10) ** (precision - places)
    held = held and (scale == places or digits % 10 ** (scale - places) == 0)
    assert neutral == (f"decimal({precision},{places})" if held else "string")
    assert [Decimal(text) for text in texts] == [number]
    if not held:
        assert texts == [f"{number:f}"]


@BOTH
@given(days=st.integers(-2_440_588, 2_145_042_905))
def test_dates_are_those_of_the_calendar(kind: MakeDecoder, days: int) -> None:
    """The days are the same, and so is the text of a column that became text."""
    form = struct.pack(">i", days - EPOCH_DAYS)
    assert values(kind, Form.DATE, "date", form) == ("date", [date_text(days)])
    assert values(kind, Form.DATE, "string", form) == ("string", [date_text(days)])


@BOTH
@given(moment=st.integers(-210_866_803_200_000_000, 2**63 - 1))
def test_timestamps_are_those_of_the_calendar(kind: MakeDecoder, moment: int) -> None:
    """The microseconds are the same, and so is the text of a column that became text."""
    form = struct.pack(">q", moment - EPOCH_US)
    for neutral, zone in (("timestamp", ""), ("timestamptz", "+00")):
        shape = Form[neutral.upper()]
        text = timestamp_text(moment, zone)
        assert values(kind, shape, neutral, form) == (neutral, [text])
        assert values(kind, shape, "string", form) == ("string", [text])


@BOTH
@given(time=st.integers(0, DAY_US))
def test_times_of_day(kind: MakeDecoder, time: int) -> None:
    """Only 24:00:00 becomes text."""
    neutral = "string" if time == DAY_US else "time"
    assert values(kind, Form.TIME, "time", struct.pack(">q", time)) == (neutral, [time_text(time)])


@BOTH
@pytest.mark.parametrize(
    ("form", "neutral", "value", "text"),
    [
        (Form.NUMERIC, "decimal(12,2)", numeric_bytes("NaN"), "NaN"),
        (Form.NUMERIC, "decimal(12,2)", numeric_bytes("-Infinity"), "-Infinity"),
        (Form.NUMERIC, "decimal(12,2)", numeric_bytes("1.505"), "1.505"),
        (Form.NUMERIC, "decimal(5,2)", numeric_bytes("1000.00"), "1000.00"),
        (Form.NUMERIC, "decimal(38,38)", numeric_bytes("1" + "0" * 131_071), "1" + "0" * 131_071),
        (Form.DATE, "date", struct.pack(">i", 2**31 - 1), "infinity"),
        (Form.DATE, "date", struct.pack(">i", -(2**31)), "-infinity"),
        (Form.TIME, "time", struct.pack(">q", DAY_US), "24:00:00"),
        (Form.TIMESTAMP, "timestamp", struct.pack(">q", 2**63 - 1), "infinity"),
        (Form.TIMESTAMPTZ, "timestamptz", struct.pack(">q", -(2**63)), "-infinity"),
        (
            Form.TIMESTAMPTZ,
            "timestamptz",
            struct.pack(">q", 9_223_371_331_199_999_999),
            "294276-12-31 23:59:59.999999+00",
        ),
    ],
)
def test_what_does_not_fit_makes_the_column_text(
    kind: MakeDecoder, form: Form, neutral: str, value: bytes, text: str
) -> None:
    """Rows before the value keep the type; the value and all later ones are exact text."""
    zero = numeric_bytes("0.00") if form is Form.NUMERIC else bytes(len(value))
    shape = relation(neutral)
    found = decode(kind, shape, [form], copy_of([[zero], [None], [value], [zero]]))
    early, late = batches(found)
    assert early.schema[0].type == arrow_type(neutral)
    assert (early.num_rows, late.num_rows) == (2, 2)
    assert late.column(0).to_pylist()[0] == text
    [changed] = [one for one in found if isinstance(one, Relation)]
    assert changed == shape.with_text_column(0)


@BOTH
@pytest.mark.parametrize("form", [Form.FLOAT32, Form.FLOAT64])
def test_every_nan_has_the_same_bits(kind: MakeDecoder, form: Form) -> None:
    """All of them are the text NaN, which has no payload and no sign."""
    wide = form is Form.FLOAT64
    code, bits = (">Q", pa.uint64()) if wide else (">I", pa.uint32())
    shape = relation(NEUTRALS[form][0])
    quiet = 0x7FF8 << 48 if wide else 0x7FC0 << 16
    sent = [quiet, quiet | 1 << (63 if wide else 31), quiet + 5, quiet >> 1 | quiet]
    block = copy_of([[struct.pack(code, one)] for one in sent])
    [batch] = batches(decode(kind, shape, [form], block))
    assert batch.column(0).view(bits).to_pylist() == [quiet] * len(sent)


@BOTH
def test_batches_end_at_a_limit(kind: MakeDecoder) -> None:
    """Texts that are made longer than they were sent count with their own length."""
    large = numeric_bytes("1" + "0" * 9_999)
    assert len(large) < 20
    block = copy_of([[large]] * 7)
    found = decode(kind, relation("string"), [Form.NUMERIC], block, byte_limit=30_000)
    assert [batch.num_rows for batch in batches(found)] == [3, 3, 1]
    found = decode(kind, relation("string"), [Form.NUMERIC], block, row_limit=4)
    assert [batch.num_rows for batch in batches(found)] == [4, 3]


@BOTH
def test_several_rows_in_one_frame(kind: MakeDecoder) -> None:
    """A limit in the middle of a frame neither loses a row nor decodes one twice."""
    rows = b"".join(row([struct.pack(">q", number)]) for number in range(5))
    extended = HEADER[:15] + struct.pack(">I", 3) + b"any"
    block = frame(extended + rows) + frame(rows + TRAILER)
    found = decode(kind, relation("int64"), [Form.INT64], block, row_limit=2)
    numbers = [number for batch in batches(found) for number in batch.column(0).to_pylist()]
    assert numbers == [*range(5), *range(5)]
    assert found[-1] == len(block)


@BOTH
@pytest.mark.parametrize(
    ("block", "reason", "row_number", "column"),
    [
        (frame(b""), "header", 1, None),
        (frame(HEADER[:-1]), "header", 1, None),
        (frame(b"QGCOPY" + HEADER[6:] + TRAILER), "header", 1, None),
        (frame(HEADER[:11] + b"\0\1" + bytes(6) + TRAILER), "header", 1, None),
        (frame(HEADER[:15] + b"\0\0\0\1"), "header", 1, None),
        (frame(HEADER + row([bytes(4), b"a"])[:-1]), "truncated", 1, "c1"),
        (frame(HEADER + row([bytes(4), b"a"])) + frame(b"\0"), "truncated", 2, None),
        (frame(HEADER + row([bytes(4)])), "column_count", 1, None),
        (frame(HEADER + b"\xff\xfe"), "column_count", 1, None),
        (frame(HEADER + b"\0\2" + b"\xff\xff\xff\xfe"), "length", 1, "c0"),
        (frame(HEADER + row([bytes(3), b"a"])), "value", 1, "c0"),
        (frame(HEADER + row([bytes(4), b"\xff"])), "utf8", 1, "c1"),
        (frame(HEADER + TRAILER + b"\0"), "trailing", 1, None),
        (frame(HEADER + TRAILER) + frame(TRAILER), "trailing", 1, None),
    ],
)
def test_broken_copies_are_named(
    kind: MakeDecoder, block: bytes, reason: str, row_number: int, column: str | None
) -> None:
    """The error names the row, and the column where one is known."""
    decoder = kind(relation("int32", "string"), [Form.INT32, Form.TEXT], **UNLIMITED)
    with pytest.raises(BinaryCopyBroken) as caught:
        decoder.feed(block, 0, len(block))
    fields = caught.value.fields
    assert (fields["reason"], fields["row"], fields.get("column")) == (reason, row_number, column)


@BOTH
def test_other_messages_stay(kind: MakeDecoder) -> None:
    """A frame that is not whole, another message and an impossible length end the walk."""
    decoder = kind(relation("int32"), [Form.INT32], **UNLIMITED)
    whole = frame(HEADER + row([bytes(4)]))
    for rest in (whole[:4], whole[:-1], b"c\0\0\0\4", b"d\0\0\0\3", b"d\xff\xff\xff\xff"):
        decoder = kind(relation("int32"), [Form.INT32], **UNLIMITED)
        block = whole + rest
        assert decoder.feed(block, 0, len(block)) == len(whole)
        assert (decoder.row_count, decoder.ended, decoder.stop) == (1, False, Stop.MORE)
    for start, end in ((-1, 0), (1, 0), (0, len(whole) + 1)):
        with pytest.raises(ValueError, match="no span"):
            decoder.feed(whole, start, end)


@BOTH
def test_what_a_decoder_cannot_do_is_refused(kind: MakeDecoder) -> None:
    """No column is read in a form that its type does not have."""
    with pytest.raises(ValueError, match="1 forms for 2 columns"):
        kind(relation("int32", "int32"), [Form.INT32], **UNLIMITED)
    with pytest.raises(ValueError, match="0 forms"):
        kind(relation(), [], **UNLIMITED)
    with pytest.raises(ValueError, match="INT32 are not decoded to int64"):
        kind(relation("int64"), [Form.INT32], **UNLIMITED)
    with pytest.raises(ValueError, match="at least 1"):
        kind(relation("int32"), [Form.INT32], row_limit=0, byte_limit=1)
    decoder = kind(relation("int32"), [Form.INT32], **UNLIMITED)
    with pytest.raises(ValueError, match="INT32 are not decoded to string"):
        decoder.keep_as_text(0)
    decoder = kind(relation("date"), [Form.DATE], **UNLIMITED)
    block = copy_of([[bytes(4)]])
    decoder.feed(block, 0, len(block))
    with pytest.raises(ValueError, match="not taken"):
        decoder.keep_as_text(0)


@BOTH
@given(numbers=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9), text=st.text(max_size=9))
def test_rows_that_penstock_writes_come_back(
    kind: MakeDecoder, numbers: list[int], text: str
) -> None:
    """The encoder of binary COPY is the reverse."""
    schema = pa.schema([("c0", pa.int32()), ("c1", pa.string())])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(numbers, pa.int32()), pa.array([text] * len(numbers), pa.string())], schema=schema
    )
    sent = b"".join(make_row_writer(schema).blocks(batch))
    block = frame(HEADER + sent + TRAILER)
    found = decode(kind, relation("int32", "string"), [Form.INT32, Form.TEXT], block)
    assert [one.to_pylist() for one in batches(found)] == ([batch.to_pylist()] if numbers else [])


def test_forms_of_types() -> None:
    """A type is read in its own form only as the neutral type that the form has."""
    assert find_form(1700, "decimal(12,2)") is find_form(1700, "string") is Form.NUMERIC
    assert find_form(23, "int32") is Form.INT32
    assert find_form(23, "int64") is find_form(23, "string") is find_form(16, "string") is None
    assert find_form(869, "string") is find_form(18, "string") is find_form(1007, "string") is None


def test_the_kernel_is_taken_where_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_PURE=1 forbids it; without a compiler the twin does the work."""
    shape = relation("int32")
    monkeypatch.delenv("PENSTOCK_PURE", raising=False)
    is_kernel = type(make_copy_decoder(shape, [Form.INT32])) is not CopyDecoder
    assert is_kernel == copy_binary_decode.COMPILED
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    assert type(make_copy_decoder(shape, [Form.INT32])) is CopyDecoder
