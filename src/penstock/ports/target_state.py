"""Repeated questions to a target about its tables of schema or database `wirekite`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from penstock.model import TableName
from penstock.ports.bulk import ChunkCounts
from penstock.ports.registry import part
from penstock.ports.target import Applied, TableSync

SHOWN_MAX = 5  # rows of wirekite_progress in a status, for each half


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """Row of wirekite_progress as the document's query returns it; times are UTC."""

    source: str
    mark: str | None
    start_time: datetime
    finish_time: datetime | None


class TargetReader(Protocol):
    """Reader of the target. Used by one thread; every error is typed."""

    @property
    def is_closed(self) -> bool:
        """True if the connection is closed or lost."""
        ...

    @property
    def counts(self) -> ChunkCounts:
        """Counts of the bulk load's chunks."""
        ...

    def present(self) -> tuple[bool, bool]:
        """Return whether there are progress tables, and those of a bulk load."""
        ...

    def log_id(self) -> str:
        """Return the change log that the target follows; empty for none."""
        ...

    def newest(self, operation: str) -> Sequence[ProgressRow]:
        """Return the last SHOWN_MAX rows of an operation, CE or CL, by their beginning."""
        ...

    def restarts(self) -> int:
        """Return how often work has begun again, as noted in the progress rows."""
        ...

    def action(self) -> str:
        """Return the word in wirekite_action."""
        ...

    def read_applied(self) -> Applied:
        """Return how far the log is applied."""
        ...

    def table_syncs(self) -> Mapping[TableName, TableSync]:
        """Return the tables that have, or had, a table sync."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_target_reader(url: str, *, application_name: str) -> TargetReader:
    """Connect to a target of any engine, by its URL."""
    opened: Callable[[str, str], TargetReader] = part(url, "target_state")
    return opened(url, application_name)
