"""The tables of a source: the existing, the followed and the new ones."""

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
        """Return whether a table of the catalogue is one of them."""
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


def tables_at(url: str) -> Tables:
    """Return the part `tables` of the engine that a URL names."""
    found: Tables = part(url, "tables")
    return found
