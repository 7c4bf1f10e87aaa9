"""A MySQL or MariaDB source of a configured pipeline: its engine, and where its log begins or goes
on.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.source.beginning import Beginning, find_beginning
from penstock.engines.mysql.source.catalog import open_catalog, survey
from penstock.engines.mysql.source.login import server_id_for
from penstock.engines.mysql.source.resume_state import RESUME_STATE_FILE, ResumeState, physical
from penstock.engines.mysql.source.source_engine import MySQLEngine
from penstock.engines.mysql.source.status import ResumePoint
from penstock.host.state_file import StateFile
from penstock.model import TableName
from penstock.model.patterns import Selection
from penstock.ports.config import Config, NewTables
from penstock.ports.extract_options import ExtractOptions
from penstock.ports.pipeline import Pipeline

APPLICATION_NAME = "penstock extract"


def task_of(config: Config) -> str:
    """What distinguishes this pipeline from every other one, also from its copy elsewhere."""
    return f"{config.pipeline.name}\0{config.directory}"


def server_id_of(config: Config) -> int:
    """Our id as a replica."""
    return config.change_extractor.server_id or server_id_for(task_of(config))


def asked_position(config: Config) -> BinlogPosition | None:
    """Where binlogFile and binlogPosition say that a new log begins; None: at the present.

    Raises PositionInvalid.
    """
    section = config.change_extractor
    if section.binlog_file is None:
        return None
    return BinlogPosition.at(section.binlog_file, section.binlog_position or 4)


def stored_resume_state(config: Config) -> ResumeState | None:
    """The pipeline's resume state in the binlog; None before it began. Raises CheckpointCorrupt."""
    return StateFile(config.layout.state / RESUME_STATE_FILE, ResumeState).load()


def has_begun(pipeline: Pipeline) -> bool:
    """Whether the log has a resume state: then it goes on there, whatever else is asked for."""
    return stored_resume_state(pipeline.config) is not None or bool(pipeline.log_position())


def make_engine(
    pipeline: Pipeline, options: ExtractOptions, handed: Beginning | None = None
) -> MySQLEngine:
    """The engine of `penstock extract`; a new log begins where the configuration says.

    handed: the place of a handover, where there is one. Raises TableNotCapturable, StartUnfit,
    LogPurged, and what connecting does.
    """
    config = pipeline.config
    url, patterns = config.source.url, config.source.tables
    beginning = None
    if not has_begun(pipeline):
        beginning = handed or find_beginning(url, patterns, at=asked_position(config))
        tables = beginning.tables
    else:
        with open_catalog(url, application_name=APPLICATION_NAME) as connection:
            # A table may be gone by now whose last changes are still to be read.
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
    """Where the log would go on; None when there is none."""
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
    """Which new tables are captured from their CREATE on.

    With a target none is: they are asked for, and their rows copied
    (`control/pipeline/new_tables.py`).
    Nobody copies them to consumers, who would miss the rows from before the request.
    """
    return _taken_renamed(config) if not config.has_target else lambda _: False


def _taken_renamed(config: Config) -> Callable[[TableName], bool]:
    """Return which new names of captured tables are captured, at once or when asked for."""
    if config.source.new_tables is not NewTables.ADD:
        return lambda _: False
    return Selection.parse(config.source.tables).takes
