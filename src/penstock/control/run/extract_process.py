"""`penstock extract`: one half of a pipeline, from the source into the change log.

Wires configuration, handover, recorder and action to the extractor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import structlog

from penstock.control.doctor.doctor import examine
from penstock.control.pipeline.actions import ActionWatch, StopRequest, stop_on_signals
from penstock.control.pipeline.consumers import register_configured, register_merge
from penstock.control.pipeline.diagnostics import diagnostics_to
from penstock.control.pipeline.file_edits import keep_first_settings, settle_file_edits
from penstock.control.pipeline.new_tables import without_new
from penstock.control.pipeline.progress import CeRecorder
from penstock.control.pipeline.running import check_not_running
from penstock.control.pipeline.servers import base_holder, pipeline_of, source_tables
from penstock.control.tables.new_table_watch import NewTableWatch, settle_new_tables
from penstock.extract.base_rows import LogBaseRows
from penstock.extract.extractor import ExtractOptions, Extractor, Outcome
from penstock.host.errors import ConnectFailed
from penstock.host.files import REAL_FILES
from penstock.model import PenstockError
from penstock.ports.checks import Side
from penstock.ports.config import Config
from penstock.ports.identity import check_identity, keep_identity, stored_identity
from penstock.ports.source import extraction_of

logger = structlog.get_logger()
APPLICATION_NAME = "penstock extract"


class NothingToExtract(PenstockError):
    """`penstock extract` was run on a pipeline of mode data."""

    code = "CT20"
    retry = "never"


def extract_options(config: Config) -> ExtractOptions:
    """Return the extractor's options from the configuration."""
    section = config.change_extractor
    return ExtractOptions(
        slot=section.replication_slot,
        publication=section.publication,
        flush_interval_s=min(section.flush_interval_seconds, *forced_rotations_s(config)),
        apply_interval_s=config.change_loader.flushed_for_loader_s,
        events_per_flush=section.events_per_flush,
        exit_when_idle=section.exit_when_idle,
        idle_wait_s=section.idle_wait_seconds,
        process_commits=section.process_commits,
        keep_messages=section.keep_messages,
        full_before_images=section.full_before_images,
        server_id=section.server_id,
        heartbeat_s=section.heartbeat_seconds if config.merge is None else 0.0,
        extension=config.change_loader.change_file_extension,
        keeping=None if config.has_target else config.change_loader.keeping,
    )


def forced_rotations_s(config: Config) -> list[float]:
    """Return the ages in seconds at which consumers want changed segments closed.

    They are the values of walForceArchiveTimeout.
    """
    wanted = (one.wal_force_archive_timeout for one in config.consumers.values())
    return [math.inf, *(timeout / 1000 for timeout in wanted if timeout > 0)]


def extract_changes(
    config: Config, *, verbose: bool = False, checked: bool = False, begins_only: bool = False
) -> Outcome:
    """Extract until idle (exitWhenIdle), or until a signal or the action stops it.

    Raises PreflightFailed or AlreadyRunning with nothing changed, NewTable, and the errors that end
    an extraction.

    Args:
        config: The pipeline.
        verbose: Print diagnostics.
        checked: `penstock run` has done the preflight.
        begins_only: End once the log has a position, from which on the next extraction gets every
            change.
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
        given = config
        config = settle_file_edits(config)
        if not checked:
            config = settle_new_tables(config)
            # Only progress is written to the target, and extraction continues without it.
            examine(config, sides=(Side.HOST, Side.SOURCE)).require()
        check_source(config)
        keep_first_settings(given)
        if stop():
            raise SystemExit(0)
        if not checked:
            REAL_FILES.make_directory(config.layout.run)
            stack.enter_context(diagnostics_to(config.layout.run / "extract.log", verbose=verbose))
        register_configured(config)
        register_merge(config)
        options = extract_options(config)
        engine = stack.enter_context(
            extraction_of(config).open_engine(
                pipeline_of(config),
                options,
                tables=lambda: without_new(config, source_tables(config)),
                stop=stop,
            )
        )
        if stop():
            raise SystemExit(0)  # perhaps before publication and slot were created
        recorder = stack.enter_context(_recorder(config))
        gate = ActionWatch(config.target.url, name=f"{APPLICATION_NAME} action", interval_s=0.0)
        stack.callback(gate.close)
        watch = stack.enter_context(NewTableWatch(config, stop.ask))
        outcome = Extractor(
            engine,
            config.directory,
            options=options,
            recorder=recorder,
            gate=gate,
            base=LogBaseRows(base_holder(config, "extract")) if config.has_base else None,
            stop=lambda: begins_only or stop(),
        ).run()
        if watch.error is not None:
            raise watch.error
        return outcome


def check_source(config: Config) -> None:
    """Check which source the directory belongs to, and bind a new one to this source."""
    now = extraction_of(config).identity(config)
    stored = stored_identity(config)
    check_identity(config, stored, now)
    if stored is None:
        keep_identity(config, now)


@contextmanager
def _recorder(config: Config) -> Iterator[CeRecorder]:
    """Yield the recorder, its rows fixed if the target is up; extraction works without it."""
    recorder = CeRecorder(config)
    try:
        recorder.add_missing()
    except ConnectFailed as error:
        logger.warning("target not reachable: progress is recorded later", error=error.message)
    try:
        yield recorder
    finally:
        recorder.close()
