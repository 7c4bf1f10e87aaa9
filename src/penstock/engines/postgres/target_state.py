"""The reader of a PostgreSQL target; see `ports.target_state.TargetReader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.target.bulk import PostgresCounts
from penstock.engines.postgres.target.progress import read_action, read_applied
from penstock.engines.postgres.target.sync_rows import read_table_syncs
from penstock.model import TableName
from penstock.ports.bulk import ChunkCounts
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied
from penstock.sql.progress_queries import ProgressQueries


class PostgresStateReader(ProgressQueries):
    """The reader of a PostgreSQL target; see `TargetReader`."""

    def __init__(self, url: str, application_name: str) -> None:
        """Connect. Raises the typed errors of a connection."""
        self._connection = connect(url, application_name=application_name)
        self.counts: ChunkCounts = PostgresCounts(self._connection)

    @property
    def is_closed(self) -> bool:
        """See TargetReader."""
        return self._connection.closed

    def present(self) -> tuple[bool, bool]:
        """See TargetReader."""
        [row] = self.rows(
            "select to_regclass('wirekite.wirekite_progress') is not null,"
            "       to_regclass('wirekite.bulk_table') is not null"
        )
        return bool(row[0]), bool(row[1])

    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        """See ProgressQueries."""
        with server_errors("reading the progress tables"):
            return self._connection.execute(query).fetchall()

    def action(self) -> str:
        """See TargetReader."""
        with server_errors("reading the action"):
            return read_action(self._connection)

    def read_applied(self) -> Applied:
        """See TargetReader."""
        with server_errors("reading the applied position"):
            return read_applied(self._connection)

    def table_syncs(self) -> Mapping[TableName, TableSync]:
        """See TargetReader."""
        with server_errors("reading the table syncs"):
            return read_table_syncs(self._connection)

    def close(self) -> None:
        """See TargetReader."""
        self._connection.close()
