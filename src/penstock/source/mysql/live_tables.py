"""Tables as the server's catalogue has them now, and whether that also holds further back.

The catalogue knows only the present; the stream may be behind. What it says of a table holds at a
place of the stream when no statement on that table lies between: so the binlog from there on is
read ahead for statements, on a connection of its own. Not here: what is made of it
(`table_book.py`).
"""

from __future__ import annotations

import re

import structlog

from penstock.codec.binlog_events import (
    CHECKSUM_BYTES,
    HEAD_BYTES,
    EventKind,
    event_head,
    format_description,
)
from penstock.codec.binlog_query import query
from penstock.host.mysql.connect import Connection, rows
from penstock.model import BinlogPosition, TableDefinition, TableName
from penstock.source.mysql.catalog import open_catalog
from penstock.source.mysql.client import DumpOptions, open_binlog
from penstock.source.mysql.ddl_text import effects_of
from penstock.source.mysql.definitions import definitions_of
from penstock.source.mysql.login import probe_server_id
from penstock.source.mysql.status import read_status

logger = structlog.get_logger()
AHEAD_BYTES_MAX = 512 * 2**20  # more than that is not read ahead

TABLE = """
    select table_schema, table_name, table_type, engine, create_options, table_rows, data_length
      from information_schema.tables
     where table_schema = %s
       and cast(table_name as binary) = cast(%s as binary)
"""


class LiveTables:
    """The catalogue of a server, asked by the thread that decodes. Connects when first asked."""

    def __init__(self, url: str, *, fold: bool) -> None:
        """fold: the server keeps names in lower case."""
        self._url = url
        self._fold = fold
        self._connection: Connection | None = None
        self._next: dict[TableName, BinlogPosition] = {}  # the next statement that was found

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def read(self, name: TableName) -> TableDefinition | None:
        """A table's definition now; None when there is none. Raises typed errors."""
        connection = self._connected()
        found = rows(connection, TABLE, tuple(name), doing=f"reading the definition of {name}")
        if not found:
            return None
        return definitions_of(connection, {name: found[0]}).get(name)

    def read_at(self, name: TableName, behind: BinlogPosition) -> TableDefinition | None:
        """A table's definition as it was at a place of the stream; None when that is not known."""
        definition = self.read(name)
        if definition is None or not self._is_quiet(name, behind):
            return None
        return definition

    def _is_quiet(self, name: TableName, behind: BinlogPosition) -> bool:
        """Whether no statement on this table lies between that place and the present."""
        found = self._next.get(name)
        if found is not None and found > behind:
            return False
        end = read_status(self._connected()).position
        if end <= behind:
            return True
        if _distance_bytes(behind, end) > AHEAD_BYTES_MAX:
            logger.info("definition is not looked up: too far behind", table=str(name))
            return False
        options = DumpOptions(server_id=probe_server_id(), is_bounded=True)
        server = self._connected().server
        sealed, file = 0, behind.file
        with open_binlog(self._url, position=behind, options=options) as stream:
            for event in stream.events():
                kind = event_head(event).kind if event is not None else 0
                if event is not None and kind == EventKind.FORMAT_DESCRIPTION:
                    sealed = CHECKSUM_BYTES if format_description(event).has_checksums else 0
                if event is not None and kind == EventKind.ROTATE:
                    file = rotate_file(event) or file
                if event is None or kind not in _STATEMENTS:
                    continue
                said = query(event[: len(event) - sealed])
                for effect in effects_of(said, server=server, fold=self._fold):
                    touched = (effect.table, effect.to)
                    if name in touched or effect.table is None or _is_schema_of(effect.table, name):
                        offset = event_head(event).end_position
                        self._next[name] = BinlogPosition.at(file, offset)
                        return False
        return True

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = open_catalog(self._url, application_name="penstock definitions")
        return self._connection


_STATEMENTS = (EventKind.QUERY, EventKind.QUERY_COMPRESSED)


def rotate_file(event: bytes) -> str:
    """The file that a ROTATE event leads to; it may have a checksum behind the name."""
    match = re.match(rb"[!-~]+?\.[0-9]{6,10}", event[HEAD_BYTES + 8 :])
    return match[0].decode() if match is not None else ""


def _is_schema_of(dropped: TableName, name: TableName) -> bool:
    return dropped.name == "" and dropped.schema == name.schema


def _distance_bytes(behind: BinlogPosition, end: BinlogPosition) -> int:
    """About how much binlog lies between: files count as full ones of a gigabyte."""
    return (end.number - behind.number) * 2**30 + end.offset - behind.offset
