"""Asking a target for what its tables of schema or database `wirekite` say, again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from penstock.model import TableName
from penstock.ports.bulk import ChunkCounts
from penstock.ports.registry import part
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied

SHOWN_MAX = 5  # rows of wirekite_progress that a status shows of each half


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """A row of wirekite_progress as the document's query gives it; times are UTC."""

    source: str
    mark: str | None
    start_time: datetime
    finish_time: datetime | None


class TargetReader(Protocol):
    """Who asks the target. Used by one thread; every error comes out typed."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        ...

    @property
    def counts(self) -> ChunkCounts:
        """The counts of the bulk load's chunks."""
        ...

    def present(self) -> tuple[bool, bool]:
        """Whether there are progress tables, and those of a bulk load."""
        ...

    def log_id(self) -> str:
        """The change log that the target follows; empty for none."""
        ...

    def newest(self, operation: str) -> Sequence[ProgressRow]:
        """The last SHOWN_MAX rows of an operation, CE or CL, by when they began."""
        ...

    def restarts(self) -> int:
        """How often work has begun again, as noted in the progress rows."""
        ...

    def action(self) -> str:
        """The word in wirekite_action."""
        ...

    def applied(self) -> Applied:
        """How far the log is applied."""
        ...

    def table_syncs(self) -> Mapping[TableName, TableSync]:
        """The tables that have, or had, a table sync."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_target_reader(url: str, *, application_name: str) -> TargetReader:
    """Connect to a target, whichever engine its URL names."""
    opened: Callable[[str, str], TargetReader] = part(url, "target_state")
    return opened(url, application_name)
