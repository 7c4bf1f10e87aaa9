"""Rights of the user, examined by using each."""

from __future__ import annotations

from certify.rights import Right, try_rights
from certify_oracle.mining import SWITCH
from certify_oracle.server import MARK, SCHEMA, Server
from penstock.engines.oracle.source import statements

# What a right is for, and a statement that needs it: at the place that mines, and at the tables.
AT_THE_ROOT: tuple[tuple[str, str], ...] = (
    ("SELECT on V_$DATABASE", statements.CURRENT_SCN),
    ("SELECT on V_$LOG", statements.LOG),
    ("SELECT on V_$LOGFILE", statements.LOG_FILE),
    ("SELECT on V_$ARCHIVE_DEST_STATUS", statements.DESTINATIONS),
    ("SELECT on V_$THREAD", statements.THREAD),
    ("SELECT on GV_$TRANSACTION", statements.OPEN_TRANSACTIONS),
    ("SELECT on V_$DATAFILE", statements.UNRECOVERABLE),
    ("ALTER SYSTEM, to switch logs", SWITCH),
)
AT_THE_TABLES: tuple[tuple[str, str], ...] = (
    ("FLASHBACK ANY TABLE", f"SELECT COUNT(*) FROM {SCHEMA}.{MARK} AS OF SCN {{scn}}"),
    ("SELECT on DBA_EXTENTS", "SELECT COUNT(*) FROM DBA_EXTENTS WHERE OWNER = 'NONE'"),
    ("CREATE ANY TABLE, at a target", f"CREATE TABLE {SCHEMA}.g_table (id NUMBER)"),
    ("DROP ANY TABLE, at a target", f"DROP TABLE {SCHEMA}.g_table PURGE"),
)


def examine_rights(server: Server) -> list[Right]:
    """Use each right; return which of them the user has."""
    with server.open_root() as root:
        found = try_rights(AT_THE_ROOT, root.execute)
        ((scn,),) = root.execute(statements.CURRENT_SCN)
    with server.open() as session:
        texts = [(name, text.format(scn=scn)) for name, text in AT_THE_TABLES]
        found += try_rights(texts, session.execute)
    return found
