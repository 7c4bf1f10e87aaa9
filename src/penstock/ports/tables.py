"""The tables of a source: the existing, the followed and the new ones; and a plan's questions.

Not here: the plan (`penstock.control.doctor.plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.codec.types import Server
from penstock.host.state_file import StateFile
from penstock.model import TableDefinition, TableName
from penstock.model.patterns import as_pattern
from penstock.model.table_requests import REQUESTS_FILE, Capture, TableRequests
from penstock.ports.config import Config, NewTables
from penstock.ports.registry import PartName, engine_at, part


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Tables whose changes are written to the log, or were until they were dropped.

    Attributes:
        missing: Those of them that were dropped.
        ids: The source's ids of them if names may change (oids, say), so that a renamed table is
            recognised.
    """

    names: frozenset[TableName]
    missing: frozenset[TableName] = frozenset()
    ids: frozenset[int] = frozenset()

    def has(self, name: TableName, source_id: int = 0) -> bool:
        """Return whether a table of the catalogue is among the followed ones."""
        return name in self.names or source_id in self.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Tables of the catalogue that match patterns. new: those of them that are not followed."""

    names: frozenset[TableName]
    new: frozenset[TableName]


class Tables(Protocol):
    """Part `tables` of an engine."""

    def server_of(self, url: str, /) -> Server:
        """Return the server at a URL, source or target. Raises the errors of connecting."""
        ...

    def read_captured(
        self, config: Config, /, *, dropped: Collection[TableName]
    ) -> list[TableDefinition]:
        """Return the definitions of the tables that the configuration captures, ordered by name.

        dropped: tables that were followed; a pattern may name one that no longer exists. Raises
        TableNotCapturable and the errors of reading the catalogue.
        """
        ...

    def read_followed(self, config: Config, /, *, added: Iterable[TableName]) -> Followed | None:
        """Return the tables that the change log follows; None before changes were extracted.

        added: requested tables that have been added. Raises CheckpointCorrupt.
        """
        ...

    def present(
        self, config: Config, patterns: Sequence[str], known: Followed, /
    ) -> Present | None:
        """Return the present tables of the catalogue; None if it is not known yet which are new."""
        ...

    def everything(self, url: str, /) -> str:
        """Return a pattern for all tables of a source; empty if its URL does not say enough."""
        ...

    def namespace(self, url: str, schema: str, /, *, is_same: bool) -> str:
        """Return the target namespace for a source's one schema; empty: the same name.

        is_same: the source is of this engine, too.
        """
        ...

    def shift(self, config: Config, /) -> int:
        """Return the offset that the log adds to the positions of a server that took over."""
        ...


TABLES_PART: PartName[Tables] = PartName("tables")


def tables_at(url: str) -> Tables:
    """Return the part `tables` of the engine that a URL names."""
    return part(url, TABLES_PART)


PLAN_APPLICATION = "penstock plan"


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


PLAN_PART: PartName[Planned] = PartName("plan")
PLAN_PROBLEMS_PART: PartName[
    Callable[[str, Mapping[TableName, Mapping[str, str]], bool], Iterator[str]]
] = PartName("plan_problems")
PLAN_NOTES_PART: PartName[Callable[[str, Collection[str]], Iterator[str]]] = PartName("plan_notes")


def plan_notes(url: str, types: Collection[str]) -> list[str]:
    """Return what readers of a target must know, one sentence each; most targets have nothing.

    types: the target's types that columns get.
    """
    engine = engine_at(url)
    has_notes = PLAN_NOTES_PART in engine.parts
    return list(engine.part(PLAN_NOTES_PART)(url, types)) if has_notes else []


def plan_problems(
    url: str, tables: Mapping[TableName, Mapping[str, str]], *, whole: bool
) -> list[str]:
    """Return why a target cannot have the tables as the file says, one sentence each.

    tables: for each source table the target's types by column. whole: they are all captured ones.
    """
    engine = engine_at(url)
    if PLAN_PROBLEMS_PART not in engine.parts:
        return []
    return list(engine.part(PLAN_PROBLEMS_PART)(url, tables, whole))


def planned_at(url: str) -> Planned:
    """Return the part `plan` of the engine that a URL names."""
    return part(url, PLAN_PART)


def with_requested(
    config: Config,
    known: list[TableDefinition],
    read: Callable[[Sequence[str], Collection[TableName]], list[TableDefinition]],
) -> list[TableDefinition]:
    """Return the captured tables, and those that were requested since the process began.

    Args:
        config: The pipeline.
        known: The tables of the configuration that the process began with.
        read: Returns the tables that patterns capture; those in its second argument may be gone.
    """
    names = {one.name for one in known}
    file = StateFile(config.layout.state / REQUESTS_FILE, TableRequests)
    requests = file.load() or TableRequests()
    later = [
        one.table
        for one in requests.tables
        if one.capture is Capture.ADDED and one.table not in names
    ]
    return [*known, *read(tuple(map(as_pattern, later)), later)] if later else known


def asks_for_tables(config: Config) -> bool:
    """Return whether a table that appears later is captured only after a request.

    With a target its rows have to be copied first. Without one they cannot be.
    """
    return config.has_target or config.source.new_tables is not NewTables.ADD
