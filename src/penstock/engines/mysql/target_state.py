"""The reader of a MySQL or MariaDB target; see `ports.target_state.TargetReader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.engines.mysql.connect import Connection, connect, rows
from penstock.engines.mysql.target import progress
from penstock.engines.mysql.target.sync_rows import read_table_syncs
from penstock.model import TableName
from penstock.ports.bulk import ChunkCounts
from penstock.ports.table_sync import TableSync
from penstock.ports.target import SCHEMA, Applied
from penstock.sql.progress_queries import ProgressQueries


class MySQLCounts:
    """What a connection can say of chunks; see `ChunkCounts`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        """See ChunkCounts."""
        return progress.all_finished_chunks(self._connection)

    def under_way(self) -> Mapping[TableName, int]:
        """See ChunkCounts. These servers do not show it."""
        return {}


class MySQLStateReader(ProgressQueries):
    """See `TargetReader`."""

    def __init__(self, url: str, application_name: str) -> None:
        """Connect. Raises the typed errors of a connection."""
        self._connection = connect(url, application_name=application_name)
        self.counts: ChunkCounts = MySQLCounts(self._connection)

    @property
    def is_closed(self) -> bool:
        """See TargetReader."""
        return not self._connection.open

    def present(self) -> tuple[bool, bool]:
        """See TargetReader."""
        found = rows(
            self._connection,
            "select table_name from information_schema.tables where table_schema = %s",
            (SCHEMA,),
            doing="looking for our tables",
        )
        names = {row["table_name"] for row in found}
        return "wirekite_progress" in names, "bulk_table" in names

    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        """See ProgressQueries."""
        found = rows(self._connection, query, doing="reading the progress tables")
        return [tuple(row.values()) for row in found]

    def action(self) -> str:
        """See TargetReader."""
        return progress.read_action(self._connection)

    def read_applied(self) -> Applied:
        """See TargetReader."""
        return progress.read_applied(self._connection)

    def table_syncs(self) -> Mapping[TableName, TableSync]:
        """See TargetReader."""
        return read_table_syncs(self._connection)

    def close(self) -> None:
        """See TargetReader."""
        self._connection.close()
