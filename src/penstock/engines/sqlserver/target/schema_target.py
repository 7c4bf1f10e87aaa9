"""Defaults, indexes and foreign keys of another engine's table in SQL Server's form. Pure."""

from __future__ import annotations

from penstock.codec.sqlserver.types import MAX, parse_type
from penstock.codec.types import Mapping, Server
from penstock.engines.sqlserver.connect import literal
from penstock.engines.sqlserver.target.catalog import without_collation
from penstock.model import ColumnDefinition, ForeignKey, TableDefinition
from penstock.sql.schema_translation import (
    FIXED_BYTES,
    Default,
    DefaultKind,
    IndexPart,
    SchemaDescription,
)

index_bytes_max = 1_700  # of an index without clustering
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NO_INDEX = ("xml", "json", "geometry", "geography", "text", "ntext", "image")
_NOW = {
    "date": "CAST(SYSUTCDATETIME() AS date)",
    "time": "CAST(SYSUTCDATETIME() AS time)",
    "datetimeoffset": "SYSDATETIMEOFFSET()",
}
_QUOTED = ("char", "varchar", "nchar", "nvarchar", "date", "datetime2", "datetime", "time")


def may_number(
    definition: TableDefinition,  # noqa: ARG001 - the port's
    description: SchemaDescription,
    column: ColumnDefinition,
    mapping: Mapping,
) -> bool:
    """Return whether IDENTITY is allowed: an integer, one for each table."""
    is_whole = parse_type(without_collation(mapping.target_type)).base in _WHOLE
    return is_whole and description.numbered[0] == column.name


def default_sql(
    default: Default,
    column: ColumnDefinition,
    mapping: Mapping,
    target: Server,  # noqa: ARG001 - the port's
) -> str | None:
    """Return a default as SQL of the target; None if the target has no equivalent."""
    base = parse_type(without_collation(mapping.target_type)).base
    match default.kind:
        case DefaultKind.NOW:
            return _NOW.get(base, "SYSUTCDATETIME()")
        case DefaultKind.BITS if base in (*_WHOLE, "bit", "decimal"):
            return str(int(default.value or "0", 2))
        case DefaultKind.BOOL if base in (*_WHOLE, "bit"):
            return "1" if default.value == "true" else "0"
        case DefaultKind.NUMBER if base not in ("nvarchar", "varchar"):
            return default.value
        case DefaultKind.NUMBER:
            return literal(default.value)
        case DefaultKind.LITERAL if base in _QUOTED and column.neutral != "binary":
            return literal(default.value)
    return None


def index_part(
    part: IndexPart,
    column: ColumnDefinition,
    mapping: Mapping,
) -> tuple[IndexPart, int] | str:
    """Return a column in an index, with its bytes; or why it cannot be there."""
    if part.prefix:
        return f"it is over the beginning of {part.column}"
    if column.generated:
        return f"column {part.column} is not in the target"
    kind = parse_type(without_collation(mapping.target_type))
    if kind.base in _NO_INDEX:
        return f"column {part.column} is {kind.base} there, which has no such index"
    if kind.length == MAX:
        return f"column {part.column} is {kind.text} there, which has no index"
    if kind.length is not None:
        return part, kind.length * (2 if kind.base in ("nchar", "nvarchar") else 1)
    return part, FIXED_BYTES


def refuses(key: ForeignKey) -> str:  # noqa: ARG001 - the port's
    """Return no refusal: the server has all actions, and RESTRICT is its NO ACTION."""
    return ""
