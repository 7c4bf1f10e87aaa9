"""`penstock load`: the other half of a pipeline, bulk load and change log into the target.

Wires configuration, Spark, handover and action to the loaders. Not here: copying
(`penstock.load.bulk`), applying changes (`penstock.load.loader`).
"""

from __future__ import annotations

from contextlib import ExitStack

import structlog

from penstock.control.bulk_load import bulk_load, bulk_options, source_tables
from penstock.control.config import Config, Mode
from penstock.control.diagnostics import configure_diagnostics, open_diagnostics
from penstock.control.doctor import examine
from penstock.control.handover import bulk_planner, wait_for_point
from penstock.control.running import LOAD_LOCK, check_not_running, take_lock
from penstock.control.source_planner import SourcePlanner
from penstock.control.stopping import StopRequest, stop_on_signals
from penstock.host.files import REAL_FILES
from penstock.load.bulk import BulkStopped, finish_foreign_keys
from penstock.load.session import PendingSession, Session, SessionOptions

logger = structlog.get_logger()
APPLICATION_NAME = "penstock load"


def session_options(config: Config) -> SessionOptions:
    """How Spark is started for this pipeline; its scratch files are below run/."""
    work = config.change_loader.work_directory
    return SessionOptions(
        master=config.spark.master,
        name=f"penstock {config.pipeline.name}",
        work_directory=(config.path.parent / work) if work else config.layout.run / "spark",
        conf=config.spark.conf,
    )


def load_changes(config: Config, *, verbose: bool = False, checked: bool = False) -> None:
    """Load in bulk, as the mode says, then apply the change log until it is done or told to stop.

    checked: `penstock run` has done the preflight. Raises PreflightFailed or AlreadyRunning with
    nothing changed, and what ends a load.
    """
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        check_not_running(config, "load")
        if not checked:
            examine(config).require()
        stack.enter_context(take_lock(config, config.layout.state, LOAD_LOCK))
        REAL_FILES.make_directory(config.layout.run)
        if not checked:
            file = stack.enter_context(open_diagnostics(config.layout.run / "load.log"))
            configure_diagnostics(verbose=verbose, file=file)
        session = PendingSession(session_options(config))
        stack.callback(session.close)
        try:
            _load(config, session, stop)
        except BulkStopped as stopped:
            if not stop():
                raise
            logger.info("bulk load stopped", message=stopped.message)


def _load(config: Config, session: PendingSession, stop: StopRequest) -> None:
    if config.pipeline.mode is Mode.DATA:
        with SourcePlanner(config) as planner:
            _bulk(config, session.result(), planner, stop)
        return
    if config.pipeline.mode is Mode.DATA_CHANGE:
        if wait_for_point(config, stop=stop) is None:
            return
        with bulk_planner(config) as planner:
            _bulk(config, session.result(), planner, stop)


def _bulk(config: Config, session: Session, planner: SourcePlanner, stop: StopRequest) -> None:
    tables = source_tables(config)
    result = bulk_load(config, session, planner, definitions=tables, stop=stop)
    for note in result.notes:
        logger.warning("bulk load", note=note)
    positions = set(result.positions.values())
    if result.foreign_keys_pending and len(positions) == 1:
        for note in finish_foreign_keys(bulk_options(config), tables):
            logger.warning("foreign keys", note=note)
