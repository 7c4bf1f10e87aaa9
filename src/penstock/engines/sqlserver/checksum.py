"""Questions for images and checksums of SQL Server's rows: `Dialect` of `ports/verify.py`.

Queries are JSON texts that `verify.py` answers: see `sql/own_checksums.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.codec.sqlserver.columns import SourceColumn, select_expression
from penstock.engines.sqlserver.reading import statements
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
    """Return a column's name as in `VerifyReader.column_types`, whose case may be ignored."""
    return name.lower()


def select_rows(
    table: TableDefinition, columns: Sequence[str], expressions: Sequence[str], where: str
) -> str:
    """Return a text by which the bulk reader reads the chosen rows: `ChosenRows` as JSON."""
    choice = Choice.parse(where)
    types = {one.name.lower(): SourceColumn.from_column(one) for one in table.columns}
    key = [types[cell.name.lower()] for cell in choice.cells]
    front = [select_expression(column, alias=f"__key{place}") for place, column in enumerate(key)]
    listed = expressions or [select_expression(types[name.lower()]) for name in columns]
    named = tuple(cell._replace(name=f"__key{place}") for place, cell in enumerate(choice.cells))
    rows = ChosenRows(
        sql=statements.rows(table.name, [*front, *listed]),
        choice=msgspec.structs.replace(
            choice, key=named, types=tuple(column.kind.text for column in key)
        ),
    )
    return msgspec.json.encode(rows).decode()
