"""Parts that Avro and Protobuf share: fixed numbers, lengths, and the head of messages. Pure."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from penstock.kafka.texts import PlainTexts, Texts, text_kernel

_HEAD = struct.Struct(">bI")
MAGIC = 0


def head(schema_id: int) -> bytes:
    """Return the first bytes of a message: magic 0 and the id of its schema."""
    return _HEAD.pack(MAGIC, schema_id)


def pack_numbers(values: Any, kind: str) -> Texts:
    """Return numbers with so many little-endian bytes each. kind: as NumPy has it."""
    data = np.ascontiguousarray(values, kind)
    size = data.dtype.itemsize
    places = np.arange(0, size * len(data) + 1, size, dtype=np.int32)
    return places, data.view(np.uint8)


def add_lengths(texts: Texts, scale: int = 1) -> Texts:
    """Return texts with their lengths, times scale, as varints in front of them."""
    offsets, data = texts
    kernel = text_kernel()
    lengths = kernel.varints(np.diff(offsets).astype(np.int64) * scale)
    pieces = [(*lengths, None, b"", b""), (offsets, data, None, b"", b"")]
    return kernel.join_rows(pieces, len(offsets) - 1)


def varint(number: int) -> bytes:
    """Return one varint."""
    (found,) = PlainTexts.cut(*PlainTexts.varints([number]))
    return found
