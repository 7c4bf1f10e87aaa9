"""A pipeline's state, from the tables of schema or database `wirekite` in its target.

The queries are those that document 000 prints, run unchanged on every engine. Not here: the
tables themselves (`penstock.ports.progress`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from penstock.load.bulk_progress import BulkProgress, read_progress
from penstock.load.ledger import read_ledger
from penstock.model import TableName
from penstock.ports.config import Config
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied
from penstock.ports.target_state import TargetReader

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
    """What the target says. unknown: it could not be asked so far, and the rest means nothing.

    present: it has our tables.
    """

    unknown: bool = False
    present: bool = True
    applied: Applied = field(default_factory=Applied)
    action: str = "RUN"
    restarts: int = 0
    extracted: tuple[ProgressRow, ...] = ()
    loaded: tuple[ProgressRow, ...] = ()
    bulk: BulkProgress | None = None
    apart: Mapping[TableName, TableSync] = field(default_factory=dict)


def read_target_state(reader: TargetReader, config: Config) -> TargetState:
    """What the target's tables say; empty before they are made."""
    progress, bulk = reader.present()
    if not progress:
        return TargetState(present=False)
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
    """The bulk load's progress, without rates: from the plan and the target."""
    ledger = read_ledger(config.layout.state)
    if not ledger.plans:
        return None
    paused = "paused" if action == "PAUSE" else "copying"
    phase = "done" if ledger.finished else paused
    return read_progress(reader.counts, ledger.plans, phase)
