"""The tables of a source: which there are, which are followed, which are new."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.codec.types import Server
from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.registry import part


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The tables whose changes go into the log, or went there until they were dropped.

    missing: those of them that were dropped. ids: what the source knows them by where names may
    change (oids, say), so that a renamed table is recognised.
    """

    names: frozenset[TableName]
    missing: frozenset[TableName] = frozenset()
    ids: frozenset[int] = frozenset()

    def has(self, name: TableName, source_id: int = 0) -> bool:
        """Whether a table of the catalogue is one of them."""
        return name in self.names or source_id in self.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What the catalogue has of what patterns take in. new: those of them that are not followed."""

    names: frozenset[TableName]
    new: frozenset[TableName]


class Tables(Protocol):
    """An engine's part `tables`."""

    def server_of(self, url: str, /) -> Server:
        """Which server answers at a URL, source or target. Raises what connecting does."""
        ...

    def captured(
        self, config: Config, /, *, dropped: Collection[TableName]
    ) -> list[TableDefinition]:
        """The definitions of the tables that the configuration takes in, ordered by name.

        dropped: tables that were followed, of which a pattern may name one that is gone. Raises
        TableNotCapturable and what reading the catalogue does.
        """
        ...

    def followed(self, config: Config, /, *, added: Iterable[TableName]) -> Followed | None:
        """The tables that the change log follows; None before changes were extracted.

        added: tables that were asked for and have been taken in. Raises CheckpointCorrupt.
        """
        ...

    def present(
        self, config: Config, patterns: Sequence[str], known: Followed, /
    ) -> Present | None:
        """What the catalogue has now; None where it is not known yet which tables are new."""
        ...

    def everything(self, url: str, /) -> str:
        """A pattern that takes in all of a source; empty where its URL does not say enough."""
        ...

    def namespace(self, url: str, schema: str, /, *, is_same: bool) -> str:
        """Where a target puts the tables of a source's one schema; empty: into the same.

        is_same: the source is of this engine, too.
        """
        ...

    def shift(self, config: Config, /) -> int:
        """What the log adds to the server's positions, since another one took over."""
        ...


def tables_at(url: str) -> Tables:
    """The part of the engine that a URL names."""
    found: Tables = part(url, "tables")
    return found
