"""A MySQL or MariaDB source of a configured pipeline: its engine, and what doctor finds there.

Not here: extracting (`penstock.source`), the checks themselves (`doctor_mysql`).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.control.config import Config
from penstock.control.doctor_mysql import MySQLProbe, Wanted, examine
from penstock.control.findings import Finding, Severity, Side
from penstock.host.connect import ConnectFailed
from penstock.log import checkpoint
from penstock.log.state import load_state
from penstock.model import BinlogPosition, PenstockError
from penstock.source.extract import ExtractOptions
from penstock.source.mysql.beginning import Beginning, find_beginning
from penstock.source.mysql.catalog import Survey, captured_tables, open_catalog, survey
from penstock.source.mysql.engine import MySQLEngine
from penstock.source.mysql.login import server_id_for
from penstock.source.mysql.standing import STANDING_FILE, Standing, physical
from penstock.source.mysql.status import ResumePoint
from penstock.source.postgres.patterns import Selection

APPLICATION_NAME = "penstock extract"


def task_of(config: Config) -> str:
    """What tells this pipeline from every other one, also from its copy elsewhere."""
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


def stored_standing(config: Config) -> Standing | None:
    """Where the pipeline stands in the binlog; None before it began. Raises CheckpointCorrupt."""
    return checkpoint.load(config.layout.state / STANDING_FILE, Standing)


def has_begun(config: Config) -> bool:
    """Whether the log knows where it stands: then it goes on there, whatever else is asked for."""
    log = load_state(config.layout.log)
    return stored_standing(config) is not None or (log is not None and bool(log.end.position))


def make_engine(
    config: Config, options: ExtractOptions, handed: Beginning | None = None
) -> MySQLEngine:
    """The engine of `penstock extract`; a new log begins where the configuration says.

    handed: the place of a handover, where there is one. Raises TableNotCapturable, StartUnfit,
    LogPurged, and what connecting does.
    """
    url, patterns = config.source.url, config.source.tables
    beginning = None
    if not has_begun(config):
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
        takes=Selection.parse(patterns).takes,
    )


def resume_point(config: Config) -> ResumePoint | None:
    """Where the log would go on; None when there is none."""
    standing = stored_standing(config)
    if standing is None:
        return None
    position = physical(standing.mark)
    return ResumePoint(
        position=position,
        server=standing.server,
        gtids=standing.mark.gtids,
        log_identity=standing.log_identity if standing.log_file == position.file else "",
    )


def source_findings(config: Config) -> Iterator[Finding]:
    """What doctor finds at the source; a server that can not be reached is one finding."""
    try:
        with open_catalog(config.source.url, application_name="penstock doctor") as connection:
            seen, findings = Survey(tables=()), []
            try:
                seen = survey(connection, config.source.tables)
                captured_tables(connection, config.source.tables)
            except PenstockError as error:
                findings.append(_finding(error, "the tables to replicate can not be told"))
            wanted = Wanted(
                has_change=config.pipeline.mode.has_change,
                has_data=config.pipeline.mode.has_data,
                server_id=server_id_of(config),
                resume=resume_point(config),
            )
            probe = MySQLProbe(
                side=Side.SOURCE,
                url=config.source.url,
                connection=connection,
                wanted=wanted,
                tables=seen.tables,
                survey=seen,
            )
            yield from findings
            yield from examine(probe)
    except ConnectFailed as error:
        yield _finding(error, "nothing can be asked of this server or done with it")


def _finding(error: PenstockError, why: str) -> Finding:
    return Finding(
        code=error.code,
        severity=Severity.ERROR,
        side=Side.SOURCE,
        what=f"source: {error.message}",
        why=why,
        command=error.hint,
    )
