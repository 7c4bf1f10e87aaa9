"""Relations of captured tables: from definitions, from the binlog, or from both.

Pure. Names come from the binlog if it has them. Facts that it leaves open (MariaDB writes a UUID
like BINARY(16)) come from a definition that agrees with it column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.mysql.binlog_tables import ShapeMismatch, TableMap, check_relation, refuse_type
from penstock.codec.mysql.charsets import charset_named
from penstock.codec.mysql.types import (
    CHARACTER,
    NUMERIC,
    TypeCode,
    WireColumn,
    agrees,
    needs_schema,
    neutral_type,
    type_text,
)
from penstock.engines.mysql.source.definitions import source_id_of
from penstock.engines.mysql.source.known_columns import charset_of_collation
from penstock.model import (
    Column,
    ColumnDefinition,
    Identity,
    Relation,
    TableDefinition,
    UniqueKey,
)
from penstock.model import TableName as Name


def relation_of_definition(definition: TableDefinition) -> Relation:
    """Return the shape of a table's rows in the binlog, which have generated columns as well."""
    names = [column.name for column in definition.columns]
    is_whole = definition.identity is Identity.FULL
    key = () if is_whole else tuple(sorted(map(names.index, definition.identity_columns)))
    return Relation(
        schema=definition.name.schema,
        name=definition.name.name,
        columns=tuple(map(_column, definition.columns)),
        key=key,
        before=key or tuple(range(len(names))),
        identity=definition.identity,
        source_id=definition.source_id,
        unique=UniqueKey.columns_of(definition.unique_keys),
    )


def with_whole_before(relation: Relation) -> Relation:
    """Return the same shape, its before images with all columns, as without a key."""
    whole = tuple(range(len(relation.columns)))
    return replace(relation, before=whole, identity=Identity.FULL)


def charsets_of(definition: TableDefinition) -> tuple[str | None, ...]:
    """Return for each column the character set that the catalogue names."""
    return tuple(column.charset or None for column in definition.columns)


def _column(column: ColumnDefinition) -> Column:
    return Column(
        name=column.name,
        source_type=column.type_text,
        neutral=column.neutral,
        base_type=column.base_type,
        nullable=not column.not_null,
        collation=column.collation or "",
    )


def fits(table: TableMap, definition: TableDefinition) -> bool:
    """Return whether a definition agrees with a TABLE_MAP. Raises TypeRefused."""
    try:
        check_relation(table, relation_of_definition(definition), charsets_of(definition))
    except ShapeMismatch:
        return False
    if table.key is None:
        return True
    names = tuple(definition.columns[index].name for index in table.key)
    prefixes = table.key_prefixes if any(table.key_prefixes) else ()
    return names == definition.primary_key and bool(prefixes) == bool(
        definition.primary_key_prefixes
    )


def merged_relation(
    table: TableMap,
    hints: Sequence[TableDefinition | None],
    *,
    is_mariadb: bool,
    last: Relation | None = None,
) -> Relation:
    """Return the relation of a table whose definition at this place is unknown.

    hints: definitions from other moments, best first. last: the shape before. Raises TypeRefused,
    and ShapeMismatch if the binlog alone does not say enough.
    """
    if not table.has_names or table.key is None:
        raise ShapeMismatch(
            f"the definition of {table.schema}.{table.name} at this place of the binlog is not "
            "known, and the binlog has no names of columns",
            hint="Run `set global binlog_row_metadata = 'FULL'` so that the binlog itself says "
            "what tables look like, then load the table again.",
            table=f"{table.schema}.{table.name}",
        )
    known = [{column.name: column for column in hint.columns} for hint in hints if hint is not None]
    collations = {column.name: column.collation for column in (last.columns if last else ())}
    columns = []
    for wire in table.columns:
        refuse_type(table, wire, wire.name or "")
        found = [hint[wire.name] for hint in known if wire.name in hint]
        column = _merge(table, wire, found, is_mariadb)
        collation = _choose_collation(wire, column.collation, collations.get(column.name, ""))
        columns.append(replace(column, collation=collation))
    key = tuple(sorted(table.key)) if not any(table.key_prefixes) else ()
    return Relation(
        schema=table.schema,
        name=table.name,
        columns=tuple(columns),
        key=key,
        before=key or tuple(range(len(columns))),
        identity=Identity.DEFAULT if key else Identity.FULL,
        source_id=source_id_of(Name(table.schema, table.name)),
    )


def _merge(
    table: TableMap, wire: WireColumn, hints: Sequence[ColumnDefinition], is_mariadb: bool
) -> Column:
    for hint in hints:
        charset = wire.charset or charset_named(hint.charset) or ""
        if agrees(wire, hint.base_type or hint.type_text, charset):
            return Column(
                name=hint.name,
                source_type=hint.type_text,
                neutral=hint.neutral,
                base_type=hint.base_type,
                nullable=wire.nullable,
                collation=hint.collation or "",
            )
    if _is_open(wire, is_mariadb):
        raise ShapeMismatch(
            f"what column {wire.name} of {table.schema}.{table.name} is at this place of the "
            "binlog is not known",
            hint="Load the table again.",
            table=f"{table.schema}.{table.name}",
            column=wire.name,
        )
    text = type_text(wire)
    return Column(
        name=wire.name or "", source_type=text, neutral=neutral_type(text), nullable=wire.nullable
    )


def _choose_collation(wire: WireColumn, *known: str) -> str:
    """Return the first known collation that has the character set which the binlog names.

    The binlog names no collation. That of a later definition may be of another character set, to
    which values were converted in between. If none fits, it is the one in which all texts differ.
    """
    if wire.charset is None or wire.is_binary:
        return known[0]
    fitting = (one for one in known if charset_of_collation(one) == wire.charset)
    return next(fitting, f"{wire.charset}_bin")


def _is_open(column: WireColumn, is_mariadb: bool) -> bool:
    """Return whether even full metadata leaves a column's type open."""
    if column.code in NUMERIC:
        return column.unsigned is None
    if column.code in CHARACTER:
        return column.collation is None or needs_schema(column, is_mariadb)
    if column.code in (TypeCode.ENUM, TypeCode.SET):
        return column.labels is None
    return needs_schema(column, is_mariadb)
