"""Shape of a table's rows in the change log, from its definition. Pure."""

from __future__ import annotations

from penstock.model import (
    Column,
    ColumnDefinition,
    ComputedColumn,
    Identity,
    Relation,
    TableDefinition,
    UniqueKey,
)


def relation_of(definition: TableDefinition) -> Relation:
    """Return the shape of a table's rows: all columns but the computed ones, in order.

    A change table has whole rows before the change, so that a table without a key has all columns
    in its before images.
    """
    columns = [column for column in definition.columns if not column.generated]
    names = [column.name for column in columns]
    is_whole = definition.identity is Identity.FULL
    key = () if is_whole else tuple(sorted(map(names.index, definition.identity_columns)))
    return Relation(
        schema=definition.name.schema,
        name=definition.name.name,
        columns=tuple(map(column_of, columns)),
        key=key,
        before=key or tuple(range(len(names))),
        identity=definition.identity,
        source_id=definition.source_id,
        unique=UniqueKey.columns_of(definition.unique_keys),
        computed=tuple(
            ComputedColumn(
                name=column.name,
                source_type=column.type_text,
                expression=column.default or "",
                is_stored=column.generated == "s",
                id=column.id,
            )
            for column in definition.columns
            if column.generated
        ),
    )


def column_of(column: ColumnDefinition) -> Column:
    """Return a column of a catalogue as the log has it."""
    return Column(
        name=column.name,
        source_type=column.type_text,
        neutral=column.neutral,
        base_type=column.type_text,
        nullable=not column.not_null,
        id=column.id,
    )
