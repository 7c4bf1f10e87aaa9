"""Rows of V$LOGMNR_CONTENTS for a range of SCNs, as dicts; raw, so that they can be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from certify_oracle.server import Server
from penstock.engines.oracle.connect import Connection
from penstock.engines.oracle.source import statements
from penstock.engines.oracle.source.log_choice import Missing, choose_logs
from penstock.engines.oracle.source.views import read_incarnation, read_views
from penstock.host.errors import PrivilegeMissing, StatementFailed

COLUMNS = (
    *("SCN", "START_SCN", "COMMIT_SCN", "TIMESTAMP", "XIDUSN", "XIDSLT", "XIDSQN", "XID"),
    *("PXID", "OPERATION", "OPERATION_CODE", "ROLLBACK", "SEG_OWNER", "SEG_NAME", "TABLE_NAME"),
    *("ROW_ID", "USERNAME", "RS_ID", "SSN", "CSF", "THREAD#", "DATA_OBJ#", "DATA_OBJV#"),
    *("DATA_OBJD#", "STATUS", "INFO", "SRC_CON_NAME", "SQL_REDO"),
)
CONTENTS = f"SELECT {', '.join(COLUMNS)} FROM V$LOGMNR_CONTENTS"
COMMIT = 7
ENDS = (6, COMMIT, 36)  # START, COMMIT, ROLLBACK
SWITCH = "ALTER SYSTEM ARCHIVE LOG CURRENT"
SWITCH_ON_RDS = "BEGIN rdsadmin.rdsadmin_util.switch_logfile; END;"
Row = dict[str, Any]


def read_scn(session: Connection) -> int:
    """Return the current SCN."""
    ((scn,),) = session.execute(statements.CURRENT_SCN)
    return int(scn)


def switch_log(session: Connection) -> None:
    """Switch and archive the logs, on Amazon RDS by its own procedure."""
    try:
        session.run(SWITCH)
    except (PrivilegeMissing, StatementFailed):
        session.run(SWITCH_ON_RDS)


def mine(server: Server, low: int, schema: str) -> list[Row]:
    """Return the rows of a schema from an SCN to now, with the ends of their transactions.

    Args:
        server: The database; its logs are switched first, which binds private strands of redo.
        low: First SCN.
        schema: Owner of the tables.
    """
    with server.open_root() as session:
        switch_log(session)
        rows = read_window(session, low, read_scn(session))
    xids = {row["XID"] for row in rows if row["SEG_OWNER"] == schema}
    return [
        row
        for row in rows
        if row["SEG_OWNER"] == schema or (row["OPERATION_CODE"] in ENDS and row["XID"] in xids)
    ]


def read_window(session: Connection, low: int, high: int) -> list[Row]:
    """Return all rows of a range, up to where all threads have written at most."""
    begin_mining(session, low, high)
    rows = list(_read(session))
    session.run(statements.END)
    return rows


def find_commits(session: Connection, low: int, high: int, schema: str) -> set[bytes]:
    """Return the ids of the transactions of a range that changed a schema and were committed."""
    rows = read_window(session, low, high)
    xids = {row["XID"] for row in rows if row["SEG_OWNER"] == schema}
    return {row["XID"] for row in rows if row["OPERATION_CODE"] == COMMIT} & xids


def find_end(session: Connection, low: int) -> int:
    """Return the end of a window that begins now, as penstock chooses it."""
    return read_views(session, read_incarnation(session).resetlogs, low).end_scn


def begin_mining(session: Connection, low: int, high: int) -> None:
    """Start LogMiner on the logs of a range, as penstock chooses them."""
    views = read_views(session, read_incarnation(session).resetlogs, low)
    files = choose_logs(views, low, min(high, views.end_scn))
    if isinstance(files, Missing):
        raise LookupError(str(files))
    for number, one in enumerate(files):
        session.run(statements.ADD_NEXT if number else statements.ADD_FIRST, name=one.name)
    session.run(statements.START, low=low, high=min(high, views.end_scn))


def _read(session: Connection) -> Iterator[Row]:
    for part in session.rows(CONTENTS):
        for row in part:
            yield dict(zip(COLUMNS, row, strict=True))
