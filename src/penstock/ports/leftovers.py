"""What a pipeline leaves at its target: schema `wirekite`, and where asked for its tables.

Not here: asking whether it may go (`penstock.control.reset`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.ports.registry import part

APPLICATION_NAME = "penstock reset"
TABLES_MAX = 12  # that a line names


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Things that the target holds of a pipeline.

    Attributes:
        log_id: of the log that it follows; empty if it follows none.
        removals: what goes.
    """

    log_id: str
    removals: tuple[Removal, ...]


def named(tables: Collection[TableName]) -> str:
    """Tables in a line: the first ones by name."""
    names = sorted(map(str, tables))
    more = f" and {len(names) - TABLES_MAX} more" if len(names) > TABLES_MAX else ""
    return ", ".join(names[:TABLES_MAX]) + more


def leftovers(url: str, *, tables: Collection[TableName] | None) -> Leftovers:
    """Look at the target, and return what it holds of a pipeline.

    Args:
        url: of the target.
        tables: of the target, to be emptied with those that it remembers. Those that penstock
            made are dropped: the next load makes them in the source's present shape. None: its
            tables stay as they are.
    """
    found: Leftovers = part(url, "leftovers").leftovers(url, tables=tables)
    return found


def emptied(url: str, tables: Collection[TableName]) -> tuple[Removal, ...]:
    """Return how these tables of the target are emptied, those that are there; nothing else goes.

    Of a target that several pipelines write, `leftovers` would take the others' tables, too.
    """
    found: tuple[Removal, ...] = part(url, "leftovers").emptied(url, tables)
    return found


def remove(url: str, removal: Removal) -> None:
    """Carry one out. Raises PrivilegeMissing and what else `server_errors` does."""
    part(url, "leftovers").remove(url, removal)
