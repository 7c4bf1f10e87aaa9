"""Rows that a repair copies again or deletes: those whose key has one of some hashes.

Oracle does not compute the hashes, so the text of the query is JSON: the SELECT of all rows, with
the key's columns in front, and the choice. The reader drops the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.image_cells import ImageCell
from penstock.codec.oracle.read_columns import ReadColumn, select_expression
from penstock.codec.oracle.row_images import image_batch, width_of
from penstock.codec.row_images import is_chosen
from penstock.engines.oracle.connect import Connection, literal, quote
from penstock.engines.oracle.reading.catalog import read_definitions
from penstock.model import TableName
from penstock.ports.verify import table_gone

ROWS_OF_STATEMENT = 200
_BATCH_ROWS = 16_384


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
    def columns(self) -> tuple[ReadColumn, ...]:
        """Columns of the key."""
        return tuple(
            ReadColumn.of(cell.name, text)
            for cell, text in zip(self.cells, self.types, strict=True)
        )

    @property
    def width(self) -> int:
        """Number of expressions that select the key."""
        return sum(map(width_of, self.columns))

    def find(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is chosen. batch: with the key's columns in front."""
        keys = image_batch(batch.select(range(self.width)), self.columns, self.cells)
        asked: dict[str, Any] = {
            "key": [cell[:5] for cell in self.cells],
            "buckets": self.buckets,
            "numbers": self.numbers,
        }
        return is_chosen(keys, asked)


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
        rest: pa.RecordBatch = batch.select(range(self.choice.width, batch.num_columns))
        return rest.filter(pa.array(self.choice.find(batch)))


def is_chosen_text(text: str) -> bool:
    """Return whether a chunk's text is a choice, not SQL."""
    return text.startswith("{")


def row_conditions(connection: Connection, table: TableName, text: str) -> Iterator[str]:
    """Yield conditions that together have the chosen rows of a table: by their row ids.

    connection: in the transaction that deletes them. text: of `checksum.chosen_rows`. Raises
    TableGone.
    """
    choice = msgspec.json.decode(text, type=Choice)
    found = read_definitions(connection, [table]).get(table)
    if found is None:
        raise table_gone(table, "target")
    by_name = {column.name: ReadColumn.from_column(column) for column in found.columns}
    columns = [by_name[cell.name] for cell in choice.cells]
    choice = msgspec.structs.replace(choice, types=tuple(one.kind.text for one in columns))
    listed = [*map(select_expression, columns), "ROWIDTOCHAR(ROWID)"]
    sql = f"SELECT {', '.join(listed)} FROM {quote(*table)}"
    chosen: list[str] = []
    for batch in connection.arrow(sql, rows=_BATCH_ROWS):
        kept = batch.column(batch.num_columns - 1).filter(pa.array(choice.find(batch)))
        chosen += kept.to_pylist()
    for first in range(0, len(chosen), ROWS_OF_STATEMENT):
        some = chosen[first : first + ROWS_OF_STATEMENT]
        yield f"ROWID IN ({', '.join(f'CHARTOROWID({literal(one)})' for one in some)})"
