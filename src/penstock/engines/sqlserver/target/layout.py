"""Layout of a merge table of SQL Server: names, types and order of its columns.

First a few columns of penstock, whose names begin with `wk$`, then the table's columns under their
own names, all nullable. It is a heap without indexes, into which several workers load at the same
time. Every row carries the stamp of its filling, so that rows of a late worker are seen. Text is
compared by its code points. Pure.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.arrow_texts import TEXT, text_values
from penstock.codec.columns import arrow_type, cast_exactly
from penstock.codec.sqlserver.arrow_rows import sent_type, sent_values
from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.target.progress import EXACT
from penstock.model import LOAD_AFRESH, Column, Relation
from penstock.ports.target import SCHEMA, Layout, ShapeNotApplicable

COLUMNS_MAX = 1_024  # of a table of SQL Server
STAMP = "wk$stamp"
"""Column with the stamp, which has the same name in every merge table."""
TEXT_SQL = f"nvarchar(max) {EXACT}"
STAGED = {
    "bool": "bit",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint32": "bigint",
    "uint64": "decimal(20,0)",
    "float32": "real",
    "float64": "float",
    "date": "date",
    "time": "time(6)",
    "timestamp": "datetime2(6)",
    "timestamptz": "datetimeoffset(6)",
    "uuid": "uniqueidentifier",
    "binary": "varbinary(max)",
    "string": TEXT_SQL,
}
"""Types of SQL Server in which values of each neutral type are staged."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")


def staged_sql(column: Column, *, is_text: bool = False) -> str:
    """Return the type in which a column's values are staged."""
    match = _DECIMAL.match(column.neutral)
    if is_text:
        return TEXT_SQL
    return f"decimal({match[1]},{match[2]})" if match else STAGED[column.neutral]


class MergeLayout(Layout):
    """Merge table of one relation version.

    Attributes:
        count: Name of the column with GONE, UPSERT or NEW; in a table without a key the number of
            copies to insert or, if it is negative, to delete.
        absent: Name of the column with the bitmap of unsent columns, or NULL.
        origin: Names of the columns with the key under which the target has a row with unsent ones.
    """

    def __init__(
        self, relation: Relation, *, as_text: frozenset[int] = frozenset(), stamp: int = 0
    ) -> None:
        """Derive the layout. as_text: indexes of columns staged as text. Raises
        ShapeNotApplicable for more columns than a table can have.
        """
        prefix = "wk$"
        while any(column.name.lower().startswith(prefix) for column in relation.columns):
            prefix += "$"
        self.relation = relation
        self.count = f"{prefix}n"
        self.absent = f"{prefix}absent"
        self.origin = tuple(f"{prefix}key{place}" for place in range(1, len(relation.key) + 1))
        self._check_names()
        self._stamp = stamp
        self._as_text = as_text
        own: list[tuple[str, pa.DataType, str]] = [(self.count, pa.int64(), "bigint")]
        if relation.key:
            own.append((self.absent, pa.binary(), "varbinary(128)"))
        for name, index in zip(self.origin, relation.key, strict=True):
            own.append((name, *self._kind(index)))
        columns = [
            *own,
            *((column.name, *self._kind(index)) for index, column in enumerate(relation.columns)),
            (STAMP, pa.int64(), "bigint"),
        ]
        if len(columns) > COLUMNS_MAX:
            raise ShapeNotApplicable(
                f"{relation.full_name} has {len(relation.columns)} columns, and its merge table "
                f"would have {len(columns)}: a table of SQL Server has at most {COLUMNS_MAX:,}",
                hint=f"Leave the table out of [source] tables. {LOAD_AFRESH}",
                table=relation.full_name,
            )
        self.schema = pa.schema([(name, kind) for name, kind, _ in columns])
        self.sql_columns = tuple((name, sql) for name, _, sql in columns)

    def _check_names(self) -> None:
        if any(column.name.lower() == STAMP for column in self.relation.columns):
            raise ShapeNotApplicable(
                f"{self.relation.full_name} has a column {STAMP}, which merge tables have, too",
                hint="Rename the column at the source, or leave the table out of [source] tables.",
                table=self.relation.full_name,
            )

    def _kind(self, index: int) -> tuple[pa.DataType, str]:
        column, is_text = self.relation.columns[index], index in self._as_text
        kind = TEXT if is_text else sent_type(arrow_type(column.neutral))
        return kind, staged_sql(column, is_text=is_text)

    def reference(self, index: int, alias: str = "m") -> str:
        """Return the relation's column of this index, quoted."""
        return f"{alias}.{quote(self.relation.columns[index].name)}"

    def create(self, name: str) -> str:
        """Return the statement that creates the merge table of this name."""
        columns = ",\n    ".join(f"{quote(column)} {sql} NULL" for column, sql in self.sql_columns)
        return f"CREATE TABLE {quote(SCHEMA, name)} (\n    {columns}\n)"

    def batch(
        self,
        counts: npt.NDArray[np.int64],
        columns: list[Any],
        *,
        bitmaps: Any = None,
        origin: list[Any] | None = None,
    ) -> pa.RecordBatch:
        """Return one batch, ready to be sent; a column given as None is all null.

        Raises `arrow_rows.ValueUnfit` for a value that SQL Server has no place for.
        """
        size = len(counts)
        arrays: list[Any] = [pa.array(counts)]
        if self.relation.key:
            arrays.append(bitmaps)
            keys = origin if origin is not None else [None] * len(self.origin)
            arrays += [
                self._convert(index, values)
                for index, values in zip(self.relation.key, keys, strict=True)
            ]
        arrays += [self._convert(index, values) for index, values in enumerate(columns)]
        arrays.append(pa.array(np.full(size, self._stamp, dtype=np.int64)))
        return pa.RecordBatch.from_arrays(
            [
                pa.nulls(size, field.type) if values is None else cast_exactly(values, field.type)
                for values, field in zip(arrays, self.schema, strict=True)
            ],
            schema=self.schema,
        )

    def _convert(self, index: int, values: Any) -> Any:
        if values is None:
            return None
        if index in self._as_text:
            return text_values(values)
        column = self.relation.columns[index]
        return sent_values(cast_exactly(values, arrow_type(column.neutral)), column.name)
