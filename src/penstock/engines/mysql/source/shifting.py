"""Positions of rows, moved by a number of files: another server counts its own from one.

Pure. A shift of nothing, which is the rule, costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.mysql.binlog_outcome import OFFSET_BITS
from penstock.model import Rows


def shifted_rows(rows: Rows, shift: int | None) -> Rows:
    """Rows whose positions are `shift` files further. Negative: further back."""
    if not shift:
        return rows
    return replace(rows, batch=_shifted(rows.batch, "position", shift))


def shifted_transactions(batch: pa.RecordBatch | None, shift: int | None) -> pa.RecordBatch | None:
    """A batch of transactions whose positions are `shift` files further."""
    if batch is None or not shift:
        return batch
    for name in ("position", "end_position"):
        batch = _shifted(batch, name, shift)
    return batch


def _shifted(batch: pa.RecordBatch, name: str, shift: int) -> pa.RecordBatch:
    at = batch.schema.get_field_index(name)
    field = batch.schema.field(at)
    step = pa.scalar(abs(shift) << OFFSET_BITS, type=field.type)
    column = (pc.add_checked if shift > 0 else pc.subtract_checked)(batch.column(at), step)
    return batch.set_column(at, field, column)
