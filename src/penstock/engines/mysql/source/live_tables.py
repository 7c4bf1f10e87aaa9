"""Read tables' present definitions from the server's catalogue, and check that they held earlier.

The catalogue knows only the present; the stream may be behind. A table's present definition holds
at a place of the stream if there is no statement on that table in between. So a separate connection
reads ahead in the binlog from that place on, for statements.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from penstock.codec.mysql.binlog_events import (
    CHECKSUM_BYTES,
    EventKind,
    event_head,
    format_description,
    rotate,
)
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_query import Query, query
from penstock.codec.mysql.binlog_walk import has_checksum
from penstock.engines.mysql.connect import Connection, rows
from penstock.engines.mysql.source.added_columns import Added
from penstock.engines.mysql.source.catalog import open_catalog
from penstock.engines.mysql.source.client import DumpOptions, open_binlog, probe_server_id
from penstock.engines.mysql.source.ddl_text import Effect, effects_of
from penstock.engines.mysql.source.definitions import definitions_of
from penstock.engines.mysql.source.status import binlog_files, read_status
from penstock.engines.mysql.source.stored_values import read_stored_value
from penstock.engines.mysql.source.stream_place import Catalogue
from penstock.model import TableDefinition, TableName

logger = structlog.get_logger()
AHEAD_BYTES_MAX = 2 * 2**30  # more than that is not read ahead: it takes some ten seconds

TABLE = """
    select table_schema, table_name, table_type, engine, create_options, table_rows, data_length,
           unix_timestamp(create_time) as changed_s
      from information_schema.tables
     where table_schema = %s
       and cast(table_name as binary) = cast(%s as binary)
"""


class LiveTables(Catalogue):
    """The catalogue of a server, for the decoding thread. Connects at the first question."""

    def __init__(self, url: str, *, fold: bool) -> None:
        """Keep the settings. fold: the server keeps names in lower case."""
        self._url = url
        self._fold = fold
        self._connection: Connection | None = None
        self._ahead: _StagePrefetch | None = None

    def close(self) -> None:
        """Close the connection and forget what was read: the next one may be to another server."""
        self._ahead = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def read(self, name: TableName) -> TableDefinition | None:
        """Return a table's present definition; None if it does not exist. Raises typed errors."""
        connection = self._connect()
        found = rows(connection, TABLE, tuple(name), doing=f"reading the definition of {name}")
        if not found:
            return None
        return definitions_of(connection, {name: found[0]}).get(name)

    def read_at(self, name: TableName, behind: BinlogPosition) -> TableDefinition | None:
        """Return a table's definition at a place of the stream; None if that is not known."""
        definition = self.read(name)
        if definition is None or not self._is_quiet(name, behind):
            return None
        return definition

    def added_value(self, name: TableName, added: Added, query: Query) -> str | None:
        """Return the value that existing rows got in an added column. Raises ValueUnknown."""
        return read_stored_value(self._url, name, added, query)

    def _is_quiet(self, name: TableName, behind: BinlogPosition) -> bool:
        """Return whether the binlog has no statement on this table between that place and its
        present end.
        """
        end = read_status(self._connect()).position
        if end <= behind:
            return True
        ahead = self._ahead
        if ahead is None or not ahead.begin <= behind <= ahead.end:
            ahead = _StagePrefetch(begin=behind, end=behind)
        if self._distance_bytes(ahead.end, end) > AHEAD_BYTES_MAX:
            logger.info("definition is not looked up: too far behind", table=str(name))
            return False
        if ahead.end < end:
            ahead = self._read_on(ahead, end)
        self._ahead = ahead
        return not any(place > behind and _touches(effect, name) for place, effect in ahead.effects)

    def _distance_bytes(self, behind: BinlogPosition, end: BinlogPosition) -> int:
        """Return how much binlog lies in between, in bytes."""
        numbers = range(behind.number, end.number)
        files = binlog_files(self._connect()) if numbers else []
        sizes = {BinlogPosition.at(one.name, 0).number: one.size_bytes for one in files}
        return sum(sizes.get(number, 0) for number in numbers) + end.offset - behind.offset

    def _read_on(self, ahead: _StagePrefetch, end: BinlogPosition) -> _StagePrefetch:
        """Read the effects of statements at least up to a place where the binlog ended just now."""
        options = DumpOptions(server_id=probe_server_id(), is_bounded=True)
        server = self._connect().server
        effects = list(ahead.effects)
        sealed, file = 0, ahead.end.file
        with open_binlog(self._url, position=ahead.end, options=options) as stream:
            for event in stream.statements():
                kind = event_head(event).kind
                if kind == EventKind.FORMAT_DESCRIPTION:
                    sealed = CHECKSUM_BYTES if format_description(event).has_checksums else 0
                elif kind == EventKind.ROTATE:
                    file = rotate_file(event)
                else:
                    place = BinlogPosition.at(file, event_head(event).end_position)
                    said = query(event[: len(event) - sealed])
                    found = effects_of(said, server=server, fold=self._fold)
                    effects += [(place, effect) for effect in found]
        return _StagePrefetch(begin=ahead.begin, end=end, effects=tuple(effects))

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = open_catalog(self._url, application_name="penstock definitions")
        return self._connection


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagePrefetch:
    """Effects of statements on all tables between two places, read ahead, with their places."""

    begin: BinlogPosition
    end: BinlogPosition
    effects: tuple[tuple[BinlogPosition, Effect], ...] = ()


def _touches(effect: Effect, name: TableName) -> bool:
    """Return whether a table may be another one after a statement's effect."""
    dropped = effect.table
    return (
        name in (dropped, effect.to)
        or dropped is None
        or (dropped.name == "" and dropped.schema == name.schema)
    )


def rotate_file(event: bytes) -> str:
    """Return the file that a ROTATE event leads to.

    Its checksum has to be separated from the name: the event that opens a stream arrives before the
    one that says whether there are checksums, and a checksum may begin with digits.
    """
    sealed = CHECKSUM_BYTES if has_checksum(memoryview(event)) else 0
    return rotate(event[: len(event) - sealed]).file_name
