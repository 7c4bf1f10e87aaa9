"""Merge rows as bytes: lines for LOAD DATA, or tuples for a multi-row INSERT. Pure, vectorized.

Text is UTF-8 whatever the connection's character set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Characters with a meaning in LOAD DATA, in the order in which they are replaced.
_LINE_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\0", b"\\0"))
_LITERAL_ESCAPES = (
    (b"\\", b"\\\\"),
    (b"'", b"\\'"),
    (b"\0", b"\\0"),
    (b"\n", b"\\n"),
    (b"\r", b"\\r"),
    (b"\x1a", b"\\Z"),
)
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
_UUID_GROUPS = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 16))
_DASH = np.uint8(ord("-"))

FIELDS = "fields terminated by '\\t' escaped by '\\\\' lines terminated by '\\n'"


def lines(batch: pa.RecordBatch) -> bytes:
    """The batch as lines of FIELDS, each row one line."""
    columns = [_escaped(text_of(column), _LINE_ESCAPES) for column in batch.columns]
    columns[-1] = joined([columns[-1], _scalar(b"")], b"\n", null=b"\\N")
    return b"".join(as_bytes(joined(columns, b"\t", null=b"\\N")))


def tuples(batch: pa.RecordBatch, *, bytes_max: int) -> Iterator[bytes]:
    """The batch as `(1,'a'),(2,NULL)`, in pieces of at most this size where a row allows it."""
    columns = [_literal(column) for column in batch.columns]
    columns[0] = joined([_scalar(b""), columns[0]], b"(", null=b"NULL")
    columns[-1] = joined([columns[-1], _scalar(b"")], b")", null=b"NULL")
    rows = joined(columns, b",", null=b"NULL")
    sizes = np.cumsum(pc.binary_length(rows).to_numpy(zero_copy_only=False) + 1)
    start, sent = 0, 0
    while start < len(rows):
        end = max(start + 1, int(np.searchsorted(sizes, sent + bytes_max, side="right")))
        yield b",".join(rows.slice(start, end - start).to_pylist())
        start, sent = end, int(sizes[end - 1])


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.large_binary())


def joined(parts: list[Any], by: bytes, *, null: bytes) -> Any:
    """Arrays of bytes, value by value behind one another, with these bytes between and for null."""
    return pc.binary_join_element_wise(
        *parts, _scalar(by), null_handling="replace", null_replacement=null
    )


def as_bytes(values: Any) -> Iterator[memoryview]:
    """The values one after the other, without a copy: none is null."""
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        offsets = np.frombuffer(chunk.buffers()[1], np.int64)[
            chunk.offset : chunk.offset + len(chunk) + 1
        ]
        if len(chunk):
            yield memoryview(chunk.buffers()[2])[int(offsets[0]) : int(offsets[-1])]


def text_of(column: Any) -> Any:
    """Any column's values as the servers read them, as bytes; null stays null."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.large_binary())
    if pa.types.is_fixed_size_binary(kind):
        return _uuid_text(column)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp("us"))  # the same moment in UTC
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        column = column.cast(pa.large_string())
    return column.cast(pa.large_binary())


def _literal(column: Any) -> Any:
    """A column as SQL literals; numbers are unchanged."""
    kind, text = column.type, text_of(column)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return text
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    quote = _scalar(b"_binary'" if is_bytes else b"'")
    return pc.binary_join_element_wise(
        quote, _escaped(text, _LITERAL_ESCAPES), _scalar(b"'"), _scalar(b"")
    )


def _escaped(text: Any, escapes: tuple[tuple[bytes, bytes], ...]) -> Any:
    data = text.buffers()[2]
    held = b"" if data is None else data.to_pybytes()
    for what, instead in escapes:
        if what in held:
            text = pc.replace_substring(text, what, instead)
    return text


def _uuid_text(column: Any) -> Any:
    """UUIDs of 16 bytes as their 36 characters."""
    size = len(column)
    data = column.buffers()[1]
    raw = np.frombuffer(data, np.uint8)[column.offset * 16 : (column.offset + size) * 16]
    digits = _HEX[raw.reshape(size, 16)]
    parts: list[Any] = []
    for low, high in _UUID_GROUPS:
        if parts:
            parts.append(np.full((size, 1), _DASH))
        parts.append(digits[:, low:high].reshape(size, -1))
    text = np.ascontiguousarray(np.concatenate(parts, axis=1))
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(36), size, [None, pa.py_buffer(text.tobytes())]
    )
    return pc.if_else(column.is_valid(), fixed.cast(pa.large_binary()), None)
