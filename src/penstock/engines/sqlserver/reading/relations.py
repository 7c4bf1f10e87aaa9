"""Shape of a table's rows in the change log, from its definition. Pure."""

from __future__ import annotations

from penstock.engines.sqlserver.source import shapes
from penstock.model import Column, ColumnDefinition, Relation, TableDefinition


def relation_of(definition: TableDefinition) -> Relation:
    """Return the shape of a table's rows: all columns but the computed ones, in order."""
    columns = [column_of(column) for column in definition.columns if not column.generated]
    return shapes.relation_of(definition, tuple(columns))


def column_of(column: ColumnDefinition) -> Column:
    """Return a column of a catalogue as the log has it."""
    return Column(
        name=column.name,
        source_type=column.type_text,
        neutral=column.neutral,
        base_type=column.base_type,
        nullable=not column.not_null,
        collation=column.collation or "",
        id=column.id,
    )
