"""Defaults, indexes and foreign keys of another engine's table in Oracle's form. Pure."""

from __future__ import annotations

from penstock.codec.oracle.types import parse_type
from penstock.codec.types import Mapping, Server
from penstock.engines.oracle.connect import literal
from penstock.model import ColumnDefinition, ForeignKey, TableDefinition
from penstock.sql.schema_translation import (
    FIXED_BYTES,
    Default,
    DefaultKind,
    IndexPart,
    SchemaDescription,
)

index_bytes_max = 6_000  # in blocks of 8 KB
_CHARACTER_BYTES = 4
_NO_INDEX = frozenset(("CLOB", "NCLOB", "BLOB", "LONG", "LONG RAW"))
_NUMBERS = frozenset(("NUMBER", "FLOAT", "BINARY_FLOAT", "BINARY_DOUBLE"))
_TEXTS = frozenset(("CHAR", "VARCHAR2", "NCHAR", "NVARCHAR2", "CLOB", "NCLOB"))
_UTC = "SYS_EXTRACT_UTC(SYSTIMESTAMP)"
_NOW = {
    "DATE": f"TRUNC(CAST({_UTC} AS DATE))",
    "TIMESTAMP WITH TIME ZONE": "SYSTIMESTAMP",
    "TIMESTAMP": _UTC,
}
_ACTIONS = ("", "NO ACTION", "RESTRICT")


def may_number(
    definition: TableDefinition,  # noqa: ARG001 - the port's
    description: SchemaDescription,  # noqa: ARG001
    column: ColumnDefinition,  # noqa: ARG001
    mapping: Mapping,  # noqa: ARG001
) -> bool:
    """Return False: an identity column does not count on from values that are given."""
    return False


def default_sql(
    default: Default,
    column: ColumnDefinition,
    mapping: Mapping,
    target: Server,  # noqa: ARG001 - the port's
) -> str | None:
    """Return a default as SQL of the target; None if the target has no equivalent."""
    base = parse_type(mapping.target_type).base
    match default.kind:
        case DefaultKind.NOW:
            return _NOW.get(base)
        case DefaultKind.BITS if base in _NUMBERS:
            return str(int(default.value or "0", 2))
        case DefaultKind.BOOL if base in _NUMBERS:
            return "1" if default.value == "true" else "0"
        case DefaultKind.NUMBER if base in _NUMBERS:
            return default.value
        case DefaultKind.NUMBER if base in _TEXTS:
            return literal(default.value)
        case DefaultKind.LITERAL if base in _TEXTS and column.neutral != "binary":
            return literal(default.value) if default.value else None  # an empty text is NULL
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
    kind = parse_type(mapping.target_type)
    if kind.base in _NO_INDEX:
        return f"column {part.column} is {kind.base} there, which has no such index"
    if kind.length is not None:
        return part, kind.length * (_CHARACTER_BYTES if kind.is_in_characters else 1)
    return part, FIXED_BYTES


def refuses(key: ForeignKey) -> str:
    """Return why the target cannot have a foreign key; empty if it can."""
    if key.on_update.upper() not in _ACTIONS:
        return f"Oracle has no ON UPDATE {key.on_update.upper()}"
    if key.on_delete.upper() == "SET DEFAULT":
        return "Oracle has no ON DELETE SET DEFAULT"
    return ""
