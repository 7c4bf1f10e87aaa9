"""Conditions for rows of a SQL Server table that a repair deletes: those with chosen hashes.

SQL Server does not compute the hashes: the key of every row is read, and the chosen ones are named
by their values. A table without a key is named by all columns; equal rows have one condition.
Texts are compared by their code units and their length, because `=` ignores blanks at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codec.sqlserver.columns import SourceColumn, select_expression
from penstock.codec.sqlserver.row_images import image_batch
from penstock.codec.sqlserver.types import parse_type
from penstock.codec.types.to_sqlserver import COLLATION
from penstock.engines.sqlserver.connect import Connection, literal, quote
from penstock.engines.sqlserver.reading import statements
from penstock.engines.sqlserver.reading.catalog import read_definitions
from penstock.engines.sqlserver.reading.chunks import read_and_write
from penstock.model import ColumnDefinition, PenstockError, TableName
from penstock.ports.verify import table_gone
from penstock.sql.chosen_rows import Choice

ROWS_OF_STATEMENT = 50
_TEXTS = frozenset(("char", "varchar", "nchar", "nvarchar"))
_BYTES = frozenset(("binary", "varbinary", "rowversion"))
_FLOATS = frozenset(("real", "float"))
_INCOMPARABLE = frozenset(
    ("text", "ntext", "image", "xml", "json", "sql_variant", "hierarchyid", "geometry", "geography")
)
_BATCH_ROWS = 16_384


class RowUnnamed(PenstockError):
    """A table has no key, and a column that T-SQL cannot compare: its rows cannot be deleted."""

    code = "MS43"
    retry = "operator"


def row_conditions(connection: Connection, table: TableName, text: str) -> Iterator[str]:
    """Yield conditions that together have the chosen rows of a table.

    text: of `checksum.chosen_rows`. Raises RowUnnamed, TableGone.
    """
    choice = Choice.parse(text)
    found = read_definitions(connection, [table]).get(table)
    if found is None:
        raise table_gone(table, "target")
    by_name = {column.name.lower(): column for column in found.columns}
    columns = [by_name[cell.name.lower()] for cell in choice.cells]
    named = list(_name_rows(connection, table, columns, choice))
    conditions = list(dict.fromkeys(named))  # rows that are equal have one
    for first in range(0, len(conditions), ROWS_OF_STATEMENT):
        some = conditions[first : first + ROWS_OF_STATEMENT]
        yield " OR ".join(f"({one})" for one in some)


def _name_rows(
    connection: Connection, table: TableName, columns: Sequence[ColumnDefinition], choice: Choice
) -> Iterator[str]:
    """Yield the condition of each chosen row."""
    printers = [_printer(table, column) for column in columns]
    read = [SourceColumn.from_column(column) for column in columns]
    cells = choice.cells
    renamed = [one.with_name(cell.name) for one, cell in zip(read, cells, strict=True)]
    listed = [
        *(select_expression(one, alias=f"__key{at}") for at, one in enumerate(read)),
        *(f"{shown} AS v{at}" for at, (shown, _) in enumerate(printers)),
        *(f"{_length(one)} AS n{at}" for at, one in enumerate(columns)),
    ]
    count = len(columns)
    for batch in connection.arrow(statements.rows(table, listed), rows=_BATCH_ROWS):
        keys = image_batch(batch.select(range(count)), renamed, cells)
        chosen = batch.take(pa.array(np.flatnonzero(choice.find(keys))))
        found = [chosen.column(at).to_pylist() for at in range(count, 3 * count)]
        for row in zip(*found, strict=True):
            yield " AND ".join(
                compare(row[at], row[at + count]) for at, (_, compare) in enumerate(printers)
            )


def _length(column: ColumnDefinition) -> str:
    """Return the expression of a value's bytes; 0 for types that have always the same."""
    base = parse_type(column.type_text).base
    return f"DATALENGTH({quote(column.name)})" if base in _TEXTS | _BYTES else "0"


def _printer(table: TableName, column: ColumnDefinition) -> tuple[str, Callable[[Any, Any], str]]:
    """Return the expression of a value's exact text, and its comparison with text and length."""
    name, kind = quote(column.name), parse_type(column.type_text)
    if kind.base in _INCOMPARABLE:
        raise RowUnnamed(
            f"rows of {table} cannot be deleted one by one: {column.name} has the type {kind.text}",
            hint="Give the table a primary key, or load it again: penstock table resync.",
            table=str(table),
        )
    if kind.base in _TEXTS:
        return name, _comparison(name, lambda text: f"{name} {COLLATION} = {literal(text)}", True)
    if kind.base in _FLOATS:
        shown = f"CONVERT(varchar(40), {name}, 3)"
        return shown, _comparison(name, lambda text: f"{name} = CONVERT({kind.text}, '{text}')")
    shown, write = read_and_write(column)
    return shown, _comparison(name, lambda text: f"{name} = {write(text)}", kind.base in _BYTES)


def _comparison(
    name: str, equals: Callable[[str], str], has_length: bool = False
) -> Callable[[Any, Any], str]:
    """Return the function that makes a condition. has_length: `=` ignores the end of a value."""

    def compare(value: Any, length: Any) -> str:
        if value is None:
            return f"{name} IS NULL"
        found = equals(str(value))
        return f"{found} AND DATALENGTH({name}) = {length}" if has_length else found

    return compare
