"""What the tables of schema or database `wirekite` in a pipeline's target tell of it.

The queries are those that document 000 prints, run as they stand on every engine. Not here: the
tables themselves (`penstock.ports.progress`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.target.apart_rows import read_apart
from penstock.engines.postgres.target.bulk import PostgresCounts
from penstock.engines.postgres.target.progress import read_action, read_applied
from penstock.load.bulk_progress import BulkProgress, read_progress
from penstock.load.ledger import read_ledger
from penstock.model import TableName
from penstock.ports.bulk import ChunkCounts
from penstock.ports.config import Config
from penstock.ports.table_sync import Apart
from penstock.ports.target import Applied
from penstock.sql.read_plan import is_mysql

# As document 000 prints them.
CE_ROWS = """
    SELECT source, mark, start_time, finish_time
    FROM wirekite.wirekite_progress
    WHERE operation = 'CE'
    ORDER BY start_time DESC
    LIMIT 5
"""
CL_ROWS = """
    SELECT source, mark, start_time, finish_time
    FROM wirekite.wirekite_progress
    WHERE operation = 'CL'
    ORDER BY start_time DESC
    LIMIT 5
"""
RESTARTS = """
    select coalesce(sum(restarts), 0)
      from wirekite.wirekite_progress
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """A row of wirekite_progress as the document's query gives it; times are UTC."""

    source: str
    mark: str | None
    start_time: datetime
    finish_time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What the target tells. unknown: it could not be asked so far, and the rest means nothing."""

    unknown: bool = False
    applied: Applied = field(default_factory=Applied)
    action: str = "RUN"
    restarts: int = 0
    extracted: tuple[ProgressRow, ...] = ()
    loaded: tuple[ProgressRow, ...] = ()
    bulk: BulkProgress | None = None
    apart: Mapping[TableName, Apart] = field(default_factory=dict)


class TargetReader(Protocol):
    """Who asks the target. Used by one thread; every error comes out typed."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        ...

    @property
    def counts(self) -> ChunkCounts:
        """Who tells of the bulk load's chunks."""
        ...

    def present(self) -> tuple[bool, bool]:
        """Whether there are progress tables, and those of a bulk load."""
        ...

    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        """The rows of a query without parameters."""
        ...

    def action(self) -> str:
        """The word in wirekite_action."""
        ...

    def applied(self) -> Applied:
        """How far the log is applied."""
        ...

    def apart(self) -> Mapping[TableName, Apart]:
        """The tables that stand, or stood, apart from the flow."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class PostgresReader:
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
        """See TargetReader."""
        with server_errors("reading the progress tables"):
            return self._connection.execute(query).fetchall()

    def action(self) -> str:
        """See TargetReader."""
        with server_errors("reading the action"):
            return read_action(self._connection)

    def applied(self) -> Applied:
        """See TargetReader."""
        with server_errors("reading the applied position"):
            return read_applied(self._connection)

    def apart(self) -> Mapping[TableName, Apart]:
        """See TargetReader."""
        with server_errors("reading the tables that stand apart"):
            return read_apart(self._connection)

    def close(self) -> None:
        """See TargetReader."""
        self._connection.close()


def open_target_reader(url: str, *, application_name: str) -> TargetReader:
    """Connect to a target, whichever engine its URL names."""
    if is_mysql(url):
        from penstock.engines.mysql.target_state import MySQLReader

        return MySQLReader(url, application_name)
    return PostgresReader(url, application_name)


def read_target_state(reader: TargetReader, config: Config) -> TargetState:
    """What the target's tables tell; empty before they are made."""
    progress, bulk = reader.present()
    if not progress:
        return TargetState()
    action = reader.action()
    [restarts] = reader.rows(RESTARTS)
    return TargetState(
        applied=reader.applied(),
        action=action,
        restarts=int(restarts[0]),
        extracted=_progress_rows(reader, CE_ROWS),
        loaded=_progress_rows(reader, CL_ROWS),
        bulk=_bulk(reader, config, action) if bulk else None,
        apart=reader.apart(),
    )


def _progress_rows(reader: TargetReader, query: str) -> tuple[ProgressRow, ...]:
    return tuple(
        ProgressRow(source=row[0], mark=row[1], start_time=row[2], finish_time=row[3])
        for row in reader.rows(query)
    )


def _bulk(reader: TargetReader, config: Config, action: str) -> BulkProgress | None:
    """The bulk load's progress, without rates: what plan and target say together."""
    ledger = read_ledger(config.layout.state)
    if not ledger.plans:
        return None
    paused = "paused" if action == "PAUSE" else "copying"
    phase = "done" if ledger.finished else paused
    return read_progress(reader.counts, ledger.plans, phase)
