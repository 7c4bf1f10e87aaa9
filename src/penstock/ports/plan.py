"""Questions of a plan to the two servers. Not here: the plan (`penstock.control.doctor.plan`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.codec.types import Server
from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.registry import part

APPLICATION_NAME = "penstock plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """Server of a source and its captured tables.

    Attributes:
        left_out: The tables that match a pattern and are not captured, each with its reason.
        problems: Why the pipeline cannot start, one sentence each, such as named tables that do not
            exist.
    """

    server: Server
    tables: tuple[TableDefinition, ...]
    left_out: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Planned(Protocol):
    """Part `plan` of an engine."""

    def read_source(self, config: Config, /, *, dropped: Collection[TableName]) -> SourceFacts:
        """Return the facts of the source. Raises the errors of connecting and of the catalogue.

        dropped: tables that were followed and may no longer exist.
        """
        ...

    def read_target(self, config: Config, /) -> tuple[Server, int]:
        """Return the target, and its lower_case_table_names, 0 if names keep their case."""
        ...

    def problems_between(
        self,
        config: Config,
        tables: Sequence[TableDefinition],
        /,
        *,
        planned: Collection[TableName],
    ) -> list[str]:
        """Return what a target of the same engine would refuse of the source, one sentence each.

        planned: tables whose bulk load has been planned already: they are not looked at again.
        """
        ...


def planned_at(url: str) -> Planned:
    """Return the part `plan` of the engine that a URL names."""
    found: Planned = part(url, "plan")
    return found
