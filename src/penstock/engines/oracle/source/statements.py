"""Statements of reading the redo: constants, and functions for those with names in them.

Views are those of Oracle's Database Reference. Mining happens at the root of a container database;
columns of tables are read in the pluggable one. Follows the reference, sections 2 to 5 and F2.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.engines.oracle.connect import literal, quote
from penstock.model import TableName

CURRENT_SCN = "SELECT CURRENT_SCN FROM V$DATABASE"
DATABASE = "SELECT DBID, NAME, RESETLOGS_CHANGE#, RESETLOGS_TIME, FORCE_LOGGING FROM V$DATABASE"
# TIMESTAMP of a row of the redo is in the zone of the database's host.
NOW = "SELECT TO_CHAR(SYSTIMESTAMP, 'YYYY-MM-DD HH24:MI:SS.FF6 TZH:TZM') FROM DUAL"
LOG = (
    "SELECT GROUP#, THREAD#, SEQUENCE#, BYTES, ARCHIVED, STATUS, FIRST_CHANGE#, NEXT_CHANGE# "
    "FROM V$LOG"
)
LOG_FILE = "SELECT GROUP#, STATUS, TYPE, MEMBER FROM V$LOGFILE"
ARCHIVED_LOG = (
    "SELECT NAME, DEST_ID, THREAD#, SEQUENCE#, RESETLOGS_CHANGE#, RESETLOGS_TIME, "
    "FIRST_CHANGE#, NEXT_CHANGE# FROM V$ARCHIVED_LOG "
    "WHERE NAME IS NOT NULL AND ARCHIVED = 'YES' AND DELETED = 'NO' AND STATUS = 'A' "
    "AND STANDBY_DEST = 'NO' AND NEXT_CHANGE# > :low"
)
DESTINATIONS = "SELECT DEST_ID, DEST_NAME, STATUS, TYPE FROM V$ARCHIVE_DEST_STATUS"
THREAD = (
    "SELECT THREAD#, STATUS, ENABLED, ENABLE_CHANGE#, CHECKPOINT_CHANGE#, LAST_REDO_CHANGE# "
    "FROM V$THREAD"
)
# GV$: of all instances of a cluster.
OPEN_TRANSACTIONS = "SELECT XIDUSN, XIDSLOT, XIDSQN, START_SCN FROM GV$TRANSACTION"
UNRECOVERABLE = "SELECT FILE#, UNRECOVERABLE_CHANGE# FROM V$DATAFILE"

ADD_FIRST = "BEGIN DBMS_LOGMNR.ADD_LOGFILE(LOGFILENAME => :name, OPTIONS => DBMS_LOGMNR.NEW); END;"
ADD_NEXT = (
    "BEGIN DBMS_LOGMNR.ADD_LOGFILE(LOGFILENAME => :name, OPTIONS => DBMS_LOGMNR.ADDFILE); END;"
)
# Never COMMITTED_DATA_ONLY: it loses transactions that end in a later window (1b.5).
START = (
    "BEGIN DBMS_LOGMNR.START_LOGMNR(STARTSCN => :low, ENDSCN => :high, "
    "OPTIONS => DBMS_LOGMNR.DICT_FROM_ONLINE_CATALOG + DBMS_LOGMNR.NO_ROWID_IN_STMT "
    "+ DBMS_LOGMNR.NO_SQL_DELIMITER); END;"
)
END = "BEGIN DBMS_LOGMNR.END_LOGMNR; END;"

COLUMNS = (
    "SELECT COLUMN_NAME, DATA_TYPE, DATA_LENGTH, DATA_PRECISION, DATA_SCALE, CHAR_LENGTH, "
    "CHAR_USED FROM ALL_TAB_COLS WHERE OWNER = :owner AND TABLE_NAME = :name "
    "ORDER BY INTERNAL_COLUMN_ID"
)
OBJECTS = (
    "SELECT OBJECT_NAME, OBJECT_ID FROM ALL_OBJECTS "
    "WHERE OWNER = :owner AND OBJECT_TYPE LIKE 'TABLE%'"
)

CHARACTER_SETS = "SELECT PARAMETER, VALUE FROM NLS_DATABASE_PARAMETERS"

LIST_MAX = 1000
"""Items of a list of an IN condition; ORA-01795 refuses more."""

_CONTENTS = (
    "SELECT SCN, XID, PXID, OPERATION_CODE, ROLLBACK, CSF, STATUS, THREAD#, SEG_OWNER, TABLE_NAME, "
    "ROW_ID, RS_ID, DATA_OBJ#, DATA_OBJV#, INFO, TIMESTAMP, SQL_REDO FROM V$LOGMNR_CONTENTS"
)
_CODES = "1, 2, 3, 9, 10, 11, 28, 29, 68, 70, 71, 91, 92, 93, 255"


def contents(
    tables: Sequence[TableName], objects: Sequence[int], *, container: str, has_large: bool
) -> str:
    """Return the query for the rows of a window.

    START, COMMIT, ROLLBACK and gaps are those of the whole database, DDL that of the container,
    changes those of the tables and of objects that the dictionary does not name.

    Args:
        tables: Captured tables.
        objects: DATA_OBJ# of them and their partitions: a renamed table's rows have its new name.
        container: Pluggable database of the tables; empty without one.
        has_large: Whether INTERNAL rows are wanted, which have the row ids of large objects.
    """
    codes = f"0, {_CODES}" if has_large else _CODES
    wanted = ["TABLE_NAME LIKE 'OBJ#%'", "SEG_OWNER = 'UNKNOWN'"]
    for at in range(0, len(tables), LIST_MAX):
        pairs = (
            f"({literal(one.schema)}, {literal(one.name)})" for one in tables[at : at + LIST_MAX]
        )
        wanted.append(f"(SEG_OWNER, TABLE_NAME) IN ({', '.join(pairs)})")
    for at in range(0, len(objects), LIST_MAX):
        wanted.append(f"DATA_OBJ# IN ({', '.join(map(str, objects[at : at + LIST_MAX]))})")
    changes = f"OPERATION_CODE IN ({codes}) AND ({' OR '.join(wanted)})"
    mine = f"OPERATION_CODE = 5 OR ({changes})"
    if container:
        mine = f"SRC_CON_NAME = {literal(container)} AND ({mine})"
    return f"{_CONTENTS} WHERE OPERATION_CODE IN (6, 7, 34, 36) OR STATUS = 1343 OR ({mine})"


def lob_value(table: TableName, column: str) -> str:
    """Return the query for a large object as of an SCN, by its row id."""
    return f"SELECT {quote(column)} FROM {quote(*table)} AS OF SCN :scn WHERE ROWID = :row_id"
