"""Rows of a source on their way into a target that stages them by type, by the table of types.

The log holds rows with the types of their source. A staged value has its neutral type, or is text
where the mapping needs text; the mapping's template converts it to the column's type. Pure. Not
here: the table itself (`codec.types`), and which types an engine stages values in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from penstock.codec import types as typemap
from penstock.codec.types import NO_CHOICES, Choices, Engine, Server, map_column, prepare_values
from penstock.model import LOAD_AFRESH, Column, PenstockError, Relation, TableName
from penstock.ports.target import ShapeNotApplicable

AS_IS = "{}"
_CALENDAR = ("date", "timestamp", "timestamptz")

MapColumn = Callable[[Column, Relation, Server, Choices], typemap.Mapping]


def mapper_to(target: Engine) -> MapColumn:
    """Return the function that maps a log's column to a target, by the table of types."""

    def map_by_table(
        column: Column, relation: Relation, source: Server, choices: Choices
    ) -> typemap.Mapping:
        there = Server(engine=target, version=())
        room = typemap.key_room_of_rows(relation, source, there)
        return map_column(
            column,
            source,
            there,
            choices=choices,
            table=TableName(relation.schema, relation.name),
            key_bytes=room.get(column.name),
        )

    return map_by_table


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTranslation:
    """Translation of a source's rows.

    Attributes:
        engine: The source's, as the log names it.
        choices: Of [target.types].
        to_target: Returns the mapping of a column.
    """

    to_target: ClassVar[MapColumn]
    engine: str = ""
    choices: Choices = NO_CHOICES

    def map_one(self, column: Column, relation: Relation) -> typemap.Mapping:
        """Return the mapping of a column, refused or not."""
        return type(self).to_target(column, relation, Server.from_log(self.engine), self.choices)

    def mappings(self, relation: Relation) -> list[tuple[Column, typemap.Mapping]]:
        """Return the mapping of each column. Raises ShapeNotApplicable for a refused one."""
        found = []
        for column in relation.columns:
            mapping = self.map_one(column, relation)
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

    def target_types(self, relation: Relation) -> dict[str, str]:
        """Return the target's type of each column, by name, with its collation."""
        return {column.name: found.target_type for column, found in self.mappings(relation)}

    def loose(self, relation: Relation) -> frozenset[str]:
        """Return the columns whose values may become NULL by a choice."""
        return frozenset(
            column.name for column, found in self.mappings(relation) if found.may_be_null
        )

    def prepares(self, relation: Relation) -> dict[str, str]:
        """Return the changes that our process makes to values, by column (`prepare_values`)."""
        return {
            column.name: found.write.prepare
            for column, found in self.mappings(relation)
            if found.write.prepare
        }

    def fills(self, relation: Relation) -> dict[str, str]:
        """Return templates over the text of the value that older rows have, by column."""
        columns = tuple(
            replace(column, neutral="string") if column.neutral in _CALENDAR else column
            for column in relation.columns
        )
        return {
            column.name: found.write.sql
            for column, found in self.mappings(replace(relation, columns=columns))
        }


def fill_template(text: str, column: str, templates: Mapping[str, str]) -> str:
    """Insert a staged value, given as SQL, into its column's template."""
    return typemap.fill_template(templates.get(column, AS_IS), text)


def prepared_batch(
    batch: pa.RecordBatch, wanted: Mapping[str, str], table: TableName
) -> pa.RecordBatch:
    """Return rows of the log (`codec.columns.batch_schema`) with their values prepared.

    A column may become text by that. Raises `ValueRefused` of `codec.types.prepare` for a value
    that the target's type does not have. table: for errors.
    """
    if not wanted:
        return batch
    for name in ("after", "before"):
        place = batch.schema.get_field_index(name)
        values = _prepared_struct(batch.column(place), wanted, table)
        field = batch.schema.field(place).with_type(values.type)
        batch = batch.set_column(place, field, values)
    return batch


def _prepared_struct(
    values: pa.StructArray, wanted: Mapping[str, str], table: TableName
) -> pa.StructArray:
    kind = values.type
    if not any(field.name in wanted for field in kind):
        return values
    children = []
    # Under a missing image a column holds anything, such as empty texts; flatten() hides it.
    for field, found in zip(kind, values.flatten(), strict=True):
        children.append(prepared_column(found, wanted.get(field.name, ""), field.name, table))
    fields = [field.with_type(child.type) for field, child in zip(kind, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())


def prepared_column(values: pa.Array, what: str, name: str, table: TableName) -> pa.Array:
    """Return a column's values prepared; an error names the column and the table."""
    try:
        return prepare_values(values, what)
    except PenstockError as error:
        message = f"column {name} of {table}: {error.message}"
        more = {**error.fields, "table": str(table)}
        raise type(error)(message, hint=error.hint, **more) from error
