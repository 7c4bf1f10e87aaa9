"""A session with the progress tables of a MySQL or MariaDB target; see `ports/progress.py`."""

from __future__ import annotations

from penstock.engines.mysql.connect import connect
from penstock.engines.mysql.target import progress, shared_progress
from penstock.engines.mysql.target import sync_rows as sync_rows
from penstock.host.errors import StatementFailed
from penstock.model import TableName
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied, left_out_columns


class MySQLProgress:
    """The port `ports.progress.Progress`."""

    def __init__(self, url: str, application_name: str) -> None:
        """Connect. Raises the typed errors of a connection."""
        self._connection = connect(url, application_name=application_name)

    @property
    def is_closed(self) -> bool:
        """See `Progress`."""
        return not self._connection.open

    def ensure_tables(self) -> None:
        """See `Progress`."""
        progress.ensure_tables(self._connection)

    def read_action(self) -> str:
        """See `Progress`."""
        return progress.read_action(self._connection)

    def set_action(self, action: str) -> None:
        """See `Progress`."""
        progress.set_action(self._connection, action)

    def read_applied(self) -> Applied:
        """See `Progress`."""
        return progress.read_applied(self._connection)

    def take_over(self, log_id: str, holder: str) -> Applied:
        """See `SharedProgress`."""
        return shared_progress.take_over(self._connection, log_id, holder)

    def holder(self, log_id: str) -> str:
        """See `SharedProgress`."""
        return shared_progress.holder_of(self._connection, log_id) or ""

    def read_shared(self, log_id: str) -> Applied:
        """See `SharedProgress`."""
        return progress.read_applied(self._connection, log_id)

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        """See `Progress`."""
        return sync_rows.read_table_syncs(self._connection)

    def read_left_out(self) -> dict[TableName, frozenset[str]]:
        """See `Progress`."""
        try:
            records = progress.read_tables(self._connection)
        except StatementFailed as error:
            if error.fields.get("errno") not in progress.NOT_THERE:
                raise
            return {}
        return left_out_columns(records)

    def begin_segment(self, *, slot: str, file: str, mark: str) -> None:
        """See `Progress`."""
        progress.begin_segment(self._connection, slot=slot, file=file, mark=mark)

    def end_segment(self, *, slot: str, file: str, mark: str) -> None:
        """See `Progress`."""
        progress.end_segment(self._connection, slot=slot, file=file, mark=mark)

    def finished_segments(self, slot: str) -> set[str]:
        """See `Progress`."""
        return progress.finished_segments(self._connection, slot)

    def close(self) -> None:
        """See `Progress`."""
        self._connection.close()
