"""Rows that a repair copies again: those whose key has one of some hashes.

SQL Server does not compute the hashes, so the text of the query is JSON: the SELECT of all rows,
with the key's columns in front, and the choice. The reader drops the other rows.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from penstock.codec.image_cells import ImageCell
from penstock.codec.row_images import is_chosen
from penstock.codec.sqlserver.columns import SourceColumn
from penstock.codec.sqlserver.row_images import image_batch


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Hashes of keys.

    Attributes:
        key: cells of the key.
        types: types of the key's columns, in order.
        buckets: number of buckets; 0 if numbers are hashes of keys.
        numbers: buckets, or first hashes.
    """

    key: tuple[tuple[str, str, bool, bool, bool, str], ...]
    types: tuple[str, ...] = ()
    buckets: int
    numbers: tuple[int, ...]

    @property
    def cells(self) -> tuple[ImageCell, ...]:
        """Cells of the key."""
        return tuple(ImageCell(*one) for one in self.key)

    @property
    def columns(self) -> tuple[SourceColumn, ...]:
        """Columns of the key."""
        return tuple(
            SourceColumn.of(cell.name, text)
            for cell, text in zip(self.cells, self.types, strict=True)
        )


class ChosenRows(msgspec.Struct, frozen=True, kw_only=True):
    """A query and a choice of its rows. The first columns are those of the choice's key."""

    sql: str
    choice: Choice

    @classmethod
    def parse(cls, text: str) -> ChosenRows:
        """Return the content of a text that `is_chosen_text`."""
        return msgspec.json.decode(text, type=cls)

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the chosen rows of a batch, without the columns in front."""
        count = len(self.choice.key)
        keys = image_batch(batch.select(range(count)), self.choice.columns, self.choice.cells)
        asked: dict[str, Any] = {
            "key": [cell[:5] for cell in self.choice.cells],
            "buckets": self.choice.buckets,
            "numbers": self.choice.numbers,
        }
        rest: pa.RecordBatch = batch.select(range(count, batch.num_columns))
        return rest.filter(pa.array(is_chosen(keys, asked)))


def is_chosen_text(text: str) -> bool:
    """Return whether a chunk's text is a choice, not T-SQL."""
    return text.startswith("{")
