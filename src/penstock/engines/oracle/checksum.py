"""Dialect of `penstock verify` for Oracle: `Dialect` of `ports/verify.py`.

Queries are JSON texts that `verify.py` answers: see `sql/own_checksums.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.codec.oracle.read_columns import ReadColumn, select_expression
from penstock.engines.oracle.connect import quote
from penstock.model import TableDefinition
from penstock.sql.chosen_rows import Choice, ChosenRows, chosen_rows
from penstock.sql.own_checksums import (
    bucket_query,
    image,
    is_long,
    names_query,
    printed_images,
    rows_query,
)

__all__ = [
    "bucket_query",
    "chosen_rows",
    "column_name",
    "image",
    "is_long",
    "names_query",
    "printed_images",
    "rows_query",
    "select_rows",
]


def column_name(name: str) -> str:
    """Return a column's name as in `VerifyReader.column_types`: case counts."""
    return name


def select_rows(
    table: TableDefinition, columns: Sequence[str], expressions: Sequence[str], where: str
) -> str:
    """Return a text by which the bulk reader reads the chosen rows: `ChosenRows` as JSON.

    The reader of `verify.py` adds the moment as of which they are read.
    """
    choice = Choice.parse(where)
    types = {one.name: ReadColumn.from_column(one) for one in table.columns}
    key = [types[cell.name] for cell in choice.cells]
    listed = list(expressions) or [select_expression(types[name]) for name in columns]
    rows = ChosenRows(
        sql=f"SELECT {', '.join([*map(select_expression, key), *listed])} FROM "
        f"{quote(*table.name)}",
        choice=msgspec.structs.replace(choice, types=tuple(column.kind.text for column in key)),
    )
    return msgspec.json.encode(rows).decode()
