"""Changes of a table's shape in mid-stream: a new relation version becomes ALTER statements.

The old shape is what `wirekite.wirekite_table` says was applied last, so that a restart neither
repeats nor forgets one. Run inside the batch's transaction. Not here: making tables (`schema.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.host.connect import literal, quoted
from penstock.load import LOAD_AFRESH
from penstock.load.postgres.target import TargetTable
from penstock.load.postgres.types import map_namespaces, same_type
from penstock.load.refusals import RelationNotCarried
from penstock.model import Relation


@dataclass(frozen=True, slots=True)
class Alteration:
    """One statement and what it does, for messages."""

    sql: str
    what: str


def shape_of(relation: Relation) -> tuple[tuple[str, str], ...]:
    """The part of a relation that the target's table follows: column names and source types."""
    return tuple((column.name, column.source_type) for column in relation.columns)


def alterations(
    old: tuple[tuple[str, str], ...] | None,
    relation: Relation,
    table: TargetTable,
    namespaces: Mapping[str, str],
    *,
    emptied: bool,
) -> list[Alteration]:
    """The statements that bring the target table from the old shape to the relation's.

    old: the shape applied last; None when none was, then the target must fit as it is. emptied:
    the table's rows are dropped first (a reload follows), so that types change without a cast.
    Raises RelationNotCarried when a column is missing in the target for no reason the log tells.
    """
    before = dict(old) if old is not None else {c.name: c.source_type for c in relation.columns}
    now = dict(shape_of(relation))
    result: list[Alteration] = []
    for name in before:
        found = table.column(name)
        if name not in now and found is not None and not found.generated:
            result.append(
                Alteration(
                    f"alter table {table.sql_name} drop column {quoted(name)}",
                    f"column {name} was dropped",
                )
            )
    for column in relation.columns:
        found = table.column(column.name)
        kind = map_namespaces(column.source_type, namespaces)
        if found is None:
            if old is not None and column.name in before:
                raise RelationNotCarried(
                    f"target table {table.name} has no column {column.name}, the source has it as "
                    f"{column.source_type}",
                    hint=f"Run: alter table {table.sql_name} add column {quoted(column.name)} "
                    f"{kind}; then `penstock run`, and `penstock verify`. {LOAD_AFRESH}",
                    table=str(table.name),
                )
            if old is None:
                raise RelationNotCarried(
                    f"target table {table.name} has no column {column.name}",
                    hint=f"Run: alter table {table.sql_name} add column {quoted(column.name)} "
                    f"{kind};",
                    table=str(table.name),
                )
            result.append(_added(column.name, kind, column.missing, column.nullable, table))
            continue
        if found.generated and (column.name not in before or emptied):
            result.append(
                Alteration(
                    f"alter table {table.sql_name} alter column {quoted(column.name)}"
                    " drop expression",
                    f"column {column.name} is no longer generated",
                )
            )
        if before.get(column.name, column.source_type) != column.source_type and not same_type(
            found.type_text, kind
        ):
            result.append(_retyped(column.name, kind, table, emptied=emptied))
    return result


def _added(
    name: str, kind: str, missing: str | None, nullable: bool, table: TargetTable
) -> Alteration:
    sql = f"alter table {table.sql_name} add column {quoted(name)} {kind}"
    if missing is not None:
        sql += f" default {literal(missing)}::{kind}"
        if not nullable:
            sql += " not null"
    return Alteration(sql, f"column {name} was added as {kind}")


def _retyped(name: str, kind: str, table: TargetTable, *, emptied: bool) -> Alteration:
    column = quoted(name)
    using = "null" if emptied else column
    return Alteration(
        f"alter table {table.sql_name} alter column {column} type {kind} using {using}::{kind}",
        f"column {name} became {kind}",
    )
