"""A pipeline's state, from the tables of schema or database `wirekite` in its target.

Not here: the tables themselves (`penstock.ports.progress`), reading them (the engines'
`target_state`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.load.bulk_progress import BulkProgress, read_progress
from penstock.load.ledger import read_ledger
from penstock.model import TableName
from penstock.ports.config import Config
from penstock.ports.progress import ProgressRow, TargetReader
from penstock.ports.target import Applied, TableSync


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """State of the target. unknown: it could not be asked so far, and the rest means nothing.

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
    table_syncs: Mapping[TableName, TableSync] = field(default_factory=dict)


def read_target_state(reader: TargetReader, config: Config) -> TargetState:
    """Return the state in the target's tables; empty before they are created."""
    progress, bulk = reader.present()
    if not progress:
        return TargetState(present=False)
    action = reader.action()
    return TargetState(
        applied=reader.read_applied(),
        action=action,
        restarts=reader.restarts(),
        extracted=tuple(reader.newest("CE")),
        loaded=tuple(reader.newest("CL")),
        bulk=_bulk(reader, config, action) if bulk else None,
        table_syncs=reader.table_syncs(),
    )


def _bulk(reader: TargetReader, config: Config, action: str) -> BulkProgress | None:
    """Return the bulk load's progress, without rates: from the plan and the target."""
    ledger = read_ledger(config.layout.state)
    if not ledger.plans:
        return None
    paused = "paused" if action == "PAUSE" else "copying"
    phase = "done" if ledger.finished else paused
    return read_progress(reader.counts, ledger.plans, phase)
