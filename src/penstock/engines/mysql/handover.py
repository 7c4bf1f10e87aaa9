"""Handover of a MySQL or MariaDB source: Wirekite's four steps, in the extract process.

The snapshots that the bulk load reads and the position where its changes begin are one point, which
`MySQLPlanner` takes. It is written into state/handover.json before anything is read or followed, so
if either half is killed, the other continues from there. The sessions stay open in the proxy until
the bulk load has read all rows, and no longer, because an ALTER at the source may wait for what
they have read. In mode pause the source is a replica, whose SQL thread is stopped while the point
is taken. Not here: stopping and starting a replica (`replica.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import structlog

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql import replica as mysql_replica
from penstock.engines.mysql.connect import Connection, run
from penstock.engines.mysql.planner import MySQLPlanner
from penstock.engines.mysql.source.beginning import Beginning, digest_of, gtids_at
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.strategies import Choice, Strategy
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import PrivilegeMissing
from penstock.host.supervised import SupervisedThread
from penstock.model import PenstockError
from penstock.ports.config import Config, HandoverMode, Pipeline
from penstock.ports.handover import (
    Handover,
    HandoverPhase,
    check_bulk_load,
    read_handover,
    write_handover,
)

logger = structlog.get_logger()
POLL_INTERVAL_S = 0.2
APPLICATION_NAME = "penstock handover"


faults.declare("handover.paused", "handover.captured", "handover.resumed")


@contextmanager
def prepare(
    pipeline: Pipeline, *, has_begun: bool, stop: Callable[[], bool]
) -> Iterator[Beginning | None]:
    """Run the handover around an extraction; yield the position where an empty log begins.

    has_begun: whether the log has begun, so that it continues without a position. The exit waits
    for the end of the bulk load, which reads through sessions of this process, unless stop() is
    true. Raises the errors of `replica` and of taking snapshots.
    """
    config = pipeline.config
    state = read_handover(config)
    check_bulk_load(config, state, has_begun=has_begun)
    if has_begun or (state is not None and state.position):
        # The snapshots of an earlier process ended with it: the load takes its own, later ones.
        _resume(config)
        _forget_snapshot(config)
        _note_start(config)
        yield None if has_begun else _beginning_of(config)
        return
    with MySQLPlanner(config, on_choice=lambda choice: _tell(config, choice)) as planner:
        with _at_rest(config, before=state):
            _capture(config, planner)
        beginning = _beginning_of(config)
        _note_start(config)
        with _lend_sessions(pipeline, planner):
            yield beginning
            _wait_for_bulk(pipeline, stop)


@contextmanager
def _at_rest(config: Config, *, before: Handover | None) -> Iterator[None]:
    """Stop the replica for a with block if mode pause requires it.

    before: the handover of a run that was killed. Threads that it stopped are started here;
    threads that others stopped are left alone.
    """
    mode = config.pipeline.handover
    pauses = mode is HandoverMode.PAUSE
    with open_catalog(config.source.url, application_name=APPLICATION_NAME) as connection:
        running = mysql_replica.applying(connection) if pauses else ()
        ours = tuple({*running, *(before.stopped if before is not None else ())})
        tables = captured_tables(connection, config.source.tables)
        names = tuple(str(one.name) for one in tables)
        # Written before the replica is stopped, because the next process has to know.
        state = Handover(mode=mode, tables=names, paused=bool(ours), stopped=ours)
        write_handover(config, state)
        if pauses:
            _stop(config, connection, running)
        try:
            text = "Stop Replication: nothing is stopped, snapshots hold the source's state"
            if pauses:
                text = "Stop Replication: the replica's SQL thread is stopped"
                state = msgspec.structs.replace(state, phase=HandoverPhase.STOPPED)
            write_handover(config, state.with_step(1, text))
            faults.point("handover.paused")
            yield
        finally:
            _resume(config)


def _stop(config: Config, connection: Connection, running: tuple[str, ...]) -> None:
    """Stop these threads; if that is not allowed, record that none was stopped."""
    try:
        mysql_replica.stop(connection, running)
    except mysql_replica.ReplicaNotOurs:
        state = read_handover(config)
        assert state is not None, "written down just now"
        write_handover(config, msgspec.structs.replace(state, paused=False, stopped=()))
        raise
    except BaseException:
        _resume(config)
        raise


def _tell(config: Config, choice: Choice) -> None:
    """Record how the snapshots will be taken, before they are."""
    state = read_handover(config)
    assert state is not None, "the first step is written down before"
    text = state.steps[0].text.partition("; the point: ")[0]
    write_handover(config, state.with_step(1, f"{text}; the point: {choice}"))
    if choice.strategy is Strategy.LOCK_FREE:
        logger.warning("tables are read at one point without a lock", how=str(choice))


def _capture(config: Config, planner: MySQLPlanner) -> None:
    """Take the consistent point and store it."""
    point = planner.fresh_point()
    taken, state = planner.taken, read_handover(config)
    assert taken is not None, "a point was made just now"
    assert state is not None, "the first step was written down"
    gtids = taken.status.gtids
    with open_catalog(config.source.url, application_name=APPLICATION_NAME) as connection:
        if connection.server.is_mariadb and not gtids:
            gtids = gtids_at(config.source.url, connection, taken.status.position)
        _rotate(connection)
    position = str(point.position)
    how = taken.choice.strategy.value
    if taken.settled > taken.status.position:
        how += f"; tables are equal when {taken.settled} is applied"
    state = msgspec.structs.replace(
        state.with_step(2, f"Capture Position: {position}, {how}"),
        phase=HandoverPhase.CAPTURED,
        slot_position=position,
        position=position,
        gtids=gtids,
        settled=str(point.settled or ""),
        snapshot_id=point.snapshot_id,
        snapshot_text=point.snapshot_text,
        keeper_pid=os.getpid(),
        definitions=dict(point.definitions or {}),
    )
    write_handover(config, state)
    logger.info("handover", phase=state.phase.value, position=position)
    faults.point("handover.captured")


def _resume(config: Config) -> None:
    """Start the threads of a replica that penstock has stopped."""
    state = read_handover(config)
    if state is None or not state.stopped:
        return
    with open_catalog(config.source.url, application_name=APPLICATION_NAME) as connection:
        mysql_replica.start(connection, state.stopped)
    write_handover(config, msgspec.structs.replace(state, paused=False, stopped=()))


def _beginning_of(config: Config) -> Beginning:
    """Return where the log begins, according to the written handover.

    A table that differs from its definition at that point was altered since. Only the binlog shows
    how.
    """
    state = read_handover(config)
    assert state is not None, "the point was written down"
    known = state.definitions or {}
    with open_catalog(config.source.url, application_name=APPLICATION_NAME) as connection:
        tables = captured_tables(connection, config.source.tables)
    return Beginning(
        position=BinlogPosition.parse(state.position),
        gtids=state.gtids,
        tables=tuple(tables),
        altered=frozenset(one.name for one in tables if known.get(str(one.name)) != digest_of(one)),
    )


def _note_start(config: Config) -> None:
    """Record steps 3 and 4, once."""
    state = read_handover(config)
    if state is None or state.phase is HandoverPhase.DONE:
        return
    state = state.with_step(
        3, f"Start Change Processes: changes are extracted from {state.position} on"
    ).with_step(4, "Resume Replication: nothing is stopped any more, changes are followed")
    write_handover(config, msgspec.structs.replace(state, phase=HandoverPhase.DONE))
    faults.point("handover.resumed")


def _forget_snapshot(config: Config) -> None:
    state = read_handover(config)
    if state is not None and state.snapshot_id:
        write_handover(config, msgspec.structs.replace(state, snapshot_id="", keeper_pid=0))


@contextmanager
def _lend_sessions(pipeline: Pipeline, planner: MySQLPlanner) -> Iterator[None]:
    """Proxy the snapshots' sessions while the block runs, until the bulk load has read all rows."""
    ended = threading.Event()

    def keep() -> None:
        try:
            while not _is_copied(pipeline):
                if ended.wait(POLL_INTERVAL_S):
                    return
            _forget_snapshot(pipeline.config)
        except PenstockError as error:
            # The wait for the bulk load, at the end of the block, raises it.
            logger.warning("snapshot sessions stay open", error=error.message)
            return
        planner.release()
        logger.info("snapshot sessions closed")

    keeper = SupervisedThread("handover", keep, wait=ended.wait)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
    _forget_snapshot(pipeline.config)


def _is_copied(pipeline: Pipeline) -> bool:
    bulk = pipeline.bulk()
    return bulk.copied or bulk.finished


def _wait_for_bulk(pipeline: Pipeline, stop: Callable[[], bool]) -> None:
    while not stop() and not _is_copied(pipeline):
        REAL_CLOCK.sleep(POLL_INTERVAL_S)


def _rotate(connection: Connection) -> None:
    """Begin a new binlog file if the account may. Wirekite's guide does; nothing depends on it."""
    try:
        run(connection, "flush binary logs", doing="beginning a new binlog file")
    except PrivilegeMissing as error:
        logger.warning("no new binlog file", reason=error.message)
