"""Positions of transactions, moved by a number of files: another server counts its own from one.

Pure. A shift of nothing, which is the rule, costs nothing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.codec.mysql.binlog_outcome import OFFSET_BITS
from penstock.model.position import POSITION_BYTES


def shifted_transactions(batch: pa.RecordBatch | None, shift: int | None) -> pa.RecordBatch | None:
    """A batch of transactions whose positions are `shift` files further. Negative: further back."""
    if batch is None or not shift:
        return batch
    for name in ("position", "end_position"):
        batch = _shifted(batch, name, shift)
    return batch


def _shifted(batch: pa.RecordBatch, name: str, shift: int) -> pa.RecordBatch:
    """Those of a binlog are numbers in the last 8 of their 16 bytes."""
    at = batch.schema.get_field_index(name)
    field, column = batch.schema.field(at), batch.column(at)
    start = column.offset * POSITION_BYTES
    both = np.frombuffer(column.buffers()[1], ">u8", 2 * len(column), start).copy()
    step = np.uint64(abs(shift) << OFFSET_BITS)
    low = both[1::2].astype(np.uint64)
    both[1::2] = low + step if shift > 0 else low - step
    if bool((both[1::2] < low).any() if shift > 0 else (both[1::2] > low).any()):
        raise OverflowError("a binlog position out of range")
    moved = pa.Array.from_buffers(field.type, len(column), [None, pa.py_buffer(both.tobytes())])
    return batch.set_column(at, field, moved)
