"""Engine of a configured MySQL or MariaDB source, and where its log begins or continues."""

from __future__ import annotations

from collections.abc import Callable

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.source.beginning import Beginning, find_beginning
from penstock.engines.mysql.source.catalog import open_catalog, survey
from penstock.engines.mysql.source.client import server_id_for
from penstock.engines.mysql.source.resume_state import RESUME_STATE_FILE, ResumeState, physical
from penstock.engines.mysql.source.source_engine import MySQLEngine
from penstock.engines.mysql.source.status import ResumePoint
from penstock.host.state_file import StateFile
from penstock.model import TableName
from penstock.model.patterns import Selection
from penstock.ports.config import Config, NewTables, Pipeline
from penstock.ports.source import ExtractOptions

APPLICATION_NAME = "penstock extract"


def task_of(config: Config) -> str:
    """Return a text that no other pipeline has, not even a copy of this one elsewhere."""
    return f"{config.pipeline.name}\0{config.directory}"


def server_id_of(config: Config) -> int:
    """Return our server id as a replica."""
    return config.change_extractor.server_id or server_id_for(task_of(config))


def asked_position(config: Config) -> BinlogPosition | None:
    """Return where a new log begins by binlogFile and binlogPosition; None for the present.

    Raises PositionInvalid.
    """
    section = config.change_extractor
    if section.binlog_file is None:
        return None
    return BinlogPosition.at(section.binlog_file, section.binlog_position or 4)


def stored_resume_state(config: Config) -> ResumeState | None:
    """Return the pipeline's resume state, None before it began. Raises CheckpointCorrupt."""
    return StateFile(config.layout.state / RESUME_STATE_FILE, ResumeState).load()


def has_begun(pipeline: Pipeline) -> bool:
    """Return whether the log has a resume state, where it continues despite all settings."""
    return stored_resume_state(pipeline.config) is not None or bool(pipeline.log_position())


def make_engine(
    pipeline: Pipeline, options: ExtractOptions, handed: Beginning | None = None
) -> MySQLEngine:
    """Return the engine of `penstock extract`; a new log begins where the configuration says.

    handed: the beginning of a handover, if there is one. Raises TableNotCapturable, StartUnfit,
    LogPurged, and the errors of connecting.
    """
    config = pipeline.config
    url, patterns = config.source.url, config.source.tables
    beginning = None
    if not has_begun(pipeline):
        beginning = handed or find_beginning(url, patterns, at=asked_position(config))
        tables = beginning.tables
    else:
        with open_catalog(url, application_name=APPLICATION_NAME) as connection:
            # A table whose last changes are still to be read may have been dropped.
            tables = survey(connection, patterns).tables
    return MySQLEngine(
        url,
        tables=tables,
        options=options,
        beginning=beginning,
        task=task_of(config),
        takes=_taken_at_once(config),
        takes_renamed=_taken_renamed(config),
    )


def resume_point(config: Config) -> ResumePoint | None:
    """Return where the log would continue; None if there is none."""
    resume_state = stored_resume_state(config)
    if resume_state is None:
        return None
    position = physical(resume_state.mark)
    return ResumePoint(
        position=position,
        server=resume_state.server,
        gtids=resume_state.mark.gtids,
        log_identity=resume_state.log_identity if resume_state.log_file == position.file else "",
    )


def _taken_at_once(config: Config) -> Callable[[TableName], bool]:
    """Return which new tables are captured from their CREATE on.

    With a target none is captured that early: new tables are requested, and their rows copied
    (`control/pipeline/new_tables.py`). For consumers no rows are copied, so that they would miss
    the rows from before the request.
    """
    return _taken_renamed(config) if not config.has_target else lambda _: False


def _taken_renamed(config: Config) -> Callable[[TableName], bool]:
    """Return which new names of captured tables are captured, at once or on request."""
    if config.source.new_tables is not NewTables.ADD:
        return lambda _: False
    return Selection.parse(config.source.tables).takes
