"""Rows of a source on their way into SQL Server, by the one table of types.

The log holds rows with the types of their source. A staged value has its neutral type, in the
type of SQL Server that `STAGED` names, or is text where the mapping needs text; the mapping's
template converts it to the column's type. Pure. Not here: the table itself (`codec.types`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.codec import types as typemap
from penstock.codec.sqlserver.types import parse_type
from penstock.codec.types import NO_CHOICES, Choices, Engine, Server, map_column, prepare_values
from penstock.engines.sqlserver.target.catalog import TargetColumn, without_collation
from penstock.model import LOAD_AFRESH, Column, PenstockError, Relation, TableName
from penstock.ports.target import ShapeNotApplicable

ENGINE = "sqlserver"
AS_IS = "{}"
_CALENDAR = ("date", "timestamp", "timestamptz")
_TEXTS = frozenset(("char", "varchar", "nchar", "nvarchar", "text", "ntext", "xml", "json"))

MapColumn = Callable[[Column, Relation, Server, Choices], typemap.Mapping]


def server(engine: str, version: tuple[int, ...] = ()) -> Server:
    """Return a server in the form of the type mappings. engine: empty means PostgreSQL."""
    return Server(engine=Engine(engine or Engine.POSTGRESQL), version=version)


def map_by_table(
    column: Column, relation: Relation, source: Server, choices: Choices
) -> typemap.Mapping:
    """Return the mapping of a log's column by the table of types."""
    target = server(ENGINE)
    room = typemap.key_room_of_rows(relation, source, target)
    return map_column(
        column,
        source,
        target,
        choices=choices,
        table=TableName(relation.schema, relation.name),
        key_bytes=room.get(column.name),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """Translation of a source's rows.

    Attributes:
        engine: The source's in the log; empty means PostgreSQL.
        choices: Of [target.types].
        map: Returns the mapping of a column.
    """

    engine: str = ""
    choices: Choices = NO_CHOICES
    map: MapColumn = map_by_table

    def mappings(self, relation: Relation) -> list[tuple[Column, typemap.Mapping]]:
        """Return the mapping of each column. Raises ShapeNotApplicable for a refused one."""
        source = server(self.engine)
        found = []
        for column in relation.columns:
            mapping = self.map(column, relation, source, self.choices)
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

    def relation_here(self, relation: Relation) -> Relation:
        """Return the relation with the target's types. Raises ShapeNotApplicable."""
        columns = tuple(
            replace(
                column,
                source_type=found.target_type,
                base_type=without_collation(found.target_type),
                nullable=column.nullable or found.may_be_null,
            )
            for column, found in self.mappings(relation)
        )
        return replace(relation, columns=columns)

    def as_text(self, relation: Relation) -> frozenset[int]:
        """Return the indexes of the columns whose values are staged as text."""
        return frozenset(
            place
            for place, (column, found) in enumerate(self.mappings(relation))
            if found.write.needs_text and column.neutral not in ("string", "binary")
        )

    def prepares(self, relation: Relation) -> dict[str, str]:
        """Return the changes that our process makes to values, by column (`prepare_values`)."""
        return {
            column.name: found.write.prepare
            for column, found in self.mappings(relation)
            if found.write.prepare
        }

    def templates(self, relation: Relation, columns: Mapping[str, TargetColumn]) -> dict[str, str]:
        """Return the templates over staged values, by column; without one a value is unchanged.

        A template is for the type that the mapping names. Into a column of another kind, created by
        others, the value is written as it is, and the server decides.
        """
        return {
            column.name: found.write.sql
            for column, found in self.mappings(relation)
            if found.write.sql != AS_IS
            and column.name in columns
            and _kind(columns[column.name].type_text) == _kind(found.target_type)
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


def _kind(text: str) -> str:
    base = parse_type(without_collation(text)).base
    return "text" if base in _TEXTS else base


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
    for place, field in enumerate(kind):
        try:
            children.append(prepare_values(values.field(place), wanted.get(field.name, "")))
        except PenstockError as error:
            message = f"column {field.name} of {table}: {error.message}"
            more = {**error.fields, "table": str(table)}
            raise type(error)(message, hint=error.hint, **more) from error
    fields = [field.with_type(child.type) for field, child in zip(kind, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())
