"""How rows lie in a merge table of MySQL or MariaDB: names, types and order of its columns.

As `engines/postgres/target/merge_rows.py` has it for PostgreSQL: the table's columns under their
own names, all nullable, behind a few of ours, whose names begin with `wk$`. Values are staged as
their neutral type, or as text where the servers' own types hold less (dates of any era, NaN), and
get the target column's type where they are applied. Labels are staged in an ENUM of their own:
strict mode accepts the value 0 from another ENUM, but from no expression. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.columns import arrow_type
from penstock.codec.exact_cast import cast_exactly
from penstock.codec.mysql.types import parse_type
from penstock.engines.mysql.connect import KEY_REQUIRED, quoted
from penstock.host.errors import StatementFailed
from penstock.model import Column, Relation

_BY_CODE = "character set utf8mb4 collate utf8mb4_bin"
TEXT = f"longtext {_BY_CODE}"
SHORT_TEXT = f"varchar(40) {_BY_CODE}"
DECIMAL_PRECISION_MAX, DECIMAL_SCALE_MAX = 65, 30
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
_SQL = {
    "bool": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint32": "int unsigned",
    "uint64": "bigint unsigned",
    "float32": SHORT_TEXT,
    "float64": SHORT_TEXT,
    "date": SHORT_TEXT,
    "time": "time(6)",
    "timestamp": SHORT_TEXT,
    "timestamptz": SHORT_TEXT,
    "uuid": SHORT_TEXT,
    "binary": "longblob",
    "string": TEXT,
}


ENUM = "enum("
_LABELS_MAX = 4096  # characters of all labels of an ENUM that is made anew


def enum_sql(column: Column) -> str:
    """The ENUM in which the labels of a source's ENUM are staged; empty where there is none."""
    kind = parse_type(column.source_type) if column.neutral == "string" else None
    if kind is None or kind.base != "enum" or not kind.labels:
        return ""
    if len({label.rstrip(" ") for label in kind.labels}) < len(kind.labels):
        return ""  # strict mode makes no ENUM with one label twice
    # As `parse_type` reads them.
    labels = ",".join(
        "'" + label.replace("\\", "\\\\").replace("'", "''") + "'" for label in kind.labels
    )
    return f"{ENUM}{labels}) {_BY_CODE}" if len(labels) <= _LABELS_MAX else ""


def staged_sql(column: Column, *, identifies: bool = False) -> str:
    """The type as which a column's values are staged.

    identifies: rows are found by it. A FLOAT equals the same FLOAT, and few other numbers.
    """
    if identifies and column.neutral == "float32":
        return "float"
    match = _DECIMAL.match(column.neutral)
    if match is None:
        return enum_sql(column) or _SQL[column.neutral]
    precision, scale = int(match[1]), int(match[2])
    fits = precision <= DECIMAL_PRECISION_MAX and scale <= DECIMAL_SCALE_MAX
    return f"decimal({precision},{scale})" if fits else TEXT


def _labels_of(sql: str) -> tuple[str, ...]:
    kind = parse_type(sql.removesuffix(f" {_BY_CODE}"))
    assert kind is not None, "we have written it"
    return kind.labels


class MergeLayout:
    """The merge table of one relation version; `count`, `absent`, `origin` as for PostgreSQL.

    number: of the row, in a table without a key.
    """

    def __init__(self, relation: Relation) -> None:
        prefix = "wk$"
        while any(column.name.lower().startswith(prefix) for column in relation.columns):
            prefix += "$"
        self.relation = relation
        self.count = f"{prefix}n"
        self.number = f"{prefix}row"
        self.absent = f"{prefix}absent"
        self.origin = tuple(f"{prefix}key{place}" for place in range(1, len(relation.key) + 1))
        own: list[tuple[str, pa.DataType, str]] = [(self.count, pa.int64(), "bigint")]
        if relation.key:
            own.append((self.absent, pa.binary(), "varbinary(512)"))
        for name, index in zip(self.origin, relation.key, strict=True):
            column = relation.columns[index]
            own.append((name, arrow_type(column.neutral), self.staged_sql(index)))
        columns = [
            *own,
            *(
                (column.name, arrow_type(column.neutral), self.staged_sql(index))
                for index, column in enumerate(relation.columns)
            ),
        ]
        self.schema = pa.schema([(name, arrow) for name, arrow, _ in columns])
        self.sql_columns = tuple((name, sql) for name, _, sql in columns)

    def staged_sql(self, index: int) -> str:
        """The type as which the relation's column of this index is staged."""
        key = self.relation.key
        return staged_sql(self.relation.columns[index], identifies=not key or index in key)

    def without_label(self) -> tuple[str, ...]:
        """The columns in which an empty text is the value 0 of an ENUM, not a label."""
        return tuple(
            name
            for name, sql in self.sql_columns
            if sql.startswith(ENUM) and "" not in _labels_of(sql)
        )

    def floats(self) -> tuple[str, ...]:
        """The columns that are staged as FLOAT, and so refuse a text that is slightly more."""
        return tuple(name for name, sql in self.sql_columns if sql == "float")

    def reference(self, index: int, alias: str = "penstock_m") -> str:
        """The relation's column of this index, quoted."""
        return f"{alias}.{quoted(self.relation.columns[index].name)}"

    def make(self, run: Callable[[str], object], table: str, *, kind: str = "table") -> None:
        """Create it, with a primary key of its own if the server takes no table without.

        run: runs a statement. kind: `table` or `temporary table`.
        """
        try:
            run(self.create(table, kind=kind))
        except StatementFailed as error:
            if error.fields.get("errno") not in KEY_REQUIRED:
                raise
            run(self.create(table, kind=kind, is_numbered=True))

    def create(self, table: str, *, kind: str = "table", is_numbered: bool = False) -> str:
        """Return the statement that creates it. It holds nothing that cannot be made again.

        is_numbered: rows are numbered, as they are without a key.
        """
        columns = [f"{quoted(name)} {sql} null" for name, sql in self.sql_columns]
        if is_numbered or not self.relation.key:
            columns.append(f"{quoted(self.number)} bigint not null auto_increment primary key")
        body = ",\n    ".join(columns)
        return (
            f"create {kind} {table} (\n    {body}\n) engine = InnoDB row_format = dynamic"
            " default character set utf8mb4 collate utf8mb4_bin"
        )

    def batch(
        self,
        counts: npt.NDArray[np.int64],
        columns: list[Any],
        *,
        bitmaps: Any = None,
        origin: list[Any] | None = None,
    ) -> pa.RecordBatch:
        """One batch; a column given as None is all null."""
        size = len(counts)
        arrays: list[Any] = [pa.array(counts)]
        if self.relation.key:
            arrays.append(bitmaps)
            arrays += origin if origin is not None else [None] * len(self.origin)
        arrays += columns
        return pa.RecordBatch.from_arrays(
            [
                pa.nulls(size, kind.type) if values is None else cast_exactly(values, kind.type)
                for values, kind in zip(arrays, self.schema, strict=True)
            ],
            schema=self.schema,
        )
