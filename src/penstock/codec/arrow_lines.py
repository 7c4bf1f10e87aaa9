"""Convert columns of Arrow to lines of LOAD DATA or of COPY. Pure, vectorized.

Text is UTF-8 whatever the connection's character set. Not here: which of a target's types takes
the texts (`codec.types`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.errors import unfit
from penstock.codec.exact_text import exact_texts

# Characters with a meaning in LOAD DATA, in the order in which they are replaced.
_LOAD_DATA = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\0", b"\\0"))
_COPY = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
_UUID_GROUPS = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 16))
_DASH = np.uint8(ord("-"))


def load_data_lines(columns: Sequence[Any]) -> bytes:
    """Return the rows as lines in which each cell ends with a tab. Bytes stay as they are."""
    return _lines([escape(text_of(column), _LOAD_DATA) for column in columns])


def copy_lines(columns: Sequence[Any], neutral: Sequence[str], *, first_row: int = 0) -> bytes:
    """Return the rows as lines of COPY, with values as PostgreSQL prints them.

    neutral: neutral type of each column. first_row: number of rows before these, for errors. Raises
    CellUnfit for a text with the character U+0000, which PostgreSQL's texts cannot hold.
    """
    texts = [_to_bytes(column, kind) for column, kind in zip(columns, neutral, strict=True)]
    for place, text in enumerate(texts):
        _check_no_zero(text, place, first_row)
    return _lines([escape(text, _COPY) for text in texts])


def _lines(cells: list[Any]) -> bytes:
    cells[-1] = join_values([cells[-1], scalar(b"")], b"\n", null=b"\\N")
    return b"".join(as_bytes(join_values(cells, b"\t", null=b"\\N")))


def _to_bytes(column: Any, neutral: str) -> Any:
    """Return a column's values as bytes in the text form that PostgreSQL reads."""
    if pa.types.is_temporal(column.type):
        # Arrow does not print years before 1 and after 9999 as PostgreSQL reads them.
        return pa.array(exact_texts(column, neutral), pa.large_string()).cast(pa.large_binary())
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return _hex_text(column)
    return text_of(column)


def _hex_text(column: Any) -> Any:
    found = [None if one is None else b"\\x" + one.hex().encode() for one in column.to_pylist()]
    return pa.array(found, pa.large_binary())


def _check_no_zero(text: Any, place: int, first_row: int) -> None:
    data = text.buffers()[2]
    if data is None or b"\0" not in memoryview(data).tobytes():
        return
    row = pc.index(pc.match_substring(text, b"\0"), True).as_py()
    if row >= 0:
        raise unfit(
            first_row + row + 1, place, "it has the character U+0000, which PostgreSQL's texts lack"
        )


def scalar(value: bytes) -> pa.Scalar:
    """Return these bytes as an Arrow scalar."""
    return pa.scalar(value, pa.large_binary())


def join_values(parts: list[Any], by: bytes, *, null: bytes) -> Any:
    """Return arrays of bytes joined value by value, with `by` between and `null` for null."""
    return pc.binary_join_element_wise(
        *parts, scalar(by), null_handling="replace", null_replacement=null
    )


def as_bytes(values: Any) -> Iterator[memoryview]:
    """Yield each value without a copy. The array must have no null."""
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        offsets = np.frombuffer(chunk.buffers()[1], np.int64)[
            chunk.offset : chunk.offset + len(chunk) + 1
        ]
        if len(chunk):
            yield memoryview(chunk.buffers()[2])[int(offsets[0]) : int(offsets[-1])]


def text_of(column: Any) -> Any:
    """Return the values of any column as bytes that the servers can read; null stays null."""
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


def escape(text: Any, escapes: tuple[tuple[bytes, bytes], ...]) -> Any:
    """Return the bytes after these replacements, which are made in order."""
    data = text.buffers()[2]
    held = b"" if data is None else data.to_pybytes()
    for what, instead in escapes:
        if what in held:
            text = pc.replace_substring(text, what, instead)
    return text


def _uuid_text(column: Any) -> Any:
    """Return UUIDs of 16 bytes as texts of 36 characters."""
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
