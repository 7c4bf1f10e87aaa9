"""Change data capture of the tool's database, with a table whose rows show its progress."""

from __future__ import annotations

from certify_sqlserver.case import FENCE
from certify_sqlserver.server import DATABASE, STATEMENT_TIMEOUT_S, Server
from harness.servers.sqlserver_real import hasten
from penstock.engines.sqlserver.connect import Connection, connect, literal
from penstock.engines.sqlserver.source.instances import enable_text
from penstock.host.errors import PrivilegeMissing
from penstock.model import PenstockError

ENABLE = "EXEC sys.sp_cdc_enable_db"


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
