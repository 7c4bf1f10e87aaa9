"""The catalogue's relations as the stream wants them, remembered durably.

Versions are numbered over the whole life of a log, so they are kept in a file that is always at
least as new as the rows: it is written before a run with a new version is given out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import psycopg

from penstock.codec.postgres.pgoutput_messages import RelationMessage
from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.source.definitions import definitions_of
from penstock.engines.postgres.source.relations import RelationResolver
from penstock.engines.postgres.source.table_shape import TableShape
from penstock.model import ColumnDefinition, Relation, TableDefinition, TableName


def dropped_definitions(
    connection: psycopg.Connection, shapes: Sequence[TableShape], known: Sequence[Relation]
) -> list[TableDefinition]:
    """Return what is remembered of followed tables that are no longer there.

    The server still sends what was committed before they were dropped. known: as for the resolver.
    """
    there = definitions_of(connection, [s.source_id for s in shapes], shape_only=True)
    relations = {relation.source_id: relation for relation in known}
    return [
        definition_of(relations[shape.source_id])
        if shape.source_id in relations
        else shape.definition()
        for shape in shapes
        if shape.source_id not in there
    ]


def definition_of(relation: Relation) -> TableDefinition:
    """Return what the log remembers of a table: enough to read changes of a dropped one."""
    return TableDefinition(
        name=TableName(relation.schema, relation.name),
        source_id=relation.source_id,
        columns=tuple(
            ColumnDefinition(
                name=column.name,
                type_text=column.source_type,
                type_oid=column.type_oid,
                typmod=column.typmod,
                not_null=not column.nullable,
                missing=column.missing,
                base_type=column.base_type,
                neutral=column.neutral,
                id=column.id,
            )
            for column in relation.columns
        ),
        primary_key=tuple(relation.columns[i].name for i in relation.key),
        identity=relation.identity,
        identity_columns=tuple(relation.columns[i].name for i in relation.before),
        types=relation.types,
        is_partitioned=bool(relation.before),  # other tables' messages mark these columns
    )


class CatalogShapes:
    """The `Shapes` of a pipeline. `keep` may be called from two threads."""

    def __init__(
        self, resolver: RelationResolver, *, save: Callable[[Sequence[Relation]], None]
    ) -> None:
        """Take the resolver and what keeps all relations durably."""
        self._resolver = resolver
        self._save = save
        self._saved = resolver.relations()
        self._keeping = threading.Lock()

    def resolve(self, message: RelationMessage) -> Relation | None:
        """See Shapes."""
        with server_errors(f"reading the definition of {message.schema}.{message.name}"):
            return self._resolver.resolve(message)

    def widen(self, relation: Relation, column: int) -> Relation:
        """See Shapes."""
        return self._resolver.widen(relation, column)

    def keep(self) -> None:
        """Make new versions durable; called before rows of them are given out."""
        with self._keeping:
            relations = self._resolver.relations()
            if relations != self._saved:
                self._save(relations)
                self._saved = relations
