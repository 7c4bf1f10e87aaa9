"""Deletion vectors, Puffin files and position deletes: bytes, and what is refused."""

from __future__ import annotations

import struct
import uuid
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.codec.lake import (
    NO_POSITIONS,
    DeletionCorrupt,
    DeltaVector,
    bin_name,
    inline_vector,
    make_bin,
    make_position_deletes,
    make_puffin,
    parse_blob,
    parse_footer,
    parse_position_deletes,
    parse_positions,
    serialize_positions,
)
from penstock.codec.lake.position_deletes import FILE_PATH_ID, POSITION_ID
from penstock.codec.lake.z85 import decode_z85, encode_z85

HIGH = 1 << 32


@st.composite
def position_sets(draw):
    """Return a set of positions: single ones, runs, and dense parts, in a few buckets."""
    parts = [np.array(draw(st.lists(st.integers(0, 3 * HIGH), max_size=20)), np.int64)]
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.sampled_from([0, 1, 65_000, 65_536, HIGH - 5, HIGH, 5 * HIGH + 70_000]))
        size = draw(st.sampled_from([1, 2, 4_095, 4_096, 4_097, 65_536, 70_000]))
        step = draw(st.integers(1, 3))
        parts.append(start + np.arange(0, size, step))
    return np.unique(np.concatenate(parts))


@given(position_sets())
def test_sets_are_those_of_another_implementation(positions) -> None:
    """Sets are those of another implementation."""
    data = serialize_positions(positions)
    assert parse_positions(data).tolist() == positions.tolist()
    assert list(BitMap64.deserialize(data)) == positions.tolist()
    other = BitMap64(positions.tolist())
    assert parse_positions(other.serialize()).tolist() == positions.tolist()
    other.run_optimize()
    assert parse_positions(other.serialize()).tolist() == positions.tolist()


def test_set_is_as_small_as_an_optimized_one() -> None:
    """Set is as small as an optimized one."""
    positions = np.concatenate([np.arange(1_000_000), np.arange(2_000_000, 2_010_000, 7)])
    other = BitMap64(positions.tolist())
    other.run_optimize()
    assert len(serialize_positions(positions)) == len(other.serialize())


@given(position_sets(), st.data())
def test_no_changed_byte_reads_out_of_bounds(positions, data) -> None:
    """No changed byte reads out of bounds."""
    content = bytearray(serialize_positions(positions))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    try:
        found = parse_positions(bytes(content))
    except DeletionCorrupt:
        return
    assert (np.diff(found) > 0).all()


@given(position_sets(), st.data())
def test_a_cut_set_is_refused(positions, data) -> None:
    """A cut set is refused."""
    content = serialize_positions(positions)
    with pytest.raises(DeletionCorrupt):
        parse_positions(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(DeletionCorrupt):
        parse_positions(content + b"\0")


@given(st.binary(max_size=40))
def test_z85_returns_the_bytes(data) -> None:
    """Z85 returns the bytes."""
    assert decode_z85(encode_z85(data), len(data)) == data


def test_z85_is_that_of_its_specification() -> None:
    """Z85 is that of its specification."""
    data = bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])
    assert encode_z85(data) == "HelloWorld"


@pytest.mark.parametrize(("text", "size"), [("Hello", 5), ("Hell", 4), ('Hell"', 4), ("#####", 4)])
def test_a_broken_z85_text_is_refused(text, size) -> None:
    """A broken z85 text is refused."""
    with pytest.raises(DeletionCorrupt):
        decode_z85(text, size)


SETS = [np.array([1, 5, 6]), np.arange(10_000), np.array([HIGH + 3])]


def test_bin_file_has_each_vector_at_its_place() -> None:
    """Bin file has each vector at its place."""
    number = uuid.UUID("ab1d2f33-6c22-4d9a-a7a8-0d2a1c0a7d10")
    content, vectors = make_bin(number, SETS)
    for vector, positions in zip(vectors, SETS, strict=True):
        assert vector.path == bin_name(number)
        assert vector.count == len(positions)
        frame = content[vector.offset : vector.end]
        assert vector.parse_framed(frame).tolist() == positions.tolist()
        assert DeltaVector.of_json(vector.as_json()) == vector
    assert content[0] == 1
    assert vectors[-1].end == len(content)


def test_descriptor_has_the_fields_of_deltas_protocol() -> None:
    """Descriptor has the fields of Delta's protocol."""
    # The example of Delta's PROTOCOL.md.
    found = DeltaVector.of_json(
        {
            "storageType": "u",
            "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
            "offset": 4,
            "sizeInBytes": 40,
            "cardinality": 6,
        }
    )
    assert found.path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_inline_vector_holds_its_positions() -> None:
    """Inline vector holds its positions."""
    vector = inline_vector(np.array([3, 4, 7, 11, 18, 29]))
    assert vector.path == ""
    assert vector.parse_inline().tolist() == [3, 4, 7, 11, 18, 29]
    assert DeltaVector.of_json(vector.as_json()) == vector


def test_native_format_of_early_versions_is_refused_by_name() -> None:
    """Native format of early versions is refused by name."""
    # The inline example of Delta's PROTOCOL.md, whose bytes are big-endian.
    text = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    vector = DeltaVector(storage="i", text=text, offset=None, size_bytes=40, count=6)
    with pytest.raises(DeletionCorrupt, match="magic"):
        vector.parse_inline()


def test_descriptor_with_an_absolute_path() -> None:
    """Descriptor with an absolute path."""
    found = DeltaVector(storage="p", text="s3://b/a%20b.bin", offset=1, size_bytes=4, count=1)
    assert found.path == "s3://b/a b.bin"


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"storageType": "x", "pathOrInlineDv": "", "sizeInBytes": 1, "cardinality": 1},
        {"storageType": "u", "pathOrInlineDv": "", "sizeInBytes": None, "cardinality": 1},
    ],
)
def test_a_broken_descriptor_is_refused(found) -> None:
    """A broken descriptor is refused."""
    with pytest.raises(DeletionCorrupt):
        DeltaVector.of_json(found)


def test_a_changed_vector_is_refused() -> None:
    """A changed vector is refused."""
    content, [vector] = make_bin(uuid.uuid4(), [SETS[0]])
    frame = bytearray(content[vector.offset : vector.end])
    for at in range(len(frame)):
        broken = frame.copy()
        broken[at] ^= 1
        with pytest.raises(DeletionCorrupt):
            vector.parse_framed(broken)
    with pytest.raises(DeletionCorrupt, match="length"):
        vector.parse_framed(frame[:-1])


def test_a_vector_of_another_count_is_refused() -> None:
    """A vector of another count is refused."""
    content, [vector] = make_bin(uuid.uuid4(), [SETS[0]])
    other = DeltaVector(storage="i", text="", offset=1, size_bytes=vector.size_bytes, count=4)
    with pytest.raises(DeletionCorrupt, match="3 positions, expected 4"):
        other.parse_framed(content[vector.offset : vector.end])


def test_puffin_has_each_vector_at_its_place() -> None:
    """Puffin has each vector at its place."""
    named = [(f"file:///t/{number} ü.parquet", one) for number, one in enumerate(SETS)]
    content, blobs = make_puffin(named)
    assert parse_footer(content, "p") == blobs
    for blob, (name, positions) in zip(blobs, named, strict=True):
        frame = content[blob.offset : blob.offset + blob.size_bytes]
        assert blob.data_file == name
        assert parse_blob(frame, "p", count=blob.count).tolist() == positions.tolist()


def test_delta_and_iceberg_have_the_same_bytes() -> None:
    """Delta and iceberg have the same bytes."""
    content, [vector] = make_bin(uuid.uuid4(), [SETS[1]])
    puffin, [blob] = make_puffin([("a", SETS[1])])
    frame = content[vector.offset : vector.end]
    assert puffin[blob.offset : blob.offset + blob.size_bytes] == frame
    assert struct.unpack(">I", frame[-4:]) == (zlib.crc32(frame[4:-4]),)


def test_a_broken_puffin_file_is_refused() -> None:
    """A broken puffin file is refused."""
    content, _ = make_puffin([("a", SETS[0])])
    for broken in (b"", content[:-1], content[1:], b"PFA1" + bytes(20) + b"PFA1", content[:20]):
        with pytest.raises(DeletionCorrupt):
            parse_footer(broken, "p")
    flagged = bytearray(content)
    flagged[-8] = 1
    with pytest.raises(DeletionCorrupt, match="flags"):
        parse_footer(bytes(flagged), "p")


def test_position_deletes_have_reserved_field_ids() -> None:
    """Position deletes have reserved field ids."""
    content = make_position_deletes("file:///t/a.parquet", SETS[1])
    schema = pq.read_schema(pa.BufferReader(content))
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in schema]
    assert ids == [FILE_PATH_ID, POSITION_ID] == [2147483546, 2147483545]
    assert not any(field.nullable for field in schema)
    found = parse_position_deletes(content, "file:///t/a.parquet", "p")
    assert found.tolist() == SETS[1].tolist()
    assert parse_position_deletes(content, "file:///t/b.parquet", "p").tolist() == []


def test_broken_position_deletes_are_refused() -> None:
    """Broken position deletes are refused."""
    content = make_position_deletes("a", SETS[0])
    for broken in (b"", b"PAR1", content[:-1]):
        with pytest.raises(DeletionCorrupt):
            parse_position_deletes(broken, "a", "p")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"file_path": ["a"], "pos": [-1]}), sink)
    with pytest.raises(DeletionCorrupt, match="negative"):
        parse_position_deletes(sink.getvalue(), "a", "p")


def test_an_empty_set_is_kept() -> None:
    """An empty set is kept."""
    assert parse_positions(serialize_positions(NO_POSITIONS)).tolist() == []
