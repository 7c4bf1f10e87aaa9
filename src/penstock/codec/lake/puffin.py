"""Puffin files with the deletion vectors of Iceberg 3.

A file has a magic number, blobs, and a footer that lists them as JSON. A manifest names the offset
and length of each vector, so readers of a table do not need the footer.

No I/O. Not here: the bytes of a vector (`deletion_vectors.py`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.codec.lake.deletion_vectors import (
    frame_vector,
    make_vector,
    parse_vector,
    unframe_vector,
)
from penstock.codec.lake.errors import corrupt
from penstock.codec.lake.roaring import Positions

_MAGIC = b"PFA1"
_FLAGS_BYTES = 4
_TAIL_BYTES = 4 + _FLAGS_BYTES + len(_MAGIC)  # length of the JSON, flags, magic
_VECTOR = "deletion-vector-v1"
_ROW_POSITION_FIELD = 2147483645
_CREATED_BY = "penstock"


@dataclass(frozen=True, slots=True, kw_only=True)
class PuffinBlob:
    """Place of a vector in a Puffin file.

    Attributes:
        data_file: location of the data file whose rows are deleted.
        offset: offset of the vector's frame in the file.
        size_bytes: size of the frame.
        count: number of positions.
    """

    data_file: str
    offset: int
    size_bytes: int
    count: int


def make_puffin(sets: Iterable[tuple[str, Positions]]) -> tuple[bytes, list[PuffinBlob]]:
    """Return the content of a file with the vector of each data file, and the vectors' places.

    sets: location of a data file and its deleted positions, strictly ascending.
    """
    content, blobs = bytearray(_MAGIC), []
    for data_file, positions in sets:
        frame = frame_vector(make_vector(positions))
        blobs.append(
            PuffinBlob(
                data_file=data_file,
                offset=len(content),
                size_bytes=len(frame),
                count=len(positions),
            )
        )
        content += frame
    footer = json.dumps(
        {"blobs": [_blob_json(blob) for blob in blobs], "properties": {"created-by": _CREATED_BY}}
    ).encode()
    content += _MAGIC + footer + struct.pack("<I", len(footer)) + bytes(_FLAGS_BYTES) + _MAGIC
    return bytes(content), blobs


def parse_blob(frame: bytes | memoryview, what: str, *, count: int | None = None) -> Positions:
    """Return the positions of a blob's bytes. Raises DeletionCorrupt.

    what: name of the file, for errors. count: number of positions that the manifest names.
    """
    return parse_vector(unframe_vector(frame, what), what, count=count)


def parse_footer(content: bytes, what: str) -> list[PuffinBlob]:
    """Return the vectors that the footer of a whole file lists. Raises DeletionCorrupt."""
    if len(content) < 2 * len(_MAGIC) + _TAIL_BYTES or content[: len(_MAGIC)] != _MAGIC:
        raise corrupt(what, "it is not a Puffin file")
    size, flags = struct.unpack_from("<II", content, len(content) - _TAIL_BYTES)
    start = len(content) - _TAIL_BYTES - size
    begins = start >= 2 * len(_MAGIC) and content[start - len(_MAGIC) : start] == _MAGIC
    if content[-len(_MAGIC) :] != _MAGIC or not begins:
        raise corrupt(what, "its footer is not where its length says")
    if flags:
        raise corrupt(what, f"its footer has the flags {flags:#x}, which penstock does not read")
    try:
        footer = json.loads(content[start : start + size])
        return [_blob_of(one) for one in footer["blobs"] if one["type"] == _VECTOR]
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(what, f"its footer: {error!r}") from error


def _blob_json(blob: PuffinBlob) -> dict[str, Any]:
    return {
        "type": _VECTOR,
        "fields": [_ROW_POSITION_FIELD],
        # The snapshot that adds the file is not known before the commit.
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": blob.offset,
        "length": blob.size_bytes,
        "properties": {
            "referenced-data-file": blob.data_file,
            "cardinality": str(blob.count),
        },
    }


def _blob_of(found: dict[str, Any]) -> PuffinBlob:
    return PuffinBlob(
        data_file=str(found["properties"]["referenced-data-file"]),
        offset=int(found["offset"]),
        size_bytes=int(found["length"]),
        count=int(found["properties"]["cardinality"]),
    )
