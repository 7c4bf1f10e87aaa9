"""What a plan asks of the two servers. Not here: the plan (`penstock.control.plan`)."""

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
    """A source's server and its captured tables.

    left_out: the tables that a pattern takes in and that are not captured, each with its reason.
    problems: why the pipeline cannot start, one sentence each, such as tables that are named and
    are not there.
    """

    server: Server
    tables: tuple[TableDefinition, ...]
    left_out: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Planned(Protocol):
    """An engine's part `plan`."""

    def read_source(self, config: Config, /, *, dropped: Collection[TableName]) -> SourceFacts:
        """The source. dropped: tables that were followed and may be gone. Raises what connecting
        and the catalogue do.
        """
        ...

    def read_target(self, config: Config, /) -> tuple[Server, int]:
        """The target, and its lower_case_table_names, 0 where names keep their case."""
        ...

    def problems_between(
        self,
        config: Config,
        tables: Sequence[TableDefinition],
        /,
        *,
        planned: Collection[TableName],
    ) -> list[str]:
        """What a target of the same engine would refuse that the source holds, one sentence each.

        planned: tables whose bulk load has been planned already: they are not looked at again.
        """
        ...


def planned_at(url: str) -> Planned:
    """The part of the engine that a URL names."""
    found: Planned = part(url, "plan")
    return found
