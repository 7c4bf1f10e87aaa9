"""Things that a pipeline has made at its source and its target, and their removal.

At the target these are the schema `wirekite` and, on request, tables. Not here: the decision to
remove them (`penstock.control.run.reset`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from penstock.model import TableName
from penstock.model.removal import Removal
from penstock.ports.config import Config
from penstock.ports.handover import Handover
from penstock.ports.registry import PartName, part


class SourceReset(Protocol):
    """Part `reset` of an engine."""

    def find_removals(self, config: Config, handover: Handover | None, /) -> Iterator[Removal]:
        """Yield the removals. Raises DirectoryOfOtherSource if the source is another one."""
        ...

    def owner(self, config: Config, /, *, log_id: str) -> str:
        """Return the owner of the findings, in words; empty if it is unknown or there is none.

        log_id: of our log, or empty. Raises a typed error if another pipeline is certainly the
        owner.
        """
        ...

    def remove(self, config: Config, handover: Handover | None, removal: Removal, /) -> None:
        """Carry out one removal. Raises PrivilegeMissing and the errors of a connection."""
        ...


RESET_PART: PartName[SourceReset] = PartName("reset")


def reset_of(config: Config) -> SourceReset:
    """Return the part `reset` of the engine that a pipeline's source URL names."""
    return part(config.source.url, RESET_PART)


APPLICATION_NAME = "penstock reset"

TABLES_MAX = 12  # number that a line names


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Things of a pipeline that the target holds.

    Attributes:
        log_id: Id of the log that it follows; empty if it follows none.
        removals: The things to remove.
    """

    log_id: str
    removals: tuple[Removal, ...]


def names_of(tables: Collection[TableName]) -> str:
    """Return the names of tables in one line; of many only the first ones."""
    names = sorted(map(str, tables))
    more = f" and {len(names) - TABLES_MAX} more" if len(names) > TABLES_MAX else ""
    return ", ".join(names[:TABLES_MAX]) + more


class TargetReset(Protocol):
    """Part `leftovers` of an engine; see the functions below."""

    def leftovers(self, url: str, /, *, tables: Collection[TableName] | None) -> Leftovers:
        """Return what the target holds of a pipeline."""
        ...

    def plan_emptying(self, url: str, tables: Collection[TableName], /) -> tuple[Removal, ...]:
        """Return how the existing ones of these tables are emptied."""
        ...

    def remove(self, url: str, removal: Removal, /) -> None:
        """Carry out one removal."""
        ...


LEFTOVERS_PART: PartName[TargetReset] = PartName("leftovers")


def leftovers(url: str, *, tables: Collection[TableName] | None) -> Leftovers:
    """Look at the target, and return what it holds of a pipeline.

    Args:
        url: The target.
        tables: Tables of the target to empty, with those that it remembers. Those that penstock
            created are dropped: the next load creates them in the source's present shape. None:
            its tables stay as they are.
    """
    return part(url, LEFTOVERS_PART).leftovers(url, tables=tables)


def plan_emptying(url: str, tables: Collection[TableName]) -> tuple[Removal, ...]:
    """Return how to empty those of these tables that exist, without removing anything else.

    If several pipelines write to a target, `leftovers` would also remove the others' tables.
    """
    return part(url, LEFTOVERS_PART).plan_emptying(url, tables)


def remove(url: str, removal: Removal) -> None:
    """Carry out one removal. Raises PrivilegeMissing and the other errors of `server_errors`."""
    part(url, LEFTOVERS_PART).remove(url, removal)
