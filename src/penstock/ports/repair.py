"""The port of a repair: rows of the target that differ from the source's are written again.

All of it is one target transaction: a row with the applied position is locked first, so that no
loader commits meanwhile; rows that differ are deleted, and copied from the source as in the bulk
load. Not here: the rows that differ, and when a repair is permitted (`control`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from penstock.model import PenstockError, Retry, TableDefinition, TableName
from penstock.ports.bulk import BulkReader, ChunkTask
from penstock.ports.registry import part
from penstock.ports.server_pair import ServerPair
from penstock.ports.target import Applied


class RepairRefused(PenstockError):
    """A target table cannot be repaired: writing its rows would do more than that."""

    code = "LD60"


class TargetMoved(PenstockError):
    """The target's applied position is no longer the one at which it was compared."""

    code = "LD61"
    retry: ClassVar[Retry] = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTable:
    """Table to repair. definition: the source's; target: its name in the target."""

    definition: TableDefinition
    target: TableName


class RepairTarget(Protocol):
    """Connection that repairs. Errors are typed, and after one nothing is changed."""

    @property
    def replica(self) -> bool:
        """True if foreign keys do not act on its writes."""
        ...

    def transaction(self) -> AbstractContextManager[object]:
        """Return the one transaction."""
        ...

    def hold(self, expected: Applied) -> None:
        """Lock the applied position, first of all. Raises TargetMoved."""
        ...

    def check(self, table: RepairTable) -> None:
        """Check that the table can be written. Raises TargetShapeDiffers and RepairRefused."""
        ...

    def delete(self, table: TableName, condition: str) -> int:
        """Delete rows; return how many."""
        ...

    def copy(self, task: ChunkTask, reader: BulkReader) -> int:
        """Copy rows; return how many."""
        ...

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, inside the transaction."""
        ...

    def close(self) -> None:
        """Close the connection; uncommitted work is rolled back."""
        ...


def open_repair(url: str, servers: ServerPair | None, namespaces: dict[str, str]) -> RepairTarget:
    """Connect to a target of any engine, by its URL. servers: None: same types."""
    target: RepairTarget = part(url, "repair")(url, servers, namespaces)
    return target


def own_columns(table: TableName, own: list[str]) -> RepairRefused:
    """Return the error for a table that would lose values of columns that the source lacks."""
    return RepairRefused(
        f"target table {table} has columns that the source does not have: {', '.join(own)}",
        hint="Their values would be lost with the rows that are written again: write the rows that "
        "differ by hand, or drop these columns first.",
        table=str(table),
    )


def target_moved(expected: Applied, found: int) -> TargetMoved:
    """Return the error for a target that a loader has written meanwhile."""
    return TargetMoved(
        f"the target was compared at gsn {expected.gsn} and is at gsn {found} now",
        hint="Run `penstock verify --repair` again.",
    )
