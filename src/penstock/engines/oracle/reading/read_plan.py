"""Plan a SELECT of Oracle: its list, and what the reader makes of each column.

Not here: the conversion (`codec.oracle.goals`).
"""

from __future__ import annotations

from collections.abc import Mapping as Namespace
from collections.abc import Sequence

import msgspec

from penstock.codec.oracle.goals import Goal
from penstock.codec.oracle.read_columns import ReadColumn, select_expression
from penstock.codec.server_pair import ReadPlan, ServerPair
from penstock.codec.types import Mapping
from penstock.model import ColumnDefinition
from penstock.sql.read_plan import AS_IS


def read_plan(
    columns: Sequence[ColumnDefinition], mappings: Namespace[str, Mapping], servers: ServerPair
) -> ReadPlan:
    """Return how these columns are read; each template is for its column alone."""
    read = [ReadColumn.from_column(column) for column in columns]
    goals = [Goal.of(column, mappings[column.name]) for column in read]
    templates = [
        _template(column, mappings[column.name]) if servers.target.engine.is_mysql else AS_IS
        for column in read
    ]
    return ReadPlan(
        columns=tuple(column.name for column in columns),
        expressions=tuple(map(select_expression, read)),
        templates=tuple(templates),
        goals=tuple(msgspec.json.encode(goal).decode() for goal in goals),
    )


def _template(column: ReadColumn, mapping: Mapping) -> str:
    """Return what LOAD DATA computes: a single that the target's type does not hold whole."""
    return mapping.write.sql if column.kind.base == "BINARY_FLOAT" else AS_IS


def log_plan(columns: Sequence[ColumnDefinition]) -> ReadPlan:
    """Return how these columns are read in the form of the log."""
    read = [ReadColumn.from_column(column) for column in columns]
    return ReadPlan(
        columns=tuple(column.name for column in columns),
        expressions=tuple(map(select_expression, read)),
    )
