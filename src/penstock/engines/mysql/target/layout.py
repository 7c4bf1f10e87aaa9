"""Layout of a merge table of MySQL or MariaDB: names, types and order of its columns.

It equals that of `engines/postgres/target/merge.py`: first a few columns of penstock, whose
names begin with `wk$`, then the table's columns under their own names, all nullable. Values are
staged as their neutral type, or as text if the servers' own types hold less (dates of any era,
NaN), and get the target column's type when they are applied. Labels are staged in an ENUM of their
own, because strict mode accepts the value 0 from another ENUM, but from no expression. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.columns import arrow_type, cast_exactly
from penstock.codec.mysql.retyping import keeps_values
from penstock.codec.mysql.types import parse_type
from penstock.codec.types import (
    NO_CHOICES,
    Choices,
    Engine,
    Mapping,
    Server,
    key_room_of_rows,
    map_column,
)
from penstock.engines.mysql.connect import KEY_REQUIRED, ServerVersion, literal, quote
from penstock.engines.mysql.target.target import TargetColumn
from penstock.host.errors import StatementFailed
from penstock.model import Column, ColumnDefinition, Relation, TableName
from penstock.ports.target import Layout
from penstock.sql.shape_changes import TypeRules

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
_LABELS_MAX = 4096  # characters of all labels of an ENUM that is created for staging


def enum_sql(column: Column) -> str:
    """Return the ENUM type that stages the labels of a source's ENUM; empty if there is none."""
    kind = parse_type(column.source_type) if column.neutral == "string" else None
    if kind is None or kind.base != "enum" or not kind.labels:
        return ""
    if len({label.rstrip(" ") for label in kind.labels}) < len(kind.labels):
        return ""  # strict mode allows no ENUM with duplicate labels
    # As `parse_type` reads them.
    labels = ",".join(
        "'" + label.replace("\\", "\\\\").replace("'", "''") + "'" for label in kind.labels
    )
    return f"{ENUM}{labels}) {_BY_CODE}" if len(labels) <= _LABELS_MAX else ""


def staged_sql(column: Column, *, identifies: bool = False) -> str:
    """Return the type in which a column's values are staged.

    identifies: whether rows are found by the column. A FLOAT then stays a FLOAT, because another
    type would rarely equal it.
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


class MergeLayout(Layout):
    """Merge table of one relation version; `count`, `absent`, `origin` as for PostgreSQL.

    number: column of the row's number, in a table without a key.
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
        """Return the type in which the relation's column of this index is staged."""
        key = self.relation.key
        return staged_sql(self.relation.columns[index], identifies=not key or index in key)

    def without_label(self) -> tuple[str, ...]:
        """Return the columns in which an empty text is the value 0 of an ENUM, not a label."""
        return tuple(
            name
            for name, sql in self.sql_columns
            if sql.startswith(ENUM) and "" not in _labels_of(sql)
        )

    def floats(self) -> tuple[str, ...]:
        """Return the columns staged as FLOAT, which refuse a text slightly above their range."""
        return tuple(name for name, sql in self.sql_columns if sql == "float")

    def reference(self, index: int, alias: str = "penstock_m") -> str:
        """Return the relation's column of this index, quoted."""
        return f"{alias}.{quote(self.relation.columns[index].name)}"

    def make(self, run: Callable[[str], object], table: str, *, kind: str = "table") -> None:
        """Create the table, with a primary key of its own if the server requires one.

        run: runs a statement. kind: `table` or `temporary table`.
        """
        try:
            run(self.create(table, kind=kind))
        except StatementFailed as error:
            if error.fields.get("errno") not in KEY_REQUIRED:
                raise
            run(self.create(table, kind=kind, is_numbered=True))

    def create(self, table: str, *, kind: str = "table", is_numbered: bool = False) -> str:
        """Return the statement that creates the table, whose rows can always be staged again.

        is_numbered: rows are numbered, as in tables without a key.
        """
        columns = [f"{quote(name)} {sql} null" for name, sql in self.sql_columns]
        if is_numbered or not self.relation.key:
            columns.append(f"{quote(self.number)} bigint not null auto_increment primary key")
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
        """Return one batch; a column given as None is all null."""
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


_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BLOBS = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_COLLATED = re.compile(r"\s+character set .*\Z", re.IGNORECASE | re.DOTALL)
_UTC = re.compile(r"(?:[+-]00(?::00)?|Z)\Z")


def target_server(version: ServerVersion) -> Server:
    """Return the target server in the form of the type mappings."""
    engine = Engine.MARIADB if version.is_mariadb else Engine.MYSQL
    return Server(engine=engine, version=version.number)


def source_server(engine: str) -> Server:
    """Return a source's server as the log knows it, without its version."""
    return Server(engine=Engine(engine or "postgresql"), version=())


def as_defined(column: Column) -> ColumnDefinition | Column:
    """Return a column of the log as a catalogue would describe it, with its collation."""
    if not column.collation:
        return column
    charset = column.collation.partition("_")[0]
    return ColumnDefinition(
        name=column.name,
        type_text=column.source_type,
        type_oid=column.type_oid,
        typmod=column.typmod,
        not_null=not column.nullable,
        collation=column.collation,
        base_type=column.base_type,
        neutral=column.neutral,
        charset="utf8mb3" if charset == "utf8" else charset,
    )


def mapping_of(
    column: Column | ColumnDefinition,
    source_engine: str,
    target: Server,
    *,
    choices: Choices = NO_CHOICES,
    table: TableName | None = None,
    key_of: Relation | None = None,
) -> Mapping:
    """Return the type mapping of a log column to the target.

    key_of: the relation whose key columns get types that a key can contain; None for none.
    """
    source = source_server(source_engine)
    room = key_room_of_rows(key_of, source, target) if key_of is not None else {}
    return map_column(
        column, source, target, choices=choices, table=table, key_bytes=room.get(column.name)
    )


def template_for(mapping: Mapping, target: TargetColumn) -> str:
    """Return the template by which a staged value is written into an existing column.

    The mapping's template is for the type that the mapping names. Into a column of another type,
    created by others, the value is written unchanged, and the server's strict mode decides.
    """
    if mapping.refused or _kind(mapping.target_type) != _kind(target.type_text):
        return "{}"
    return mapping.write.sql


def _kind(text: str) -> str:
    base = _COLLATED.sub("", text).partition("(")[0].partition(" ")[0].lower()
    if base in _TEXTS:
        return "text"
    return "bytes" if base in _BLOBS else base


def same_type(left: str, right: str) -> bool:
    """Return whether two printed types are equal but for display width, spelling, character set."""
    left, right = _COLLATED.sub("", left), _COLLATED.sub("", right)
    a, b = parse_type(left), parse_type(right)
    if a is None or b is None:
        return left.lower() == right.lower()
    if a.base in _INTEGERS and a.base == b.base:
        return a.unsigned == b.unsigned
    if {a.base, b.base} == {"json", "longtext"}:
        return True  # MariaDB's JSON
    if a.base == b.base == "decimal":
        return (*a.arguments, 0)[:2] == (*b.arguments, 0)[:2] and a.unsigned == b.unsigned
    default = (1,) if a.base == "bit" else (0,)
    return (a.base, a.arguments or default, a.labels, a.unsigned) == (
        b.base,
        b.arguments or default,
        b.labels,
        b.unsigned,
    )


def default_of(column: Column) -> str:
    """Return the value that old rows have in a new column, as a literal."""
    text = column.missing
    if text is None:
        return "null"
    if column.neutral == "binary" and text.startswith("\\x"):
        return f"x'{text[2:]}'"
    if column.neutral == "bool":
        text = "1" if text.lower() in ("t", "true", "1") else "0"
    if column.neutral == "timestamptz":
        text = _UTC.sub("", text)
    return literal(text)


# Which types are equal, and which keep values, when a column's type changes.
TYPE_RULES = TypeRules(
    holds=lambda wider, narrower: keeps_values(narrower, wider, strict=False), same=same_type
)
