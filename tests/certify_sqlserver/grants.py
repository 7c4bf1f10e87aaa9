"""Rights of the user, examined by using each."""

from __future__ import annotations

from certify.rights import Right, try_rights
from certify_sqlserver.server import DATABASE, STATEMENT_TIMEOUT_S, Server
from penstock.engines.sqlserver.connect import connect
from penstock.engines.sqlserver.source import statements

# What a right is for, and statements that need it, in the tool's own database.
USED: tuple[tuple[str, str], ...] = (
    ("CREATE TABLE, at a target", "CREATE TABLE dbo.g_table (id int); DROP TABLE dbo.g_table"),
    ("CREATE SCHEMA, at a target", "EXEC('CREATE SCHEMA g_schema'); DROP SCHEMA g_schema"),
    ("SELECT on sys.dm_cdc_log_scan_sessions (VIEW DATABASE STATE)", statements.LAST_SCAN),
    ("SELECT on sys.dm_server_services (VIEW SERVER STATE)", statements.SERVICES),
    ("SELECT on msdb.dbo.cdc_jobs", statements.JOBS),
    ("SELECT on sys.dm_hadr_database_replica_states", statements.HADR_COMMIT),
    ("sys.fn_dblog", statements.LOG_COMMIT),
    (
        "ALTER DATABASE, for snapshot isolation",
        "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
    ),
)


def examine_rights(server: Server) -> list[Right]:
    """Use each right; return which of them the user has."""

    def run(text: str) -> None:
        with connect(server.url_of(DATABASE), timeout_s=STATEMENT_TIMEOUT_S) as session:
            session.execute(text)

    return try_rights(USED, run)
