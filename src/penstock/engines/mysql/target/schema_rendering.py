"""Defaults, indexes and foreign keys of another engine's table in MySQL's and MariaDB's form."""

from __future__ import annotations

from penstock.codec.types import Engine, Mapping, Server, fill_template
from penstock.engines.mysql.connect import literal
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

index_bytes_max = 3072  # of InnoDB
PREFIX_CHARACTERS = 255
_CHARACTER_BYTES = 4
_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint")


def may_number(
    definition: TableDefinition,
    description: SchemaDescription,
    column: ColumnDefinition,
    mapping: Mapping,
) -> bool:
    """Return whether AUTO_INCREMENT is allowed: integer, first in the key, one per table."""
    is_first = definition.primary_key[:1] == (column.name,)
    is_whole = base_of(mapping.target_type) in _WHOLE
    return is_whole and is_first and description.numbered[0] == column.name


def default_sql(
    default: Default, column: ColumnDefinition, mapping: Mapping, target: Server
) -> str | None:
    """Return a default as SQL of the target; None if it has no equivalent."""
    match default.kind:
        case DefaultKind.NOW:
            return now_sql(mapping)
        case DefaultKind.BITS:
            return bits_sql(default.value, mapping)
        case DefaultKind.BOOL:
            return "1" if default.value == "true" else "0"
        case DefaultKind.NUMBER:
            return default.value
        case DefaultKind.LITERAL:
            return _literal(default.value, column, mapping, target)
    return None


def _literal(value: str, column: ColumnDefinition, mapping: Mapping, target: Server) -> str | None:
    """Return a text as default of the target's type; None if it would need a conversion."""
    if column.neutral in ("binary", "timestamptz", "bool") or "\0" in value:
        return None
    text = literal(value)
    if not base_of(mapping.target_type).endswith(("text", "json")):
        return text
    # MySQL has no ALTER TABLE that gives a text column its default.
    is_mariadb = target.engine is Engine.MARIADB
    return f"({fill_template(mapping.write.sql, text)})" if is_mariadb else None


def index_part(
    part: IndexPart, column: ColumnDefinition, mapping: Mapping
) -> tuple[IndexPart, int] | str:
    """Return a column in an index, which contains only the beginning of a long text."""
    if column.generated:
        return f"column {part.column} is not in the target"
    base = base_of(mapping.target_type)
    if base in ("varchar", "char"):
        return part, length_of(mapping.target_type, 1) * _CHARACTER_BYTES
    if base in ("varbinary", "binary"):
        return part, length_of(mapping.target_type, 1)
    if base.endswith(("text", "blob")):
        return part._replace(prefix=PREFIX_CHARACTERS), PREFIX_CHARACTERS * _CHARACTER_BYTES
    if base in ("json", "point") or base.endswith("geometry"):
        return f"column {part.column} is {base} there, which has no such index"
    return part, FIXED_BYTES


def refuses(key: ForeignKey) -> str:
    """Return why a foreign key cannot be created; empty if it can."""
    return (
        "the target has no SET DEFAULT" if "SET DEFAULT" in (key.on_delete, key.on_update) else ""
    )
