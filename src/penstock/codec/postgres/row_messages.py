"""Encode Arrow columns as wire messages: DataRow, and CopyData as text and as binary.

Vectorized: a column becomes bytes as the server prints them, and all messages of a batch are one
buffer. Source: PostgreSQL manual, "Message Formats" and COPY, "Text Format" and "Binary Format".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_lines import as_bytes, escape, join_values, scalar, text_of
from penstock.codec.exact_text import exact_texts
from penstock.codec.postgres.pgbinary import binary_form
from penstock.codec.postgres.pgtext import is_hex_bytea
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import Column

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"
_ESCAPES = (
    (b"\\", b"\\\\"),
    (b"\t", b"\\t"),
    (b"\n", b"\\n"),
    (b"\r", b"\\r"),
    (b"\b", b"\\b"),
    (b"\f", b"\\f"),
    (b"\v", b"\\v"),
)
_PLAIN = ("int16", "int32", "int64", "uint32", "uint64", "string", "uuid")
_NO_LENGTH = 0xFFFFFFFF  # -1: NULL


def text_cells(values: Any, column: Column) -> Any:
    """Return a column's values as the server prints them, as bytes; null stays null."""
    kind = column.neutral.partition("(")[0]
    if kind == "binary" and not is_hex_bytea(column):
        return values.cast(pa.large_binary())
    if kind == "binary":
        found = [None if one is None else b"\\x" + one.hex().encode() for one in values.to_pylist()]
        return pa.array(found, pa.large_binary())
    if kind in _PLAIN:
        return text_of(values)
    if kind == "bool":
        return pc.if_else(values, scalar(b"t"), scalar(b"f"))
    texts = exact_texts(values, column.neutral)
    return pa.array(texts, pa.large_string()).cast(pa.large_binary())


def copy_lines(
    cells: Sequence[Any], count: int, *, delimiter: bytes = b"\t", null: bytes = b"\\N"
) -> bytes:
    """Return CopyData messages, one for each row, in COPY's text format."""
    escapes = _ESCAPES if delimiter == b"\t" else (*_ESCAPES, (delimiter, b"\\" + delimiter))
    return _lines([escape(one, escapes) for one in cells], count, delimiter, null)


def csv_lines(
    cells: Sequence[Any],
    count: int,
    *,
    delimiter: bytes,
    null: bytes,
    quote: bytes,
    escape: bytes,
    is_quoted: Sequence[bool],
) -> bytes:
    """Return CopyData messages, one for each row, in COPY's CSV format.

    is_quoted: for each column whether all its values are in quotes.
    """
    special = (delimiter, quote, b"\n", b"\r")
    written = []
    for values, always in zip(cells, is_quoted, strict=True):
        inside = values if escape == quote else pc.replace_substring(values, escape, escape * 2)
        inside = pc.replace_substring(inside, quote, escape + quote)
        in_quotes = join_values([scalar(quote), inside, scalar(quote)], b"", null=b"")
        needs = pc.equal(values, scalar(null))
        for one in special:
            needs = pc.or_(needs, pc.match_substring(values, one))
        if len(cells) == 1:
            needs = pc.or_(needs, pc.equal(values, scalar(b"\\.")))
        found = in_quotes if always else pc.if_else(needs, in_quotes, values)
        written.append(pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.large_binary())))
    return _lines(written, count, delimiter, null)


def _lines(cells: list[Any], count: int, delimiter: bytes, null: bytes) -> bytes:
    if not count:
        return b""
    if cells:
        cells[-1] = join_values([cells[-1], scalar(b"")], b"\n", null=null)
        rows = join_values(cells, delimiter, null=null)
    else:
        rows = pa.array([b"\n"] * count, pa.large_binary())
    lengths = pc.binary_length(rows).to_numpy().astype(np.int64) + 4
    head = _to_array(np.concatenate([_letter(b"d", count), _be32(lengths)], axis=1))
    return b"".join(as_bytes(join_values([head, rows], b"", null=b"")))


def row_messages(letter: bytes, cells: Sequence[Any], count: int) -> bytes:
    """Return a message for each row's cells: `D` for DataRow, `d` for CopyData in binary."""
    if not count:
        return b""
    total = np.full(count, 6, np.int64)
    parts: list[Any] = []
    for values in cells:
        lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.int64)
        total += 4 + lengths
        told = lengths if not values.null_count else np.where(_valid(values), lengths, _NO_LENGTH)
        parts += [_to_array(_be32(told)), values]
    number = np.broadcast_to(np.frombuffer(len(cells).to_bytes(2, "big"), np.uint8), (count, 2))
    head = _to_array(np.concatenate([_letter(letter, count), _be32(total), number], axis=1))
    return b"".join(as_bytes(join_values([head, *parts], b"", null=b"")))


def binary_cells(values: Any, column: Column) -> Any:
    """Return a column's values in the binary form of its type; null stays null. Raises Refused."""
    form = binary_form(column)
    if form is None:
        raise Refused(
            "0A000",
            f"column {column.name} of type {column.source_type} is not sent in binary",
            hint="Ask for text: a subscription with binary = false, COPY without FORMAT binary.",
        )
    return form(values).cast(pa.large_binary())


def _valid(values: Any) -> Any:
    return np.asarray(values.is_valid())


def _letter(letter: bytes, count: int) -> Any:
    return np.full((count, 1), letter[0], np.uint8)


def _be32(numbers: Any) -> Any:
    data = np.ascontiguousarray(numbers.astype(">u4"))
    return data.view(np.uint8).reshape(len(data), 4)


def _to_array(data: Any) -> Any:
    """Return rows of bytes as an array of bytes."""
    count, width = data.shape
    buffer = pa.py_buffer(np.ascontiguousarray(data).tobytes())
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, buffer])
    return fixed.cast(pa.large_binary())
