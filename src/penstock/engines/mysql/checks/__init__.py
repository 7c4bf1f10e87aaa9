"""Doctor for MySQL and MariaDB: the checks MY001 to MY045 and PK20, as source and as target."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

# The modules add their checks to the lists when they are imported, in this order.
from penstock.engines.mysql.checks import (  # noqa: F401
    resume_checks,
    room_checks,
    settings,
    table_checks,
    target_checks,
)
from penstock.engines.mysql.checks.probe import (
    CHECKS_OF,
    NOT_FOUND_BEFORE,
    SOURCE_CHECKS,
    TARGET_CHECKS,
    MySQLProbe,
    ProbeScope,
)
from penstock.engines.mysql.checks.refusals import (
    APPLY_CHECKS,
    EXTRACT_CHECKS,
    Applying,
    Extracting,
)
from penstock.engines.mysql.connect import Connection, connect, server_errors
from penstock.engines.mysql.log_start import resume_point, server_id_of
from penstock.engines.mysql.source.catalog import Survey, captured_tables, open_catalog, survey
from penstock.model import PenstockError
from penstock.ports.checks import Examined, Looked, Side, SourceSeen, tables_not_read
from penstock.ports.registry import engine_at
from penstock.ports.target import target_name

__all__ = [
    "CHECKS",
    "CHECKS_OF",
    "CHECKS_OF_A_NEW_TABLE",
    "DROP_PROGRESS",
    "NOT_FOUND_BEFORE",
    "look_at_source",
    "look_at_target",
    "server_errors",
]

CHECKS = (*SOURCE_CHECKS, *EXTRACT_CHECKS, *TARGET_CHECKS, *APPLY_CHECKS)
CHECKS_OF_A_NEW_TABLE: tuple[str, ...] = ()
DROP_PROGRESS = "drop database wirekite;"
APPLICATION_NAME = "penstock doctor"


def look_at_source(examined: Examined, looked: Looked) -> SourceSeen:
    """Do the source's checks."""
    config = examined.config
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(
                open_catalog(config.source.url, application_name=APPLICATION_NAME)
            )
        except PenstockError as error:
            looked.away(error, Side.SOURCE, SOURCE_CHECKS, EXTRACT_CHECKS)
            return SourceSeen()
        seen = _survey(examined, connection, looked)
        probe = MySQLProbe(
            side=Side.SOURCE,
            url=config.source.url,
            connection=connection,
            wanted=ProbeScope(
                has_change=config.pipeline.mode.has_change,
                has_data=config.pipeline.mode.has_data,
                server_id=server_id_of(config),
                resume=resume_point(config),
                has_heartbeats=config.change_extractor.heartbeat_seconds > 0,
                wants_whole_rows=config.change_extractor.full_before_images,
                threads=config.data_loader.max_threads,
            ),
            tables=seen.tables if seen is not None else (),
            survey=seen if seen is not None else Survey(tables=()),
        )
        looked.look(SOURCE_CHECKS, probe, typed=server_errors)
        extracting = Extracting(examined.pipeline, connection)
        looked.look(EXTRACT_CHECKS, extracting, typed=server_errors)
        return SourceSeen(tables=seen.tables if seen is not None else None)


def _survey(examined: Examined, connection: Connection, looked: Looked) -> Survey | None:
    """Return the tables that the patterns match; None if that cannot be found out."""
    patterns = examined.config.source.tables
    seen = None
    try:
        with server_errors("reading the source's catalogue"):
            found = survey(connection, patterns)
            tables, new = examined.judged(found.tables)
            seen = replace(found, tables=tables)
            looked.findings.extend(new)
            captured_tables(connection, patterns)
    except PenstockError as error:
        looked.findings.append(tables_not_read(error, Side.SOURCE))
    return seen


def look_at_target(examined: Examined, looked: Looked, source: SourceSeen) -> bool:
    """Do the target's checks; return whether it was reached."""
    config = examined.config
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(
                connect(config.target.url, application_name=APPLICATION_NAME)
            )
        except PenstockError as error:
            looked.away(error, Side.TARGET, TARGET_CHECKS, APPLY_CHECKS)
            return False
        wanted = ProbeScope(
            has_change=config.pipeline.mode.has_change,
            has_data=config.creates_tables,
            threads=max(
                config.data_loader.max_threads if config.pipeline.mode.has_data else 1,
                config.change_loader.max_threads if config.pipeline.mode.has_change else 1,
            ),
            more_sessions=config.change_loader.session_count - 1,
        )
        source_known = source.tables is not None
        origin = None
        if source_known and config.source.engine is engine_at(config.target.url):
            try:
                origin = _source(examined, source, wanted, stack)
            except PenstockError:  # it answered a moment ago
                source_known = False
        probe = MySQLProbe(
            side=Side.TARGET,
            url=config.target.url,
            connection=connection,
            wanted=wanted,
            # The checks look for the tables under the names that they have in the target.
            tables=tuple(
                replace(table, name=target_name(table.name, config.target.map))
                for table in source.tables or ()
            ),
            source=origin,
        )
        looked.look(TARGET_CHECKS, probe, typed=server_errors, source_known=source_known)
        looked.look(
            APPLY_CHECKS,
            Applying(examined, source.tables or ()),
            typed=server_errors,
            source_known=source_known,
        )
        return True


def _source(
    examined: Examined, source: SourceSeen, wanted: ProbeScope, stack: ExitStack
) -> MySQLProbe:
    """Return the source's probe, to compare with."""
    url = examined.config.source.url
    return MySQLProbe(
        side=Side.SOURCE,
        url=url,
        connection=stack.enter_context(open_catalog(url, application_name=APPLICATION_NAME)),
        wanted=wanted,
        tables=source.tables or (),
    )
