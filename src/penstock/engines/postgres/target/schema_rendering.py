"""Defaults, indexes and foreign keys of another engine's table in PostgreSQL's form. Pure."""

from __future__ import annotations

from penstock.codec.types import Mapping, Server
from penstock.engines.postgres.connect import literal
from penstock.model import ColumnDefinition, ForeignKey, TableDefinition
from penstock.sql.schema_translation import (
    FIXED_BYTES,
    Default,
    DefaultKind,
    IndexPart,
    SchemaDescription,
    base_of,
    bits_sql,
    length_of,
    now_sql,
)

index_bytes_max = 2600  # what fits a page whatever the values are
_CHARACTER_BYTES = 4


def may_number(
    definition: TableDefinition,  # noqa: ARG001 - the port's
    description: SchemaDescription,  # noqa: ARG001 - the port's
    column: ColumnDefinition,  # noqa: ARG001 - the port's
    mapping: Mapping,
) -> bool:
    """Return whether a column's type is an integer, which GENERATED AS IDENTITY requires."""
    return mapping.target_type.lower() in ("smallint", "integer", "bigint")


def default_sql(
    default: Default,
    column: ColumnDefinition,
    mapping: Mapping,
    target: Server,  # noqa: ARG001 - the port's
) -> str | None:
    """Return a default as SQL of the target; None if the target has no equivalent."""
    match default.kind:
        case DefaultKind.NOW:
            return now_sql(mapping)
        case DefaultKind.BITS:
            return bits_sql(default.value, mapping)
        case DefaultKind.BOOL | DefaultKind.NUMBER:
            return default.value
        case DefaultKind.LITERAL if column.neutral != "binary" and "\0" not in default.value:
            return f"{literal(default.value)}::{mapping.target_type}"
    return None


def index_part(
    part: IndexPart,
    column: ColumnDefinition,  # noqa: ARG001 - the port's
    mapping: Mapping,
) -> tuple[IndexPart, int] | str:
    """Return a column in an index. One over long values would be created, and then refuse rows."""
    if part.prefix:
        return f"it is over the beginning of {part.column}"
    base = base_of(mapping.target_type)
    if base in ("varchar", "char", "character"):
        return part, length_of(mapping.target_type, 1) * _CHARACTER_BYTES
    if base in ("json", "jsonb", "point") or base.endswith("geometry"):
        return f"column {part.column} is {base} there, which has no such index"
    if base in ("text", "bytea"):
        return f"column {part.column} is {base} there, which an index may refuse when it is long"
    return part, FIXED_BYTES


def refuses(key: ForeignKey) -> str:  # noqa: ARG001 - the port's
    """Return no refusal: uncaptured tables and non-key columns are found later (`referable`)."""
    return ""
