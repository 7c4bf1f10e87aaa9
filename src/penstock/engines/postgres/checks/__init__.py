"""Doctor's checks of PostgreSQL servers: what a source must be like, and what a target must."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import psycopg

# The modules put their checks into the lists when they are imported, in this order.
from penstock.engines.postgres.checks import (  # noqa: F401
    identity,
    server,
    slot_checks,
    table_checks,
    target_checks,
)
from penstock.engines.postgres.checks.probe import (
    CHECKS_OF,
    NOT_FOUND_BEFORE,
    SOURCE_CHECKS,
    TARGET_CHECKS,
    Probe,
)
from penstock.engines.postgres.connect import EXACT_TEXT_SETTINGS, connect, server_errors
from penstock.engines.postgres.source.catalog import Survey, open_catalog, survey
from penstock.engines.postgres.target.shaped import postgres_definition
from penstock.model import PenstockError, TableDefinition
from penstock.ports.checks import Examined, Looked, Side, SourceSeen, tables_not_read

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

CHECKS = (*SOURCE_CHECKS, *TARGET_CHECKS)
CHECKS_OF_A_NEW_TABLE = ("PK06", "PG12", "PG15", "PG21", "PG22")
DROP_PROGRESS = "drop schema wirekite cascade;"
APPLICATION_NAME = "penstock doctor"


def look_at_source(examined: Examined, looked: Looked) -> SourceSeen:
    """Do the source's checks."""
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(
                open_catalog(examined.config.source.url, application_name=APPLICATION_NAME)
            )
            system_id = _system_id(connection)
        except PenstockError as error:
            looked.away(error, Side.SOURCE, SOURCE_CHECKS)
            return SourceSeen()
        seen = _survey(examined, connection, looked)
        probe = Probe(
            examined=examined,
            connection=connection,
            version=connection.info.server_version,
            tables=seen.tables if seen is not None else (),
            survey=seen if seen is not None else Survey(tables=()),
            database=(system_id, connection.info.dbname),
        )
        looked.look(SOURCE_CHECKS, probe, typed=server_errors)
        tables = seen.tables if seen is not None else None
        return SourceSeen(tables=tables, database=probe.database)


def _system_id(connection: psycopg.Connection) -> str:
    with server_errors("asking the source who it is"):
        row = connection.execute(
            "select system_identifier::text from pg_control_system()"
        ).fetchone()
    if row is None:
        raise RuntimeError("pg_control_system() gave no row")
    return str(row[0])


def _survey(examined: Examined, connection: psycopg.Connection, looked: Looked) -> Survey | None:
    """Return the tables that the patterns match; None where that cannot be found out."""
    try:
        with server_errors("reading the source's catalogue"):
            seen = survey(connection, examined.config.source.tables, dropped=examined.followed())
        tables, new = examined.judged(seen.tables)
    except PenstockError as error:
        looked.findings.append(tables_not_read(error, Side.SOURCE))
        return None
    looked.findings.extend(new)
    return replace(seen, tables=tables)


def look_at_target(examined: Examined, looked: Looked, source: SourceSeen) -> bool:
    """Do the target's checks; return whether it was reached."""
    try:
        connection = connect(
            examined.config.target.url,
            application_name=APPLICATION_NAME,
            options=EXACT_TEXT_SETTINGS,
        )
    except PenstockError as error:
        looked.away(error, Side.TARGET, TARGET_CHECKS)
        return False
    with connection:
        probe = Probe(
            examined=examined,
            connection=connection,
            version=connection.info.server_version,
            tables=_as_we_have_them(examined, source.tables or ()),
            database=source.database,
        )
        looked.look(
            TARGET_CHECKS, probe, typed=server_errors, source_known=source.tables is not None
        )
    return True


def _as_we_have_them(
    examined: Examined, tables: Sequence[TableDefinition]
) -> tuple[TableDefinition, ...]:
    """Return the tables as the target would have them, without tables that it cannot have."""
    servers = examined.servers() if tables else None
    if servers is None:
        return tuple(tables)
    return tuple(
        postgres_definition(one, servers, examined.config.target.map)
        for one in tables
        if not any(mapping.refused or mapping.missing for mapping in servers.mappings(one).values())
    )
