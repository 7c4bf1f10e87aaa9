"""The handover of a MySQL or MariaDB source: document 000's four steps, in the extract process.

The snapshots that the bulk load reads and the place where its changes begin are one point, which
`MySQLPlanner` takes; it is written into state/handover.json before anything is read or followed,
so that whoever is killed, the other half goes on from there. The sessions stay lent until the bulk
load has read all rows, and no longer: an ALTER at the source may wait for what they have read. In
mode pause the source is a replica: its SQL thread stands still while the point is taken. Not here:
PostgreSQL (`handover.py`), the bulk load (`bulk_load.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import structlog

from penstock.control.config import Config, HandoverMode
from penstock.control.handover_state import Handover, Phase, read_handover, write_handover
from penstock.control.mysql_planner import MySQLPlanner
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.host.connect import PrivilegeMissing
from penstock.host.mysql.connect import Connection, rows, run
from penstock.load.ledger import read_ledger
from penstock.model import BinlogPosition, PenstockError
from penstock.source.mysql.beginning import Beginning
from penstock.source.mysql.catalog import captured_tables, open_catalog

logger = structlog.get_logger()
POLL_INTERVAL_S = 0.2
APPLICATION_NAME = "penstock handover"


class NotAReplica(PenstockError):
    """Mode pause needs a source that replicates from another server."""

    code = "CT36"


@contextmanager
def prepared(
    config: Config, *, has_begun: bool, stop: Callable[[], bool]
) -> Iterator[Beginning | None]:
    """Make the handover around an extraction; gives the place where an empty log begins.

    has_begun: the log has, so it goes on by itself. The way out waits until the bulk load is done,
    unless stop() says so: its sessions are ours. Raises NotAReplica, and what taking snapshots
    does.
    """
    state = read_handover(config)
    if has_begun or (state is not None and state.position):
        # The snapshots of an earlier process are gone with it: the load takes its own, later ones.
        assert state is not None, "a log that has begun in this mode has a handover"
        _forget_snapshot(config)
        _started(config)
        yield None if has_begun else _beginning_of(config, state)
        return
    with MySQLPlanner(config) as planner:
        state = _captured(config, planner)
        beginning = _beginning_of(config, state)
        _started(config)
        with _lent(config, planner):
            yield beginning
            _wait_for_bulk(config, stop)


def _captured(config: Config, planner: MySQLPlanner) -> Handover:
    """Take the point and write it down."""
    mode = config.pipeline.handover
    state = Handover(mode=mode, slot="", tables=())
    with open_catalog(config.source.url, application_name=APPLICATION_NAME) as connection:
        tables = captured_tables(connection, config.source.tables)
        state = msgspec.structs.replace(state, tables=tuple(str(one.name) for one in tables))
        paused = mode is HandoverMode.PAUSE
        if paused:
            _pause(connection)
            state = state.with_step(1, "Stop Replication: the replica's SQL thread is stopped")
        else:
            state = state.with_step(
                1, "Stop Replication: nothing is stopped, snapshots hold the source's state"
            )
        try:
            point = planner.fresh_point()
            _rotate(connection)
        finally:
            if paused:
                _resume(connection)
    taken = planner.taken
    assert taken is not None, "a point was made just now"
    position = str(point.position)
    how = taken.choice.recipe.value
    state = msgspec.structs.replace(
        state.with_step(2, f"Capture Position: {position}, {how}"),
        phase=Phase.CAPTURED,
        slot_position=position,
        position=position,
        gtids=taken.status.gtids,
        snapshot_id=point.snapshot_id,
        snapshot_text=point.snapshot_text,
        keeper_pid=os.getpid(),
    )
    write_handover(config, state)
    logger.info("handover", phase=state.phase.value, position=position)
    faults.point("handover.captured")
    return state


def _beginning_of(config: Config, state: Handover) -> Beginning:
    """Where the log begins, by what is written down."""
    with open_catalog(config.source.url, application_name=APPLICATION_NAME) as connection:
        tables = captured_tables(connection, config.source.tables)
    return Beginning(
        position=BinlogPosition.parse(state.position), gtids=state.gtids, tables=tuple(tables)
    )


def _started(config: Config) -> None:
    """Steps 3 and 4, once."""
    state = read_handover(config)
    if state is None or state.phase is Phase.DONE:
        return
    state = state.with_step(
        3, f"Start Change Processes: changes are extracted from {state.position} on"
    ).with_step(4, "Resume Replication: nothing is stopped any more, changes are followed")
    write_handover(config, msgspec.structs.replace(state, phase=Phase.DONE))
    faults.point("handover.resumed")


def _forget_snapshot(config: Config) -> None:
    state = read_handover(config)
    if state is not None and state.snapshot_id:
        write_handover(config, msgspec.structs.replace(state, snapshot_id="", keeper_pid=0))


@contextmanager
def _lent(config: Config, planner: MySQLPlanner) -> Iterator[None]:
    """Lend the snapshots beside what runs in the block: until the bulk load has read all rows."""
    ended = threading.Event()

    def keep() -> None:
        try:
            while not _is_copied(config):
                if ended.wait(POLL_INTERVAL_S):
                    return
            _forget_snapshot(config)
        except PenstockError as error:
            # Whoever waits for the bulk load, at the end of the block, raises it.
            logger.warning("snapshots stay lent", error=error.message)
            return
        planner.release()
        logger.info("snapshots given back")

    keeper = threading.Thread(target=keep, name="handover", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
    _forget_snapshot(config)


def _is_copied(config: Config) -> bool:
    ledger = read_ledger(config.layout.state)
    return ledger.copied or ledger.finished


def _wait_for_bulk(config: Config, stop: Callable[[], bool]) -> None:
    while not stop() and not _is_copied(config):
        REAL_CLOCK.sleep(POLL_INTERVAL_S)


def _rotate(connection: Connection) -> None:
    """Begin a new binlog file, as document 000 asks for; it is of use, and not needed."""
    try:
        run(connection, "flush binary logs", doing="beginning a new binlog file")
    except PrivilegeMissing as error:
        logger.warning("no new binlog file", reason=error.message)


def _pause(connection: Connection) -> None:
    found = rows(connection, f"show {_replica(connection)} status", doing="looking at replication")
    if not found:
        raise NotAReplica(
            "mode pause needs a source that is a replica, and this one replicates from nobody",
            hint='Set handover = "snapshot", which needs no pause.',
        )
    run(connection, f"stop {_replica(connection)} sql_thread", doing="stopping replication")


def _resume(connection: Connection) -> None:
    run(connection, f"start {_replica(connection)} sql_thread", doing="resuming replication")


def _replica(connection: Connection) -> str:
    server = connection.server
    return "replica" if server.mysql(8, 0, 22) or server.mariadb(10, 5, 1) else "slave"
