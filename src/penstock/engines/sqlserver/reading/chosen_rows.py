"""Rows of SQL Server that a repair copies again: see `sql/chosen_rows.py`."""

from __future__ import annotations

import pyarrow as pa

from penstock.codec.sqlserver.columns import SourceColumn
from penstock.codec.sqlserver.row_images import image_batch
from penstock.sql.chosen_rows import Choice, ChosenRows


def columns_of(choice: Choice) -> tuple[SourceColumn, ...]:
    """Return the columns of a choice's key."""
    named = zip(choice.cells, choice.types, strict=True)
    return tuple(SourceColumn.of(cell.name, text) for cell, text in named)


def take_chosen(chosen: ChosenRows, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the chosen rows of a batch of the query, without the key's columns in front."""
    choice, width = chosen.choice, len(chosen.choice.key)
    keys = image_batch(batch.select(range(width)), columns_of(choice), choice.cells)
    return chosen.take(batch, width, keys)
