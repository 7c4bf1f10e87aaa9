"""Merge rows as bytes: lines for LOAD DATA, or tuples for a multi-row INSERT. Pure, vectorized.

Text is UTF-8 whatever the connection's character set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_lines import escape, join_values, load_data_lines, scalar, text_of

_LITERAL_ESCAPES = (
    (b"\\", b"\\\\"),
    (b"'", b"\\'"),
    (b"\0", b"\\0"),
    (b"\n", b"\\n"),
    (b"\r", b"\\r"),
    (b"\x1a", b"\\Z"),
)

FIELDS = "fields terminated by '\\t' escaped by '\\\\' lines terminated by '\\n'"


def lines(batch: pa.RecordBatch) -> bytes:
    """Return the batch as lines of FIELDS, one per row."""
    return load_data_lines(batch.columns)


def tuples(batch: pa.RecordBatch, *, bytes_max: int) -> Iterator[bytes]:
    """Yield the batch as `(1,'a'),(2,NULL)` in pieces of this size, unless a row is larger."""
    columns = [_literal(column) for column in batch.columns]
    columns[0] = join_values([scalar(b""), columns[0]], b"(", null=b"NULL")
    columns[-1] = join_values([columns[-1], scalar(b"")], b")", null=b"NULL")
    rows = join_values(columns, b",", null=b"NULL")
    sizes = np.cumsum(pc.binary_length(rows).to_numpy(zero_copy_only=False) + 1)
    start, sent = 0, 0
    while start < len(rows):
        end = max(start + 1, int(np.searchsorted(sizes, sent + bytes_max, side="right")))
        yield b",".join(rows.slice(start, end - start).to_pylist())
        start, sent = end, int(sizes[end - 1])


def _literal(column: Any) -> Any:
    """Return a column as SQL literals; numbers are unchanged."""
    kind, text = column.type, text_of(column)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return text
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    quote = scalar(b"_binary'" if is_bytes else b"'")
    return pc.binary_join_element_wise(
        quote, escape(text, _LITERAL_ESCAPES), scalar(b"'"), scalar(b"")
    )
