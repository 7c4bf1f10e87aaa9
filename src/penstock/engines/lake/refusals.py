"""Error for values that a lake's column cannot hold. Not here: finding them (`codec/types/`)."""

from __future__ import annotations

from penstock.codec.types.lake_values import ValueUnfit
from penstock.codec.types.mapping import ERROR, LOSSES
from penstock.engines.lake.format import LakeColumn
from penstock.model import Column, TableName
from penstock.ports.target import ValueRefused


def value_refused(
    error: ValueUnfit, column: Column, lake_column: LakeColumn, table: TableName
) -> ValueRefused:
    """Return the error, whose hint has a line for the pipeline file if there is a choice.

    table: the source's.
    """
    hint = f"Change the value at the source, or leave {table} out of [source] tables."
    if error.loss in LOSSES:
        # A choice that keeps the column's type, so that it also fits a table that has rows.
        choice = next(one for one in LOSSES[error.loss].choices if one != ERROR)
        hint = (
            f'Write below [target.types]: "{table}.{column.name} {error.loss}" = "{choice}"; or '
            "another choice that `penstock plan FILE` shows. Or change the value at the source."
        )
    return ValueRefused(
        f"column {column.name} of {table} ({column.source_type}) has {error.count} values that "
        f"{lake_column.type} in the lake cannot hold: {error}",
        hint=hint,
        table=str(table),
        column=column.name,
    )
