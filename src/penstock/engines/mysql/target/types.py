"""A source's types in this target, by the one table of types (`codec.types`).

Pure.
"""

from __future__ import annotations

import re

from penstock.codec.mysql.types import parse_type
from penstock.codec.types import NO_CHOICES, Choices, Engine, Mapping, Server, map_column
from penstock.engines.mysql.connect import literal
from penstock.engines.mysql.target.target import TargetColumn
from penstock.engines.mysql.version import ServerVersion
from penstock.model import Column, ColumnDefinition, TableName

_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BLOBS = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_COLLATED = re.compile(r"\s+character set .*\Z", re.IGNORECASE | re.DOTALL)
_UTC = re.compile(r"(?:[+-]00(?::00)?|Z)\Z")


def target_server(version: ServerVersion) -> Server:
    """The target as the table of types knows it."""
    engine = Engine.MARIADB if version.is_mariadb else Engine.MYSQL
    return Server(engine=engine, version=version.number)


def source_server(engine: str) -> Server:
    """A source's server as far as the log knows it: without its version."""
    return Server(engine=Engine(engine or "postgresql"), version=())


def as_defined(column: Column) -> ColumnDefinition | Column:
    """Return a column of the log as a catalogue would tell it, with its collation."""
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
) -> Mapping:
    """How a column of the log is held in the target."""
    return map_column(column, source_server(source_engine), target, choices=choices, table=table)


def template_for(mapping: Mapping, target: TargetColumn) -> str:
    """How a staged value is written into an existing column.

    The table's template is for the type that the table names: in a column of another type, which
    somebody else has made, the value is written unchanged, and the server's strict mode decides.
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
    """Whether two printed types are one: display widths, spellings, character sets do not count."""
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
    """The value that old rows have in a new column, as a literal."""
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
