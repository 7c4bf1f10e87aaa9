"""Read plans: how one engine reads a table's rows so that they fit another engine.

The table of types (`codec.types`) says which type holds a column. A `ReadPlan` says how the
column's values get there in bulk without becoming objects: what the source's engine lists, what
the walk over the bytes does to each cell, and what LOAD DATA computes if the target reads by it.
The values that arrive are those of the change path, for every type and character set: text is
decoded by the same tables, times are in UTC, floating numbers have all their digits. Not here: one
engine's columns (`read_plan.py` of its source), and the walk (each engine's, by the forms of
`codec.lines`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as AbstractMapping

import msgspec

from penstock.codec.server_pair import ReadPlan, ServerPair
from penstock.codec.types import Mapping
from penstock.model import ColumnDefinition, Relation, TableDefinition
from penstock.ports.registry import PartName, engine_with_types, part

AS_IS = "{}"  # the value as text in utf8mb4, if anything is computed from it


ReadPlanner = Callable[
    [Sequence[ColumnDefinition], AbstractMapping[str, Mapping], ServerPair], ReadPlan
]
READ_PLAN_PART: PartName[ReadPlanner] = PartName("read_plan")
# Rows for the log: the shape that they have there, and how they are read; None for plain names.
RELATION_OF_PART: PartName[Callable[[TableDefinition], Relation]] = PartName("relation_of")
LOG_PLAN_PART: PartName[Callable[[Sequence[ColumnDefinition]], ReadPlan | None]] = PartName(
    "log_plan"
)


def read_plan_of(definition: TableDefinition, servers: ServerPair, source_url: str) -> ReadPlan:
    """Return how the engine of the source's URL reads a table's rows.

    Not for servers that have the same types.
    """
    columns = copied_columns(definition, servers)
    plan = part(source_url, READ_PLAN_PART)
    read_plan = plan(columns, servers.mappings(definition), servers)
    templates = _with_keys(definition, columns, read_plan.templates)
    return msgspec.structs.replace(read_plan, templates=templates)


def read_for_log(definition: TableDefinition, source_url: str) -> tuple[Relation, ReadPlan | None]:
    """Return a table's shape in the log, and how its rows are read in that shape.

    The plan is None if columns are read by their names.
    """
    relation = part(source_url, RELATION_OF_PART)(definition)
    there = {column.name: column for column in definition.columns}
    columns = [there[column.name] for column in relation.columns]
    return relation, part(source_url, LOG_PLAN_PART)(columns)


def _with_keys(
    definition: TableDefinition, columns: Sequence[ColumnDefinition], templates: Sequence[str]
) -> tuple[str, ...]:
    """Return the templates. If one of them computes anything, whole numbers of the key do so, too.

    If LOAD DATA computes anything, MySQL before 9 gives a 0 in an AUTO_INCREMENT column the next
    number in spite of NO_AUTO_VALUE_ON_ZERO, unless that column is computed, too.
    """
    if all(template == AS_IS for template in templates):
        return tuple(templates)
    key = set(definition.primary_key)
    return tuple(
        f"({template})" if column.name in key and "int" in column.neutral else template
        for column, template in zip(columns, templates, strict=True)
    )


def copied_columns(definition: TableDefinition, servers: ServerPair) -> list[ColumnDefinition]:
    """Return the columns whose values are copied.

    Values that the source computes may be in its log. A server of another kind does not have the
    same functions, so they are ordinary values there.
    """
    is_same = servers.source.engine is servers.target.engine
    if engine_with_types(servers.source.engine).logs_computed and not is_same:
        return list(definition.columns)
    return [column for column in definition.columns if not column.generated]
