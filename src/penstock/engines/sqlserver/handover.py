"""Handover of a SQL Server source: Wirekite's four steps, in the extract process.

The position is noted before anything is read. The bulk load's sessions begin later, each with a
snapshot of its own, and the changes from the position on are applied over what they read: a row's
last change decides, found by its key (reference, section 10). Nothing is stopped at the source, and
nothing is kept open for the bulk load. Not here: the readers' snapshots and chunks (`planner.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from penstock.codec.sqlserver.lsn import SqlServerLsn
from penstock.engines.sqlserver.source.beginning import present_place, read_database
from penstock.engines.sqlserver.source.reader import Session
from penstock.host import faults
from penstock.model import TableDefinition
from penstock.ports.config import Config, Pipeline
from penstock.ports.handover import (
    Handover,
    HandoverPhase,
    check_bulk_load,
    read_handover,
    write_handover,
)

SNAPSHOT_TEXT = "change tables"

logger = structlog.get_logger(__name__)
faults.declare("sqlserver.handover.captured")


def prepare(
    pipeline: Pipeline,
    session: Session,
    *,
    tables: Sequence[TableDefinition],
    has_begun: bool,
) -> int:
    """Take the four steps and return the position where an empty log begins.

    A process that continues a handover returns the position that it noted. Raises
    LogWithoutBulkLoad, CdcDisabled.
    """
    config = pipeline.config
    state = read_handover(config)
    check_bulk_load(config, state, has_begun=has_begun)
    if state is None or not state.position:
        state = _capture(config, session, tables)
    return SqlServerLsn.parse(state.position).ordinal


def _capture(config: Config, session: Session, tables: Sequence[TableDefinition]) -> Handover:
    read_database(session)
    place = present_place(session)
    position = str(SqlServerLsn(place.position))
    state = Handover(
        phase=HandoverPhase.DONE,
        slot_position=position,
        position=position,
        snapshot_id=position,
        snapshot_text=SNAPSHOT_TEXT,
        tables=tuple(str(one.name) for one in tables),
    )
    for number, text in (
        (
            1,
            "Stop Replication: nothing is stopped, changes are applied over the rows that are read",
        ),
        (2, f"Capture Position: {position}, {place.how}"),
        (3, f"Start Change Processes: changes are extracted after {position}"),
        (4, "Resume Replication: nothing was stopped"),
    ):
        state = state.with_step(number, text)
    write_handover(config, msgspec.structs.replace(state))
    logger.info("handover", phase=state.phase.value, position=position, how=place.how)
    faults.point("sqlserver.handover.captured")
    return state
