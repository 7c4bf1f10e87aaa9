"""Encoded rows that our own decoder reads back bit for bit; twin and kernel are equal."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.twins.pgoutput import (
    COMMIT_TIME_US,
    assert_same_batch,
    begin,
    column,
    commit,
    delete,
    feed,
    insert,
    relation,
    update,
)
from harness.twins.pgoutput_draw import proper, relations, row_cells
from penstock.codec.columns import arrow_type, batch_schema
from penstock.codec.postgres import pgoutput_encode
from penstock.codec.postgres.pgbinary import Unencodable
from penstock.codec.postgres.pgoutput import Decoder, Stop
from penstock.codec.postgres.pgoutput_encode import Encoder, Frames
from penstock.model import Identity, Op, Relation, Rows

ENCODERS: dict[str, type[Encoder]] = {"twin": Encoder}
if pgoutput_encode.COMPILED:
    ENCODERS["kernel"] = pgoutput_encode._KernelEncoder
WORLDS = st.dictionaries(st.integers(1, 2**32 - 1), relations(), min_size=1, max_size=3)


@st.composite
def changes(draw: st.DrawFn, shapes: dict[int, Relation]) -> list[bytes]:
    """Return row frames as a server sends them for these identities."""
    frames = []
    for source_id in draw(st.lists(st.sampled_from(sorted(shapes)), max_size=12)):
        shape = shapes[source_id]
        old = draw(row_cells(shape, proper))
        image = "old" if shape.identity is Identity.FULL else "key"
        if image == "key":
            old = [cell if index in shape.before else None for index, cell in enumerate(old)]
        kind = draw(st.sampled_from("IUBD"))
        if kind == "I":
            frames.append(insert(source_id, draw(row_cells(shape, proper))))
        elif kind == "D":
            frames.append(delete(source_id, **{image: old}))
        else:
            new = draw(row_cells(shape, proper, unchanged=True))
            before: dict[str, Any] = {image: old} if kind == "B" else {}
            frames.append(update(source_id, new, **before))
    return frames


def decode_frames(
    frames: list[bytes], shapes: dict[int, Relation]
) -> tuple[dict[int, Relation], Any]:
    """Return the batches of one transaction, and their shapes after columns became text."""
    decoder = Decoder()
    for source_id, shape in shapes.items():
        decoder.bind(source_id, shape)
    block = b"".join([begin(), *frames, commit()])
    at, batches = 0, []
    while True:
        at = decoder.feed(block, at, len(block), 1_000_000)
        if decoder.stop is not Stop.WIDEN:
            break
        source_id, index = decoder.widen
        decoder.bind(source_id, decoder.bindings()[source_id].with_text_column(index))
    assert at == len(block)
    batches = decoder.take()
    return decoder.bindings(), batches


def encode_frames(
    source_id: int, rows: Rows, xid: int | None = None, *, binary: bool = False
) -> Frames:
    """Return frames of twin and kernel, which must not differ in a byte."""
    positions = np.arange(1, rows.batch.num_rows + 1, dtype=np.uint64) << 33
    found = [
        kind(rows.relation, source_id, binary=binary).encode(
            rows.batch, positions, COMMIT_TIME_US, xid=xid
        )
        for kind in ENCODERS.values()
    ]
    for other in found[1:]:
        assert other.data == found[0].data
        assert other.ends.tolist() == found[0].ends.tolist()
    return found[0]


def pieces(frames: Frames) -> list[bytes]:
    """Return one frame for each row."""
    ends = frames.ends.tolist()
    return [frames.data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(data=st.data(), shapes=WORLDS)
def test_decoding_what_was_encoded_gives_the_same_rows(
    data: st.DataObject, shapes: dict[int, Relation]
) -> None:
    """This covers every type and identity, absent columns, key changes, and several tables."""
    frames = data.draw(changes(shapes))
    # Repeat until no more columns become text, so that one version of each table holds all rows.
    while (found := decode_frames(frames, shapes))[0] != shapes:
        shapes = found[0]
    batches = found[1]
    source_ids = {id(shape): source_id for source_id, shape in found[0].items()}
    ordered: list[tuple[int, bytes]] = []
    for rows in batches:
        one = encode_frames(source_ids[id(rows.relation)], rows)
        ordered += zip(rows.batch.column("gsn").to_pylist(), pieces(one), strict=True)
    again = decode_frames([frame for _, frame in sorted(ordered)], shapes)[1]
    assert len(ordered) == len(frames)
    assert [rows.relation for rows in again] == [rows.relation for rows in batches]
    for rows, other in zip(batches, again, strict=True):
        assert_same_batch(rows.batch, other.batch)


@given(data=st.data(), shape=relations(), xid=st.none() | st.integers(0, 2**32 - 1))
def test_a_slice_of_a_batch_is_encoded_as_its_rows_are(
    data: st.DataObject, shape: Relation, xid: int | None
) -> None:
    """Arrow's offsets are used, in bitmaps too; in a streamed transaction as well."""
    shapes = {7: shape}
    frames = data.draw(changes(shapes))
    while (found := decode_frames(frames, shapes))[0] != shapes:
        shapes = found[0]
    for rows in found[1]:
        count = rows.batch.num_rows
        start = data.draw(st.integers(0, count))
        length = data.draw(st.integers(0, count - start))
        part = Rows(relation=rows.relation, batch=rows.batch.slice(start, length))
        binary = data.draw(st.booleans())
        whole, sliced = (pieces(encode_frames(7, one, xid, binary=binary)) for one in (rows, part))
        # The numbers before the messages are those of the call.
        assert [p[30:] for p in sliced] == [p[30:] for p in whole[start : start + length]]


def _extremes(neutral: str) -> pa.Array:
    """Return random bits and the ends of the range, as Arrow holds a type."""
    kind = arrow_type(neutral)
    width = kind.bit_width // 8
    numbers = random.Random(17)
    edges = [b"\0" * width, b"\xff" * width, b"\xff" * (width - 1) + b"\x7f", b"\0" * (width - 1)]
    edges[3] += b"\x80"
    data = b"".join(edges + [numbers.randbytes(width) for _ in range(2000)])
    return pa.Array.from_buffers(kind, len(data) // width, [None, pa.py_buffer(data)])


@pytest.mark.parametrize(
    "neutral",
    [
        *("int16", "int32", "int64", "uint32", "uint64", "float32", "float64"),
        *("date", "timestamp", "timestamptz", "uuid"),
    ],
)
def test_any_bits_of_a_type_are_printed_and_read_back(neutral: str) -> None:
    """Twin and kernel print the exact text of all years and doubles that Arrow can hold."""
    values = _extremes(neutral)
    shape = relation(column("id", neutral))
    assert_read_back(shape, values)


@pytest.mark.parametrize("scale", [0, 1, 10, 37, 38])
def test_any_decimal_is_printed_and_read_back(scale: int) -> None:
    """There are zeros after the point and in front, and 38 digits."""
    numbers = random.Random(scale)
    whole = [0, 1, -1, 10**38 - 1, 1 - 10**38, 10**18, 10**36, -(10**18) + 1]
    whole += [
        numbers.randrange(-(10**38) + 1, 10**38) // 10 ** numbers.randrange(38) for _ in "x" * 999
    ]
    data = b"".join(number.to_bytes(16, "little", signed=True) for number in whole)
    kind = pa.decimal128(38, scale)
    values = pa.Array.from_buffers(kind, len(whole), [None, pa.py_buffer(data)])
    assert_read_back(relation(column("id", f"decimal(38,{scale})")), values)


def assert_read_back(shape: Relation, values: pa.Array) -> None:
    """Check that inserts of one column are read back bit for bit."""
    count = len(values)
    valid = pa.array([True] * count).buffers()[1]
    schema = batch_schema(shape)
    after = pa.Array.from_buffers(schema.field("after").type, count, [valid], children=[values])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(range(1, count + 1), pa.int64()),
            pa.array([1] * count, pa.int64()),
            pa.array([int(Op.INSERT)] * count, pa.uint8()),
            pa.nulls(count, pa.binary()),
            after,
            pa.nulls(count, schema.field("before").type),
        ],
        schema=schema,
    )
    frames = encode_frames(9, Rows(relation=shape, batch=batch))
    decoder = Decoder()
    decoder.bind(9, shape)
    feed(decoder, begin() + frames.data + commit())
    (rows,) = decoder.take()
    if pa.types.is_floating(values.type):
        # NaN has many bits and one name.
        assert rows.batch.column("after").field(0).to_pylist() == pytest.approx(
            values.to_pylist(), rel=0, abs=0, nan_ok=True
        )
    else:
        assert_same_batch(rows.batch, batch)


@pytest.mark.parametrize("name", ENCODERS)
def test_what_has_no_message_is_refused_by_its_row(name: str) -> None:
    """The error names the row of a delete without its old image or of an unknown operation."""
    shape = relation(column("id", "int64"))
    _, (rows,) = decode_frames([insert(9, ["1"]), delete(9, key=["1"])], {9: shape})
    batch = rows.batch
    bare = batch.set_column(5, batch.schema.field(5), pa.nulls(2, batch.schema.field(5).type))
    encoder = ENCODERS[name](shape, 9)
    places = np.ones(2, np.uint64)
    with pytest.raises(Unencodable, match=r"row 1 .* delete without") as caught:
        encoder.encode(bare, places, 0)
    assert caught.value.row == 1
    odd = batch.set_column(2, batch.schema.field(2), pa.array([73, 84], pa.uint8()))
    with pytest.raises(Unencodable, match=r"row 1 .* neither an insert"):
        encoder.encode(odd, places, 0)
    with pytest.raises(ValueError, match="positions"):
        encoder.encode(batch, places[:1], 0)
    with pytest.raises(ValueError, match="not a batch of"):
        encoder.encode(batch.drop_columns(["absent"]), places, 0)


@pytest.mark.parametrize("name", ENCODERS)
def test_texts_longer_than_the_first_room(name: str) -> None:
    """The buffer grows in the middle of a row, between cells of fixed and of free length."""
    shape = relation(
        column("id", "int64"),
        *(column(f"c{n}", "string" if n % 2 else "uuid") for n in range(400)),
        column("raw", "binary"),
    )
    cells = [
        "1",
        *("x" * 977 if n % 2 else "0" * 8 + "-0000" * 3 + "-" + "0" * 12 for n in range(400)),
    ]
    wide = insert(9, [*cells, "\\x" + "ab" * 300_000])
    _, (rows,) = decode_frames([wide] * 3, {9: shape})
    frames = ENCODERS[name](shape, 9).encode(rows.batch, np.ones(3, np.uint64), 0)
    assert [piece[30:] for piece in pieces(frames)] == [wide[30:]] * 3
