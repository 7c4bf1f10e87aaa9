"""Doctor for Oracle: the checks OR001 to OR041 and PK20, as source and as target."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

# The modules add their checks to the lists when they are imported, in this order.
from penstock.engines.oracle.checks import (  # noqa: F401
    log_checks,
    table_checks,
    target_checks,
)
from penstock.engines.oracle.checks.probe import (
    CHECKS_OF,
    NOT_FOUND_BEFORE,
    SOURCE_CHECKS,
    TARGET_CHECKS,
    OracleProbe,
)
from penstock.engines.oracle.checks.target_checks import APPLY_CHECKS, Applying
from penstock.engines.oracle.connect import Connection, connect, connect_root
from penstock.engines.oracle.reading.catalog import Survey, captured_tables, survey
from penstock.engines.oracle.server_errors import server_errors
from penstock.engines.oracle.target.progress import DROP_SCHEMA
from penstock.model import PenstockError
from penstock.ports.checks import Examined, Looked, Side, SourceSeen, tables_not_read
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

CHECKS = (*SOURCE_CHECKS, *TARGET_CHECKS, *APPLY_CHECKS)
CHECKS_OF_A_NEW_TABLE: tuple[str, ...] = ("OR003", "OR007", "OR011", "OR014")
DROP_PROGRESS = DROP_SCHEMA


def look_at_source(examined: Examined, looked: Looked) -> SourceSeen:
    """Do the source's checks."""
    config = examined.config
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(connect(config.source.url))
            root = stack.enter_context(connect_root(config.source.url))
        except PenstockError as error:
            looked.away(error, Side.SOURCE, SOURCE_CHECKS)
            return SourceSeen()
        seen = _survey(examined, connection, looked)
        probe = OracleProbe(
            side=Side.SOURCE,
            url=config.source.url,
            connection=connection,
            root=root,
            tables=seen.tables if seen is not None else (),
            survey=seen if seen is not None else Survey(tables=()),
            pipeline=examined.pipeline,
            log_end=examined.log_end(),
        )
        looked.look(SOURCE_CHECKS, probe, typed=server_errors)
        return SourceSeen(tables=seen.tables if seen is not None else None)


def _survey(examined: Examined, connection: Connection, looked: Looked) -> Survey | None:
    """Return the tables that the patterns match; None if that cannot be found out."""
    patterns = examined.config.source.tables
    seen = None
    try:
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
            connection = stack.enter_context(connect(config.target.url))
        except PenstockError as error:
            looked.away(error, Side.TARGET, TARGET_CHECKS, APPLY_CHECKS)
            return False
        source_known = source.tables is not None
        probe = OracleProbe(
            side=Side.TARGET,
            url=config.target.url,
            connection=connection,
            root=connection,
            tables=tuple(
                replace(table, name=target_name(table.name, config.target.map))
                for table in source.tables or ()
            ),
        )
        looked.look(TARGET_CHECKS, probe, typed=server_errors, source_known=source_known)
        looked.look(
            APPLY_CHECKS,
            Applying(examined, source.tables or ()),
            typed=server_errors,
            source_known=source_known,
        )
        return True
