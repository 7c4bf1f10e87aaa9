"""A session with the progress tables of a PostgreSQL target; see `ports/progress.py`."""

from __future__ import annotations

import psycopg

from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.target import progress
from penstock.engines.postgres.target import sync_rows as sync_rows
from penstock.model import TableName
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied, left_out_columns


class PostgresProgress:
    """The port `ports.progress.Progress`."""

    def __init__(self, url: str, application_name: str) -> None:
        """Connect. Raises the typed errors of a connection."""
        self._connection = connect(url, application_name=application_name)

    @property
    def is_closed(self) -> bool:
        """See `Progress`."""
        return self._connection.closed or self._connection.broken

    def ensure_tables(self) -> None:
        """See `Progress`."""
        with server_errors("making the progress tables"):
            progress.ensure_tables(self._connection)

    def read_action(self) -> str:
        """See `Progress`."""
        with server_errors("reading the action"):
            return progress.read_action(self._connection)

    def set_action(self, action: str) -> None:
        """See `Progress`."""
        with server_errors("writing the action"):
            progress.set_action(self._connection, action)

    def read_applied(self) -> Applied:
        """See `Progress`."""
        with server_errors("reading the applied position"):
            return progress.read_applied(self._connection)

    def take_over(self, log_id: str, holder: str) -> Applied:
        """See `SharedProgress`."""
        with server_errors("taking over the applied position"):
            return progress.take_over(self._connection, log_id, holder)

    def holder(self, log_id: str) -> str:
        """See `SharedProgress`."""
        with server_errors("reading who has the applied position"):
            return progress.holder_of(self._connection, log_id) or ""

    def read_shared(self, log_id: str) -> Applied:
        """See `SharedProgress`."""
        with server_errors("reading the applied position"):
            return progress.read_applied(self._connection, log_id)

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        """See `Progress`."""
        with server_errors("reading the table syncs"):
            return sync_rows.read_table_syncs(self._connection)

    def read_left_out(self) -> dict[TableName, frozenset[str]]:
        """See `Progress`."""
        with server_errors("reading the captured tables"):
            try:
                records = progress.read_tables(self._connection)
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                return {}
        return left_out_columns(records)

    def begin_segment(self, *, slot: str, file: str, mark: str) -> None:
        """See `Progress`."""
        with server_errors("recording the change log's segments"):
            progress.begin_segment(self._connection, slot=slot, file=file, mark=mark)

    def end_segment(self, *, slot: str, file: str, mark: str) -> None:
        """See `Progress`."""
        with server_errors("recording the change log's segments"):
            progress.end_segment(self._connection, slot=slot, file=file, mark=mark)

    def finished_segments(self, slot: str) -> set[str]:
        """See `Progress`."""
        with server_errors("recording the change log's segments"):
            return progress.finished_segments(self._connection, slot)

    def close(self) -> None:
        """See `Progress`."""
        self._connection.close()
