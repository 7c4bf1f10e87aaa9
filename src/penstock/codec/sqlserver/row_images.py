"""Columns of SQL Server in the form in which rows are compared (`codec.row_images`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.exact_text import exact_texts
from penstock.codec.image_cells import ImageCell, change_texts
from penstock.codec.sqlserver.columns import SourceColumn
from penstock.codec.sqlserver.goals import Form, Goal, reach
from penstock.codec.sqlserver.moments import ticks_of_texts
from penstock.codec.types.from_sqlserver import ROUNDED
from penstock.codec.types.mapping import Kind

_WIDE = Context(prec=77)  # 38 digits in front of the point, and as many as a scale may add
_MOMENTS = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
_TEMPORALS = frozenset(("time", "datetime2", "datetimeoffset"))


def image_batch(
    batch: pa.RecordBatch, columns: Sequence[SourceColumn], cells: Sequence[ImageCell]
) -> pa.RecordBatch:
    """Return the columns of a batch as images need them, under the names of the cells.

    Args:
        batch: of the driver, its columns selected by `select_expression`.
        columns: their definitions, in order.
        cells: of the key and of the row; a name may occur twice with the same kind.
    """
    there = {column.name: place for place, column in enumerate(columns)}
    made: dict[str, Any] = {}
    for cell in cells:
        if cell.name not in made:
            place = there[cell.name]
            made[cell.name] = _comparable(batch.column(place), columns[place], cell)
    return pa.RecordBatch.from_arrays(list(made.values()), names=list(made))


def _comparable(values: Any, column: SourceColumn, cell: ImageCell) -> Any:
    kind = Kind[cell.kind]
    found = reach(values, _goal(column, kind))
    if kind is Kind.TIME:
        return _microseconds(found)
    if kind is Kind.GEOMETRY and pa.types.is_binary(found.type):
        return pa.array([None if v is None else v.hex() for v in found.to_pylist()], pa.string())
    if pa.types.is_fixed_size_binary(found.type) and kind is not Kind.BYTES:
        return pa.array(exact_texts(found, "uuid"), pa.string())
    if kind in (Kind.TEXT, Kind.PRINTED) and not pa.types.is_string(found.type):
        found = pa.array(exact_texts(found, column.neutral), pa.string())
    if cell.change.startswith(ROUNDED):
        return _round(found, cell.change)
    return change_texts(found, cell.change)


def _goal(column: SourceColumn, kind: Kind) -> Goal:
    """Return in what form the driver's values are needed; digits and offsets as the rules say."""
    text, base = column.kind.text, column.kind.base
    form = Form.SAME
    if base in ("geometry", "geography") and kind is Kind.BYTES:
        form = Form.BYTES
    elif base in _TEMPORALS:
        form = Form.TEXT
        if kind in _MOMENTS:
            form = Form.MOMENT if base == "datetimeoffset" else Form.TIMESTAMP
        elif kind is Kind.TIME:
            form = Form.TIME
    return Goal(type_text=text, form=form, rounds=True, drops_offset=True)


def _microseconds(texts: Any) -> Any:
    """Return times of day as whole numbers; 24:00:00 comes from rounding."""
    is_end = pc.fill_null(pc.equal(texts, "24:00:00"), False)
    there = pc.if_else(is_end, "00:00:00", pc.fill_null(texts, "00:00:00"))
    ticks = ticks_of_texts(there) // 10
    ticks[np.asarray(is_end.to_numpy(zero_copy_only=False))] = 86_400_000_000
    return pa.array(ticks, pa.int64(), mask=texts.is_null().to_numpy(zero_copy_only=False))


def _round(values: Any, change: str) -> Any:
    """Return decimals rounded half up, as texts with the digits that are left."""
    unit = Decimal(1).scaleb(-int(change.rpartition("_")[2]))
    rounded = [
        None if one is None else one.quantize(unit, ROUND_HALF_UP, _WIDE)
        for one in values.to_pylist()
    ]
    texts = [None if one is None else f"{one or abs(one):f}" for one in rounded]  # no -0
    return pa.array(texts, pa.string())
