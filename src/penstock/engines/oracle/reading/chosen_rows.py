"""Rows of Oracle that a repair copies again or deletes: see `sql/chosen_rows.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.codec.oracle.read_columns import ReadColumn, select_expression
from penstock.codec.oracle.row_images import image_batch, width_of
from penstock.engines.oracle.connect import Connection, literal, quote
from penstock.engines.oracle.reading.catalog import read_definitions
from penstock.model import TableName
from penstock.ports.verify import table_gone
from penstock.sql.chosen_rows import Choice, ChosenRows

ROWS_OF_STATEMENT = 200
_BATCH_ROWS = 16_384


def columns_of(choice: Choice) -> tuple[ReadColumn, ...]:
    """Return the columns of a choice's key."""
    named = zip(choice.cells, choice.types, strict=True)
    return tuple(ReadColumn.of(cell.name, text) for cell, text in named)


def take_chosen(chosen: ChosenRows, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the chosen rows of a batch of the query, without the key's columns in front."""
    columns = columns_of(chosen.choice)
    width = sum(map(width_of, columns))
    return chosen.take(batch, width, _key_images(chosen.choice, columns, batch))


def _key_images(
    choice: Choice, columns: Sequence[ReadColumn], batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Return the keys of rows as images need them. batch: with the key's columns in front."""
    width = sum(map(width_of, columns))
    return image_batch(batch.select(range(width)), columns, choice.cells)


def row_conditions(connection: Connection, table: TableName, text: str) -> Iterator[str]:
    """Yield conditions that together have the chosen rows of a table: by their row ids.

    connection: in the transaction that deletes them. text: of `checksum.chosen_rows`. Raises
    TableGone.
    """
    choice = Choice.parse(text)
    found = read_definitions(connection, [table]).get(table)
    if found is None:
        raise table_gone(table, "target")
    by_name = {column.name: ReadColumn.from_column(column) for column in found.columns}
    columns = [by_name[cell.name] for cell in choice.cells]
    listed = [*map(select_expression, columns), "ROWIDTOCHAR(ROWID)"]
    sql = f"SELECT {', '.join(listed)} FROM {quote(*table)}"
    chosen: list[str] = []
    for batch in connection.arrow(sql, rows=_BATCH_ROWS):
        kept = batch.column(batch.num_columns - 1).filter(
            pa.array(choice.find(_key_images(choice, columns, batch)))
        )
        chosen += kept.to_pylist()
    for first in range(0, len(chosen), ROWS_OF_STATEMENT):
        some = chosen[first : first + ROWS_OF_STATEMENT]
        yield f"ROWID IN ({', '.join(f'CHARTOROWID({literal(one)})' for one in some)})"
