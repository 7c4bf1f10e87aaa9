"""Deletions that Spark wrote are read, and its vectors are those that penstock writes.

The files are those of `tests/record_lake_files.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from penstock.codec.lake import (
    DeltaVector,
    parse_blob,
    parse_footer,
    parse_position_deletes,
)
from penstock.codec.lake.deletion_vectors import make_vector, unframe_vector

FOLDER = Path(__file__).resolve().parents[1] / "data" / "lake"
RECORDED = json.loads((FOLDER / "recorded.json").read_text())
DELETED = np.unique(np.concatenate([np.arange(*one) for one in RECORDED["deleted"]]))


def test_a_vector_of_delta_is_read() -> None:
    """The descriptor leads to the vector in its file."""
    vector = DeltaVector.of_json(RECORDED["delta"])
    content = (FOLDER / vector.path).read_bytes()
    frame = content[vector.offset : vector.end]
    assert vector.parse_framed(frame).tolist() == DELETED.tolist()
    assert bytes(unframe_vector(frame, vector.path)) == make_vector(DELETED)


def test_a_vector_of_iceberg_3_is_read() -> None:
    """The manifest and the footer name the same place."""
    (one,) = RECORDED["v3"]
    content = (FOLDER / one["file"]).read_bytes()
    (blob,) = parse_footer(content, one["file"])
    assert (blob.offset, blob.size_bytes, blob.count) == (one["offset"], one["size"], one["count"])
    assert blob.data_file == RECORDED["v3 data"]
    frame = content[blob.offset : blob.offset + blob.size_bytes]
    assert parse_blob(frame, one["file"], count=one["count"]).tolist() == DELETED.tolist()
    assert bytes(unframe_vector(frame, "v3")) == make_vector(DELETED)


def test_position_deletes_of_iceberg_2_are_read() -> None:
    """Together, the files that Spark left have all positions."""
    found = [
        parse_position_deletes((FOLDER / one["file"]).read_bytes(), RECORDED["v2 data"], "v2")
        for one in RECORDED["v2"]
    ]
    assert [len(one) for one in found] == [one["count"] for one in RECORDED["v2"]]
    assert np.unique(np.concatenate(found)).tolist() == DELETED.tolist()
