"""Queries about penstock's own tables, which every SQL engine runs unchanged.

Not here: the tables (`target/progress.py` of each engine).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.ports.target import SCHEMA
from penstock.ports.target_state import SHOWN_MAX, ProgressRow

# As document 000 prints it.
NEWEST = """
    SELECT source, mark, start_time, finish_time
    FROM wirekite.wirekite_progress
    WHERE operation = '{operation}'
    ORDER BY start_time DESC
    LIMIT {limit}
"""
RESTARTS = """
    select coalesce(sum(restarts), 0)
      from wirekite.wirekite_progress
"""


class ProgressQueries:
    """Part of a `TargetReader`: log id, newest progress rows and restarts."""

    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        """Return the rows of a query without parameters. Every error is typed."""
        raise NotImplementedError

    def log_id(self) -> str:
        """See TargetReader."""
        found = self.rows(f"select log_id from {SCHEMA}.wirekite_log")
        return str(found[0][0]) if found else ""

    def newest(self, operation: str) -> tuple[ProgressRow, ...]:
        """See TargetReader."""
        return tuple(
            ProgressRow(source=row[0], mark=row[1], start_time=row[2], finish_time=row[3])
            for row in self.rows(NEWEST.format(operation=operation, limit=SHOWN_MAX))
        )

    def restarts(self) -> int:
        """See TargetReader."""
        [row] = self.rows(RESTARTS)
        return int(row[0])
