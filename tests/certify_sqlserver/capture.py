"""Change data capture of the tool's database: enabled, with a table whose rows show its progress."""

from __future__ import annotations

from certify_sqlserver.case import FENCE
from certify_sqlserver.server import DATABASE, STATEMENT_TIMEOUT_S, Server
from penstock.engines.sqlserver.connect import Connection, connect, literal
from penstock.engines.sqlserver.source.instances import enable_text
from penstock.host.errors import PrivilegeMissing
from penstock.model import PenstockError

ENABLE = "EXEC sys.sp_cdc_enable_db"
ENABLE_RDS = f"EXEC msdb.dbo.rds_cdc_enable_db {literal(DATABASE)}"
POLL_S = 1  # seconds between two scans of the log


def enable_database(session: Connection, database: str) -> None:
    """Enable capture of a database, on Amazon RDS by its own procedure."""
    try:
        session.run(ENABLE)
    except PrivilegeMissing:
        session.run(f"EXEC msdb.dbo.rds_cdc_enable_db {literal(database)}")


def begin_capture(server: Server) -> str:
    """Enable capture with the table FENCE; return why that was not possible, or an empty text."""
    with connect(server.url_of(DATABASE), timeout_s=STATEMENT_TIMEOUT_S) as session:
        try:
            enable_database(session, DATABASE)
        except PenstockError as error:
            return f"change data capture cannot be enabled: {error.message}"
        session.run(f"CREATE TABLE dbo.{FENCE} (id int IDENTITY(1, 1) NOT NULL PRIMARY KEY)")
        try:
            session.run(enable_text("dbo", FENCE))
        except PenstockError as error:
            return f"no table can be captured: {error.message}"
        hasten(session)
    return server.agent_problem()


def hasten(session: Connection) -> None:
    """Let the capture job scan the log each second; leave it as it is where that is refused."""
    try:
        session.run(
            f"EXEC sys.sp_cdc_change_job @job_type = N'capture', @pollinginterval = {POLL_S}"
        )
        session.run("EXEC sys.sp_cdc_stop_job @job_type = N'capture'")
    except PenstockError:
        return
    for _ in range(20):
        try:
            session.run("EXEC sys.sp_cdc_start_job @job_type = N'capture'")
        except PenstockError:
            session.run("WAITFOR DELAY '00:00:00.500'")
        else:
            return
