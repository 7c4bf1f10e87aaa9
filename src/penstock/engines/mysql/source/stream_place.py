"""A place of the stream, the shape of rows there, and the catalogue to ask about tables there.
Nouns.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_query import Query
from penstock.engines.mysql.source.added_columns import Added
from penstock.model import Relation, TableDefinition, TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """Place of the stream. since: the open transaction's position. behind: end of the last
    event.
    """

    since: int
    behind: BinlogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Shape of a TABLE_MAP's rows. relation: None if not captured. charsets: per column."""

    relation: Relation | None
    charsets: tuple[str | None, ...] = ()


class Catalogue(Protocol):
    """The server's catalogue; see `live_tables.LiveTables`."""

    @abstractmethod
    def read(self, name: TableName) -> TableDefinition | None:
        """Return a table's present definition; None if it does not exist."""
        ...

    @abstractmethod
    def read_at(self, name: TableName, behind: BinlogPosition) -> TableDefinition | None:
        """Return a table's definition at a place of the stream; None if it is not known."""
        ...

    @abstractmethod
    def added_value(self, name: TableName, added: Added, query: Query) -> str | None:
        """Return the value that existing rows got in an added column. Raises ValueUnknown."""
        ...
