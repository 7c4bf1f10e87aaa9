"""`penstock extract`: one half of a pipeline, from the source into the change log.

Wires configuration, handover, recorder and action to the extractor. The recorder writes CE rows of
`wirekite_progress` in the target database: the segments are the truth and the table a record of
them. The extractor calls it from a thread of its own and retries failures, so that a target that
is away never stops an extraction. Not here: CL and DL rows, which are written in the transactions
of the rows they record.
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
from penstock.control.pipeline.running import check_not_running
from penstock.control.pipeline.servers import base_holder, pipeline_of, source_tables
from penstock.control.tables.new_table_watch import NewTableWatch, settle_new_tables
from penstock.extract.base_rows import LogBaseRows
from penstock.extract.extractor import ExtractOptions, Extractor, Outcome, ProgressRecorder
from penstock.host.errors import ConnectFailed
from penstock.host.files import REAL_FILES, FileMissing
from penstock.log.layout import list_segments, segment_name
from penstock.log.segment import ClosedSegment, open_segment
from penstock.model import PenstockError
from penstock.ports.checks import Side
from penstock.ports.config import Config
from penstock.ports.identity import check_identity, keep_identity, stored_identity
from penstock.ports.positions import positions_of
from penstock.ports.progress import Progress, open_progress
from penstock.ports.source import extraction_of

logger = structlog.get_logger()
RECORDER_NAME = "penstock extract progress"


class CeRecorder(ProgressRecorder):
    """Writer of CE rows: `ProgressRecorder` of the extractor. Used by one thread.

    Each connection first adds missing rows: closed segments on disk whose row a crash or an outage
    left out get it from their footers.
    """

    def __init__(self, config: Config) -> None:
        """Keep the configuration; nothing is connected before the first call."""
        self._config = config
        self._positions = positions_of(config)
        self._extension = config.change_loader.change_file_extension
        self._target: Progress | None = None

    def note_opened(self, number: int, position: int) -> None:
        """Insert a segment's row. position: from which it can be rebuilt.

        May be repeated. Raises the typed errors of the target's connection.
        """
        file = segment_name(number, self._extension)
        mark, origin = self._positions.text(position), self._positions.origin(position)
        self._connect().begin_segment(slot=origin, file=file, mark=mark)

    def note_closed(self, segment: ClosedSegment) -> None:
        """Finish a segment's row: mark is the position after its last COMMIT. As `note_opened`."""
        self._end(self._connect(), segment)

    def _end(self, target: Progress, segment: ClosedSegment) -> None:
        file = segment_name(segment.number, self._extension)
        mark = self._positions.text(segment.end.position)
        origin = self._positions.origin(segment.start.position)
        target.end_segment(slot=origin, file=file, mark=mark)

    def add_missing(self) -> None:
        """Connect, and so add the rows that an earlier process left out."""
        self._connect()

    def close(self) -> None:
        """Close the connection."""
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def _connect(self) -> Progress:
        if self._target is not None and not self._target.is_closed:
            return self._target
        self.close()
        target = open_progress(self._config.target.url, application_name=RECORDER_NAME)
        try:
            target.ensure_tables()
            self._add_missing(target)
        except BaseException:
            target.close()
            raise
        self._target = target
        return target

    def _add_missing(self, target: Progress) -> None:
        finished: dict[str, set[str]] = {}
        for file in list_segments(self._config.layout.log, self._extension):
            try:
                with open_segment(file.path, extension=self._extension) as segment:
                    facts = segment.facts()
            except FileMissing:  # loaded and removed meanwhile
                continue
            origin = self._positions.origin(facts.start.position)
            if origin not in finished:
                finished[origin] = target.finished_segments(origin)
            if file.path.name in finished[origin]:
                continue
            self._end(target, facts)
            logger.info("progress row added", segment=file.path.name)


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
    """Yield the recorder, with missing rows added if the target is up."""
    recorder = CeRecorder(config)
    try:
        recorder.add_missing()
    except ConnectFailed as error:
        logger.warning("target not reachable: progress is recorded later", error=error.message)
    try:
        yield recorder
    finally:
        recorder.close()
