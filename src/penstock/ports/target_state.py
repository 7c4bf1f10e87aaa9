"""Asking a target for what its tables of schema or database `wirekite` say, again and again.

Not here: what is made of it (`penstock.control.target_state`), and the loader's own connection
(`target.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.model import TableName
from penstock.ports.bulk import ChunkCounts
from penstock.ports.registry import part
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied


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

    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        """The rows of a query without parameters."""
        ...

    def action(self) -> str:
        """The word in wirekite_action."""
        ...

    def applied(self) -> Applied:
        """How far the log is applied."""
        ...

    def apart(self) -> Mapping[TableName, TableSync]:
        """The tables that have, or had, a table sync."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_target_reader(url: str, *, application_name: str) -> TargetReader:
    """Connect to a target, whichever engine its URL names."""
    opened: Callable[[str, str], TargetReader] = part(url, "target_state")
    return opened(url, application_name)
