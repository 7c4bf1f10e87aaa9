"""Relations built from definitions of the catalogue. Pure.

Not here: relations from messages of the stream (`relations.py`), reading definitions
(`definitions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.model import (
    Column,
    ColumnDefinition,
    ComputedColumn,
    Identity,
    Relation,
    TableDefinition,
    UniqueKey,
)


def relation_of(definition: TableDefinition, *, version: int = 1) -> Relation:
    """Return the shape of rows read by COPY: as the stream has them, without generated columns."""
    definitions = [column for column in definition.columns if not column.generated]
    columns = tuple(column_of(column) for column in definitions)
    names = [column.name for column in columns]
    identity = [names.index(n) for n in definition.identity_columns if n in names]
    return Relation(
        schema=definition.name.schema,
        name=definition.name.name,
        columns=columns,
        key=key_of(definition.identity, tuple(sorted(identity)), names, definition),
        before=tuple(sorted(identity)),
        identity=definition.identity,
        source_id=definition.source_id,
        version=version,
        unique=UniqueKey.columns_of(definition.unique_keys),
        computed=computed_of(definition),
        types=definition.types,
    )


def computed_of(definition: TableDefinition) -> tuple[ComputedColumn, ...] | None:
    """Return a definition's generated columns; None if it was read without their expressions."""
    generated = [column for column in definition.columns if column.generated]
    if any(column.default is None for column in generated):
        return None
    return tuple(
        ComputedColumn(
            name=column.name,
            source_type=column.type_text,
            expression=column.default or "",
            is_stored=column.generated == "s",
            id=column.id,
        )
        for column in generated
    )


def left_of(
    told: Iterable[ComputedColumn] | None, definition: TableDefinition
) -> tuple[ComputedColumn, ...] | None:
    """Return the generated columns that a definition still has, as it names them; None for None.

    A new one is told when the catalogue is looked at, where the stream certainly has the columns
    that it is computed from; an old one must be gone before these are.
    """
    if told is None:
        return None
    names = {column.id: column.name for column in definition.columns if column.generated}
    return tuple(replace(one, name=names[one.id]) for one in told if one.id in names)


def column_of(column: ColumnDefinition) -> Column:
    """Return a column of a relation as the catalogue defines it."""
    return Column(
        name=column.name,
        source_type=column.type_text,
        neutral=column.neutral,
        base_type=column.base_type,
        type_oid=column.type_oid,
        typmod=column.typmod,
        nullable=not column.not_null,
        missing=column.missing,
        id=column.id,
    )


def key_of(
    identity: Identity,
    before: tuple[int, ...],
    names: Sequence[str],
    definition: TableDefinition,
) -> tuple[int, ...]:
    """Return the columns that find a row for a merge; always held by a before image, if one comes.

    With an identity index the before image has that index's columns and perhaps not those of the
    primary key, so that index is the key. With FULL it has all, so the primary key is; without one
    the whole row is the key, which is an empty tuple. It also is where the identity has a generated
    column: the rest of it may be the same in many rows.
    """
    generated = {column.name for column in definition.columns if column.generated}
    if identity in (Identity.DEFAULT, Identity.INDEX) and before:
        return () if generated & set(definition.identity_columns) else before
    primary = definition.key_of_changes
    if not primary or not set(primary) <= set(names):
        return ()
    return tuple(sorted(names.index(name) for name in primary))
