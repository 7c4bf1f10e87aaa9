"""Statements that drop an index of a target table and create the same one again. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.target.catalog import TargetIndex, TargetTable
from penstock.ports.target import ShapeNotApplicable


def drop_index(table: TargetTable, index: TargetIndex) -> str:
    """Return the statement that drops an index, or the constraint that it belongs to."""
    if index.is_constraint:
        return f"ALTER TABLE {table.sql_name} DROP CONSTRAINT {quote(index.name)}"
    return f"DROP INDEX {quote(index.name)} ON {table.sql_name}"


def create_index(table: TargetTable, index: TargetIndex) -> list[str]:
    """Return the statements that create a rowstore index as the catalogue describes it."""
    name = quote(index.name)
    listed = ", ".join(
        quote(column) + (" DESC" if column in index.descending else "") for column in index.columns
    )
    if index.is_primary:
        order = "CLUSTERED" if index.is_clustered else "NONCLUSTERED"
        kind = f"PRIMARY KEY {order}"
    else:
        kind = "UNIQUE " * index.is_unique + "CLUSTERED " * index.is_clustered
    if index.is_constraint:
        created = f"ALTER TABLE {table.sql_name} ADD CONSTRAINT {name} {kind.strip()} ({listed})"
    else:
        created = f"CREATE {kind}INDEX {name} ON {table.sql_name} ({listed})"
    if index.included:
        created += f" INCLUDE ({', '.join(map(quote, index.included))})"
    if index.where:
        created += f" WHERE {index.where}"
    if not index.is_disabled:
        return [created]
    return [created, f"ALTER INDEX {name} ON {table.sql_name} DISABLE"]


def check_recreatable(table: TargetTable, indexes: Iterable[TargetIndex], what: str) -> None:
    """Raise ShapeNotApplicable if one is not a rowstore index, whose options are not known.

    what: the change for which they are dropped.
    """
    for index in indexes:
        if not index.is_rowstore:
            raise ShapeNotApplicable(
                f"{what}, and target table {table.name} has the columnstore, XML or spatial index "
                f"{index.name} on it",
                hint=f"Run: {drop_index(table, index)}; then `penstock run` again, and create the "
                "index again.",
                table=str(table.name),
            )
