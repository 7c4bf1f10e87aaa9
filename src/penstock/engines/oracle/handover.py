"""Handover of an Oracle source: Wirekite's four steps, in the extract process.

The bulk load reads the tables as of the SCN at which the log begins: both have the same position,
and nothing is stopped at the source or kept open for it. What the redo before that SCN has of open
transactions is found by `beginning.py`. Both files are written before anything is read, so that a
process that continues begins at the same place. Not here: the readers' chunks (`planner.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from penstock.codec.oracle.scn import OraclePosition
from penstock.engines.oracle.beginning import (
    Beginning,
    check_database,
    load_beginning,
    save_beginning,
    switch_log,
    take_beginning,
)
from penstock.engines.oracle.connect import Connection
from penstock.engines.oracle.planner import settled_digests, snapshot_text
from penstock.engines.oracle.url import OracleUrl
from penstock.host import faults, files
from penstock.model import TableDefinition
from penstock.ports.config import Config, Pipeline
from penstock.ports.handover import (
    Handover,
    HandoverPhase,
    check_bulk_load,
    read_handover,
    write_handover,
)

logger = structlog.get_logger(__name__)
faults.declare("oracle.handover.begun", "oracle.handover.captured")


def prepare(
    pipeline: Pipeline,
    session: Connection,
    *,
    tables: Callable[[], Sequence[TableDefinition]],
    has_begun: bool,
) -> Beginning:
    """Take the four steps and return where an empty log begins.

    A process that continues a handover returns what it noted.

    Args:
        pipeline: The pipeline, in mode data+change.
        session: A session for mining.
        tables: Returns the captured tables as they are now.
        has_begun: Whether the log has a position.

    Raises LogWithoutBulkLoad, StateUnreadable and the errors of `check_database`.
    """
    config = pipeline.config
    state = read_handover(config)
    check_bulk_load(config, state, has_begun=has_begun)
    if state is None or not state.position:
        return _capture(config, session, tables)
    return load_beginning(config)


def _capture(
    config: Config, session: Connection, tables: Callable[[], Sequence[TableDefinition]]
) -> Beginning:
    check_database(session, OracleUrl.parse(config.source.url).pdb)
    files.REAL_FILES.make_directory(config.layout.state)
    before = tables()
    beginning = take_beginning(session)
    after = tables()
    save_beginning(config, beginning)
    faults.point("oracle.handover.begun")
    how = switch_log(session)
    position = str(OraclePosition.of_scn(beginning.scn))
    state = Handover(
        phase=HandoverPhase.DONE,
        slot_position=position,
        position=position,
        snapshot_id=position,
        snapshot_text=snapshot_text(session),
        tables=tuple(str(one.name) for one in after),
        definitions=settled_digests(before, after),
    )
    open_count = len(beginning.transactions)
    for number, text in (
        (1, "Stop Replication: nothing is stopped, tables are read as of an SCN"),
        (2, f"Capture Position: {position}, {how}"),
        (
            3,
            f"Start Change Processes: redo is read from {beginning.low_scn} on, where the oldest "
            f"of {open_count} open transactions began"
            if open_count
            else f"Start Change Processes: redo is read from {beginning.low_scn} on",
        ),
        (4, "Resume Replication: nothing was stopped"),
    ):
        state = state.with_step(number, text)
    write_handover(config, state)
    logger.info("handover", phase=state.phase.value, position=position, how=how)
    faults.point("oracle.handover.captured")
    return beginning
