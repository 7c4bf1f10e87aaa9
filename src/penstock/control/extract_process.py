"""`penstock extract`: one half of a pipeline, from the source into the change log.

Wires configuration, handover, recorder and action to the extractor. Not here: the extraction
(`penstock.extract.extractor`), the handover's steps (`handover.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import structlog

from penstock.control.actions import ActionWatch
from penstock.control.diagnostics import diagnostics_to
from penstock.control.doctor import examine
from penstock.control.ends import source_tables
from penstock.control.handover import prepared, tell_blockers
from penstock.control.identity import (
    SourceIdentity,
    check_identity,
    keep_identity,
    mysql_identity,
    read_identity,
    stored_identity,
)
from penstock.control.new_tables import NewTableWatch, settle_new_tables, without_new
from penstock.control.progress import CeRecorder
from penstock.control.running import check_not_running
from penstock.control.stopping import StopRequest, stop_on_signals
from penstock.engines.mysql import handover as mysql_handover
from penstock.engines.mysql.resume_state import has_begun, make_engine
from penstock.engines.mysql.source.beginning import Beginning
from penstock.engines.mysql.source.catalog import open_catalog
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source import slot as slots
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.engine import PostgresEngine
from penstock.engines.postgres.source.slot_owner import check_adoptable, disclaim_slot
from penstock.engines.postgres.standby import check_publication_there
from penstock.extract.extractor import ExtractOptions, Extractor, Outcome
from penstock.host.errors import ConnectFailed
from penstock.host.files import REAL_FILES
from penstock.log.state import load_state
from penstock.model import Lsn, PenstockError, TableDefinition
from penstock.model.patterns import Selection
from penstock.ports.checks import Side
from penstock.ports.config import Config, Mode
from penstock.ports.source import SourceEngine

logger = structlog.get_logger()
APPLICATION_NAME = "penstock extract"


class NothingToExtract(PenstockError):
    """`penstock extract` on a pipeline of mode data."""

    code = "CT20"
    retry = "never"


def extract_options(config: Config) -> ExtractOptions:
    """The extractor's options from the configuration."""
    section = config.change_extractor
    return ExtractOptions(
        slot=section.replication_slot,
        publication=section.publication,
        flush_interval_s=section.flush_interval_seconds,
        events_per_flush=section.events_per_flush,
        exit_when_idle=section.exit_when_idle,
        idle_wait_s=section.idle_wait_seconds,
        process_commits=section.process_commits,
        keep_messages=section.keep_messages,
        server_id=section.server_id,
        extension=config.change_loader.change_file_extension,
    )


def extract_changes(config: Config, *, verbose: bool = False, checked: bool = False) -> Outcome:
    """Extract until idle (exitWhenIdle) or told to stop by signal or action.

    checked: `penstock run` has done the preflight. Raises PreflightFailed or AlreadyRunning with
    nothing changed, NewTable, and what ends an extraction.
    """
    if not config.pipeline.mode.has_change:
        raise NothingToExtract(
            "this pipeline is of mode data: there are no changes to extract",
            hint='Set mode = "data+change" or "change", or run `penstock load`.',
        )
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        check_not_running(config, "extract")
        if not checked:
            config = settle_new_tables(config)
            # Only progress is written to the target, and extraction goes on without it.
            examine(config, sides=(Side.HOST, Side.SOURCE)).require()
        check_source(config)
        if stop():
            raise SystemExit(0)
        if not checked:
            REAL_FILES.make_directory(config.layout.run)
            stack.enter_context(diagnostics_to(config.layout.run / "extract.log", verbose=verbose))
        options = extract_options(config)
        engine = _engine(config, options, stop, stack)
        if stop():
            raise SystemExit(0)  # perhaps before publication and slot were made
        recorder = stack.enter_context(_recorder(config))
        gate = ActionWatch(config.target.url, name=f"{APPLICATION_NAME} action", interval_s=0.0)
        stack.callback(gate.close)
        watch = stack.enter_context(NewTableWatch(config, stop.ask))
        outcome = Extractor(
            engine, config.directory, options=options, recorder=recorder, gate=gate, stop=stop
        ).run()
        if watch.error is not None:
            raise watch.error
        return outcome


def _engine(
    config: Config, options: ExtractOptions, stop: StopRequest, stack: ExitStack
) -> SourceEngine:
    """The engine that the source's URL names, with what it needs at the source made."""
    if config.source.is_mysql:
        handed: Beginning | None = None
        if config.pipeline.mode is Mode.DATA_CHANGE:
            handed = stack.enter_context(
                mysql_handover.prepared(config, has_begun=has_begun(config), stop=stop)
            )
        return make_engine(config, options, handed)
    tables = without_new(config, source_tables(config))
    start_position = stack.enter_context(_begun(config, tables, stop))
    return PostgresEngine(
        config.source.url,
        tables=tables,
        options=options,
        start_position=start_position,
        takes=Selection.parse(config.source.tables).takes,
        pipeline=config.pipeline.name,
    )


def check_source(config: Config) -> None:
    """Check whose the directory is, and tie a new one to this source."""
    now = _identity(config)
    stored = stored_identity(config)
    check_identity(config, stored, now)
    if stored is None:
        keep_identity(config, now)


def _identity(config: Config) -> SourceIdentity:
    if config.source.is_mysql:
        with open_catalog(config.source.url, application_name=APPLICATION_NAME) as source:
            return mysql_identity(config, str(source.server.flavour))
    with connect(config.source.url, application_name=APPLICATION_NAME) as connection:
        return read_identity(connection, config)


@contextmanager
def _recorder(config: Config) -> Iterator[CeRecorder]:
    """The recorder, its rows mended if the target is there; extraction does without it."""
    recorder = CeRecorder(config)
    try:
        recorder.mend()
    except ConnectFailed as error:
        logger.warning("target not reachable: progress is recorded later", error=error.message)
    try:
        yield recorder
    finally:
        recorder.close()


@contextmanager
def _begun(config: Config, tables: list[TableDefinition], stop: StopRequest) -> Iterator[int]:
    """Publication, slot and, in data+change, the handover's snapshot; where an empty log begins.

    The snapshot is kept as long as the with block is open and the bulk load needs it.
    """
    if config.pipeline.mode is Mode.DATA_CHANGE:
        with prepared(config, tables, stop=stop) as position:
            yield position
        return
    yield ensure_slot(config, tables)


def ensure_slot(config: Config, tables: list[TableDefinition]) -> int:
    """Mode change: the slot as it stands, or a new one at the present position.

    Returns where the log begins when it is empty: the new slot's position, 0 for one that was
    there. A slot that a log with content has lost is never made again: the extractor refuses.
    Raises SlotOfAnother or SlotInUse for a slot that an empty log cannot begin at.
    """
    section = config.change_extractor
    with open_replication(config.source.url, application_name=APPLICATION_NAME) as replication:
        state = slots.read_slot(replication, section.replication_slot)
        log = load_state(config.layout.log)
        if log is not None and log.end.position:
            return 0
        with connect(config.source.url, application_name=APPLICATION_NAME) as connection:
            if state is not None:
                check_adoptable(connection, section.publication, section.replication_slot)
                return 0
            disclaim_slot(connection, section.publication, section.replication_slot)
            names = [table.name for table in tables]
            check_publication_there(connection, section.publication, names)
            slots.ensure_publication(connection, section.publication, names)
        created = slots.create_slot(
            replication,
            config.source.url,
            section.replication_slot,
            snapshot=False,
            on_blocked=tell_blockers,
        )
    logger.info("slot made at the present position", position=str(Lsn(created.position)))
    return created.position
