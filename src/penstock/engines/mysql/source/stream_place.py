"""A place of the stream, what rows are there, and whom to ask about tables there. Nouns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_query import Query
from penstock.engines.mysql.source.added_columns import Added
from penstock.model import Relation, TableDefinition, TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """Where the stream is. since: the open transaction's position. behind: of the last event."""

    since: int
    behind: BinlogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a TABLE_MAP's rows are; relation None: not captured. charsets: per column."""

    relation: Relation | None
    charsets: tuple[str | None, ...] = ()


class Catalogue(Protocol):
    """The server's catalogue; see `live_tables.LiveTables`."""

    def read(self, name: TableName) -> TableDefinition | None:
        """A table's definition now; None when there is none."""
        ...

    def read_at(self, name: TableName, behind: BinlogPosition) -> TableDefinition | None:
        """A table's definition as it was at a place of the stream; None when not known."""
        ...

    def added_value(self, name: TableName, added: Added, query: Query) -> str | None:
        """The value that existing rows got in an added column. Raises ValueUnknown."""
        ...
