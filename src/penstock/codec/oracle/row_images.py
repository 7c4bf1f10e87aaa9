"""Columns of Oracle in the form in which rows are compared (`codec.row_images`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa

from penstock.codec.image_cells import UNFIT_AS_NULL, ImageCell, change_texts
from penstock.codec.oracle.goals import (
    DATES,
    NANOSECONDS,
    NOT_A_NUMBER,
    OFFSETS,
    Form,
    Goal,
    reach,
)
from penstock.codec.oracle.read_columns import ReadColumn
from penstock.codec.types.from_sqlserver import ROUNDED
from penstock.codec.types.mapping import NULL, ROUND, UTC, Kind

_MOMENTS = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
_TEXTS = (Kind.TEXT, Kind.PRINTED, Kind.PADDED)
_WIDE = Context(prec=80)


def width_of(column: ReadColumn) -> int:
    """Return the number of expressions that select a column: a LOB has two."""
    return 2 if column.is_lob else 1


def image_batch(
    batch: pa.RecordBatch, columns: Sequence[ReadColumn], cells: Sequence[ImageCell]
) -> pa.RecordBatch:
    """Return the columns of a batch as images need them, under the names of the cells.

    Args:
        batch: of the driver, its columns selected by `select_expression`.
        columns: their definitions, in order.
        cells: of the key and of the row; a name may occur twice with the same kind.
    """
    places: dict[str, tuple[int, ReadColumn]] = {}
    at = 0
    for column in columns:
        places[column.name] = at, column
        at += width_of(column)
    made: dict[str, Any] = {}
    for cell in cells:
        if cell.name not in made:
            first, column = places[cell.name]
            some = batch.select(range(first, first + width_of(column)))
            made[cell.name] = _comparable(some, column, cell)
    return pa.RecordBatch.from_arrays(list(made.values()), names=list(made))


def _comparable(batch: pa.RecordBatch, column: ReadColumn, cell: ImageCell) -> Any:
    kind = Kind[cell.kind]
    (found,) = reach(batch, [_goal(column, kind, cell.change)])
    if kind is Kind.DATE and pa.types.is_timestamp(found.type):
        return found.cast(pa.timestamp("s")).cast(pa.date32())
    if kind is Kind.GEOMETRY and pa.types.is_binary(found.type):
        return pa.array([None if v is None else v.hex() for v in found.to_pylist()], pa.string())
    if cell.change.startswith(ROUNDED):
        return _round(found, cell.change)
    return change_texts(found, cell.change)


def _goal(column: ReadColumn, kind: Kind, change: str) -> Goal:
    """Return in what form the driver's values are needed; digits and offsets as the rules say."""
    form = Form.SAME
    is_time = column.kind.base == "DATE" or column.kind.base.startswith("TIMESTAMP")
    if is_time and kind in (*_MOMENTS, Kind.DATE):
        has_zone = column.kind.base.endswith("TIME ZONE")
        form = Form.MOMENT if has_zone else Form.TIMESTAMP
    elif kind in _TEXTS and column.neutral not in ("string", "binary"):
        form = Form.TEXT
    losses = {NANOSECONDS: ROUND, OFFSETS: UTC} if form is not Form.SAME else {}
    if change == UNFIT_AS_NULL:
        losses |= {DATES: NULL, NOT_A_NUMBER: NULL}
    return Goal(type_text=column.kind.text, form=form, losses=losses)


def _round(values: Any, change: str) -> Any:
    """Return numbers, given as texts, rounded half up, with the digits that are left."""
    unit = Decimal(1).scaleb(-int(change.rpartition("_")[2]))
    rounded = [
        None if one is None else Decimal(str(one)).quantize(unit, ROUND_HALF_UP, _WIDE)
        for one in values.to_pylist()
    ]
    texts = [None if one is None else f"{one or abs(one):f}" for one in rounded]  # no -0
    return pa.array(texts, pa.string())
