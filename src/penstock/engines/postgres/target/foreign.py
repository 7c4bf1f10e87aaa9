"""Rows of another engine on their way into PostgreSQL, by the one table of types.

The log holds them with the types of their source. Here they get the types of the target's tables,
and the expressions that convert staged values to these. Rows that come from PostgreSQL are left as
they are. Pure. Not here: the table itself (`codec.types`), and making tables (`bulk.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.codec import types as typemap
from penstock.codec.types import NO_CHOICES, Choices, Engine, Server, map_column, prepare_values
from penstock.model import LOAD_AFRESH, Column, Relation, TableName
from penstock.ports.target import ShapeNotApplicable

AS_IS = "{}"
_CALENDAR = ("date", "timestamp", "timestamptz")
ANY_POSTGRES = Server(engine=Engine.POSTGRESQL, version=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """Translation of a source's rows. engine: the source's in the log; empty: PostgreSQL."""

    engine: str = ""
    target: Server = ANY_POSTGRES
    choices: Choices = NO_CHOICES

    @property
    def is_ours(self) -> bool:
        """Return whether the source is PostgreSQL too, so that nothing has to be mapped."""
        return self.engine in ("", Engine.POSTGRESQL)

    def relation_here(self, relation: Relation) -> Relation:
        """Return the relation with the target's types. Raises ShapeNotApplicable."""
        if self.is_ours:
            return relation
        columns = tuple(
            replace(
                column,
                source_type=found.target_type,
                base_type=found.target_type,
                nullable=column.nullable or found.may_be_null,
            )
            for column, found in self._map_types(relation)
        )
        return replace(relation, columns=columns)

    def writes(self, relation: Relation) -> dict[str, str]:
        """Return templates over the staged value, by column; a column without one is unchanged."""
        if self.is_ours:
            return {}
        return {
            column.name: found.write.sql
            for column, found in self._map_types(relation)
            if found.write.sql != AS_IS
        }

    def fills(self, relation: Relation) -> dict[str, str]:
        """Return templates like `writes`, over the text of the value that older rows have.

        A date that no calendar has is held as text, whatever the rows of this batch hold.
        """
        columns = tuple(
            replace(column, neutral="string") if column.neutral in _CALENDAR else column
            for column in relation.columns
        )
        return self.writes(replace(relation, columns=columns))

    def _map_types(self, relation: Relation) -> list[tuple[Column, typemap.Mapping]]:
        table = TableName(relation.schema, relation.name)
        source = Server(engine=Engine(self.engine), version=())
        found = []
        for column in relation.columns:
            mapping = typemap.map_column(
                column, source, self.target, choices=self.choices, table=table
            )
            if mapping.refused:
                raise ShapeNotApplicable(
                    f"column {column.name} of {relation.full_name} is {column.source_type}: "
                    f"{mapping.refused}",
                    hint="Leave the table out of [source] tables, or drop the column there; "
                    f"`penstock plan` shows all types. {LOAD_AFRESH}",
                    table=relation.full_name,
                )
            found.append((column, mapping))
        return found


def fill_template(text: str, column: str, writes: Mapping[str, str]) -> str:
    """Insert a staged value, given as SQL, into its column's template."""
    return typemap.fill_template(writes.get(column, AS_IS), text)


def preparations(relation: Relation, source_engine: str, choices: Choices) -> dict[str, str]:
    """Return the preparations of values by column; unchanged columns are left out.

    source_engine: from the log; empty: PostgreSQL.
    """
    source = Engine(source_engine or Engine.POSTGRESQL)
    if source is Engine.POSTGRESQL:
        return {}
    table = TableName(relation.schema, relation.name)
    found = {}
    for column in relation.columns:
        server = Server(engine=source, version=())
        mapping = map_column(column, server, ANY_POSTGRES, choices=choices, table=table)
        if mapping.write.prepare:
            found[column.name] = mapping.write.prepare
    return found


def prepared_batch(batch: pa.RecordBatch, wanted: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows of the log (`codec.columns.batch_schema`) with their values prepared."""
    if not wanted:
        return batch
    for name in ("after", "before"):
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(
            place, batch.schema.field(place), _prepared_struct(batch.column(place), wanted)
        )
    return batch


def _prepared_struct(values: pa.StructArray, wanted: Mapping[str, str]) -> pa.StructArray:
    kind = values.type
    if not any(field.name in wanted for field in kind):
        return values
    children = [
        prepare_values(values.field(place), wanted.get(field.name, ""))
        for place, field in enumerate(kind)
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
