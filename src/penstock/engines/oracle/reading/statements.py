"""Statements by which tables are found, described, cut and read: constants, and functions.

None of them changes anything at the server. The catalogue is that of the session's container, and
has the tables on which the user has rights. Facts of views are those of Oracle's Database
Reference. Not here: the statements of mining (`source`).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.engines.oracle.connect import quote
from penstock.model import TableName

CURRENT_SCN = "SELECT CURRENT_SCN FROM V$DATABASE"

# Tables of users, and the object of each.
TABLES = (
    "SELECT T.OWNER, T.TABLE_NAME, O.OBJECT_ID, T.TEMPORARY, T.IOT_TYPE, T.NESTED, T.SECONDARY, "
    "T.PARTITIONED, T.NUM_ROWS, T.BLOCKS FROM ALL_TABLES T "
    "JOIN ALL_USERS U ON U.USERNAME = T.OWNER "
    "JOIN ALL_OBJECTS O ON O.OWNER = T.OWNER AND O.OBJECT_NAME = T.TABLE_NAME "
    "WHERE U.ORACLE_MAINTAINED = 'N' AND O.OBJECT_TYPE = 'TABLE' "
    "ORDER BY T.OWNER, T.TABLE_NAME"
)
# Tables whose rows are no rows of a table in the log; the third column says why.
SPECIAL_TABLES = (
    "SELECT OWNER, MVIEW_NAME, 'view' FROM ALL_MVIEWS "
    "UNION ALL SELECT OWNER, TABLE_NAME, 'external' FROM ALL_EXTERNAL_TABLES "
    "UNION ALL SELECT OWNER, QUEUE_TABLE, 'queue' FROM ALL_QUEUE_TABLES "
    "UNION ALL SELECT T.OWNER, T.TABLE_NAME, 'object' FROM ALL_OBJECT_TABLES T "
    "JOIN ALL_USERS U ON U.USERNAME = T.OWNER WHERE U.ORACLE_MAINTAINED = 'N'"
)
COLUMNS = (
    "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, DATA_LENGTH, DATA_PRECISION, DATA_SCALE, NULLABLE, "
    "INTERNAL_COLUMN_ID, CHAR_LENGTH, CHAR_USED, HIDDEN_COLUMN, VIRTUAL_COLUMN, USER_GENERATED, "
    "IDENTITY_COLUMN, DATA_DEFAULT FROM ALL_TAB_COLS WHERE OWNER = :owner "
    "ORDER BY TABLE_NAME, INTERNAL_COLUMN_ID"
)
CONSTRAINTS = (
    "SELECT C.TABLE_NAME, C.CONSTRAINT_NAME, C.CONSTRAINT_TYPE, C.STATUS, C.VALIDATED, "
    "C.R_OWNER, C.R_CONSTRAINT_NAME, C.DELETE_RULE, K.COLUMN_NAME FROM ALL_CONSTRAINTS C "
    "JOIN ALL_CONS_COLUMNS K ON K.OWNER = C.OWNER AND K.CONSTRAINT_NAME = C.CONSTRAINT_NAME "
    "WHERE C.OWNER = :owner AND C.CONSTRAINT_TYPE IN ('P', 'U', 'R') "
    "ORDER BY C.TABLE_NAME, C.CONSTRAINT_NAME, K.POSITION"
)
KEY_COLUMNS = (
    "SELECT K.CONSTRAINT_NAME, K.TABLE_NAME, K.COLUMN_NAME FROM ALL_CONS_COLUMNS K "
    "JOIN ALL_CONSTRAINTS C ON C.OWNER = K.OWNER AND C.CONSTRAINT_NAME = K.CONSTRAINT_NAME "
    "WHERE K.OWNER = :owner AND C.CONSTRAINT_TYPE IN ('P', 'U') "
    "ORDER BY K.CONSTRAINT_NAME, K.POSITION"
)
INDEXES = (
    "SELECT I.TABLE_NAME, I.INDEX_NAME, I.UNIQUENESS, C.COLUMN_NAME, C.DESCEND "
    "FROM ALL_INDEXES I JOIN ALL_IND_COLUMNS C "
    "ON C.INDEX_OWNER = I.OWNER AND C.INDEX_NAME = I.INDEX_NAME "
    "WHERE I.TABLE_OWNER = :owner AND I.INDEX_TYPE IN ('NORMAL', 'FUNCTION-BASED NORMAL') "
    "AND I.STATUS <> 'UNUSABLE' "
    "ORDER BY I.TABLE_NAME, I.INDEX_NAME, C.COLUMN_POSITION"
)
# Segments of a table: of itself, or of its partitions. Each has a number of its own in row ids,
# which TRUNCATE and MOVE change.
OBJECTS = (
    "SELECT OBJECT_ID, DATA_OBJECT_ID FROM ALL_OBJECTS "
    "WHERE OWNER = :owner AND OBJECT_NAME = :name AND OBJECT_TYPE LIKE 'TABLE%' "
    "ORDER BY OBJECT_ID"
)
# Row id of the first row that each extent can have, in the order of row ids; type 1 of a row id is
# the extended one.
EXTENTS = (
    "SELECT ROWIDTOCHAR(DBMS_ROWID.ROWID_CREATE(1, O.DATA_OBJECT_ID, E.RELATIVE_FNO, E.BLOCK_ID, "
    "0)), E.BLOCKS FROM DBA_EXTENTS E "
    "JOIN ALL_OBJECTS O ON O.OWNER = E.OWNER AND O.OBJECT_NAME = E.SEGMENT_NAME "
    "AND NVL(O.SUBOBJECT_NAME, ' ') = NVL(E.PARTITION_NAME, ' ') "
    "WHERE E.OWNER = :owner AND E.SEGMENT_NAME = :name AND E.SEGMENT_TYPE LIKE 'TABLE%' "
    "AND O.OBJECT_TYPE LIKE 'TABLE%' AND O.DATA_OBJECT_ID IS NOT NULL "
    "ORDER BY O.DATA_OBJECT_ID, E.RELATIVE_FNO, E.BLOCK_ID"
)
# A table's columns as they are now; the shape of a chunk is compared with them.
SHAPE = (
    "SELECT INTERNAL_COLUMN_ID, COLUMN_NAME, DATA_TYPE, DATA_LENGTH, DATA_PRECISION, DATA_SCALE "
    "FROM ALL_TAB_COLS WHERE OWNER = :owner AND TABLE_NAME = :name ORDER BY INTERNAL_COLUMN_ID"
)
# The incarnation in which SCNs count.
INCARNATION = "SELECT DBID, RESETLOGS_CHANGE# FROM V$DATABASE"


def rows(table: TableName, expressions: Sequence[str], scn: int, where: str = "") -> str:
    """Return the query for rows of a table as of an SCN. where: condition; empty for all rows."""
    condition = f" WHERE {where}" if where else ""
    return f"SELECT {', '.join(expressions)} FROM {quote(*table)} AS OF SCN {scn}{condition}"


def next_key(
    table: TableName, listed: Sequence[str], key: Sequence[str], scn: int, where: str
) -> str:
    """Return the query for the key that lies `:skipped` rows behind a condition's first row.

    Args:
        table: Owner and name.
        listed: Expressions of the key's values.
        key: Quoted names.
        scn: The moment.
        where: Condition; empty for none.
    """
    condition = f" WHERE {where}" if where else ""
    return (
        f"SELECT {', '.join(listed)} FROM {quote(*table)} AS OF SCN {scn}{condition} "
        f"ORDER BY {', '.join(key)} OFFSET :skipped ROWS FETCH NEXT 1 ROWS ONLY"
    )
