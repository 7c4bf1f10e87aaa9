"""Statements by which tables are found, described, cut and read: constants, and functions.

None of them changes anything at the server. Facts of `sys` views are those of the reference,
sections 2, 7 and 10. Not here: the statements of change tables (`source/statements.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.engines.sqlserver.connect import quote
from penstock.model import TableName

SERVER = (
    "SELECT CONVERT(nvarchar(128), SERVERPROPERTY('ProductVersion')) AS version, "
    "CONVERT(int, SERVERPROPERTY('EngineEdition')) AS edition"
)

# Tables of the database, with the rows and pages of heap or clustered index.
TABLES = (
    "SELECT s.name AS schema_name, t.name AS table_name, t.object_id, t.is_memory_optimized, "
    "t.is_external, t.is_filetable, t.temporal_type, t.modify_date, "
    "(SELECT SUM(p.rows) FROM sys.partitions AS p "
    "WHERE p.object_id = t.object_id AND p.index_id IN (0, 1)) AS row_count, "
    "(SELECT SUM(a.used_pages) FROM sys.partitions AS p "
    "JOIN sys.allocation_units AS a ON a.container_id = p.partition_id "
    "WHERE p.object_id = t.object_id AND p.index_id IN (0, 1)) AS page_count "
    "FROM sys.tables AS t JOIN sys.schemas AS s ON s.schema_id = t.schema_id "
    "WHERE t.is_ms_shipped = 0 ORDER BY s.name, t.name"
)

# base_name is NULL for a CLR type of a user; own_name is the alias of an alias type.
COLUMNS = (
    "SELECT c.object_id, c.column_id, c.name, b.name AS base_name, y.name AS own_name, "
    "c.max_length, c.precision, c.scale, c.is_nullable, c.is_identity, c.collation_name, "
    "d.definition AS default_text, cc.definition AS computed_text, cc.is_persisted "
    "FROM sys.columns AS c JOIN sys.tables AS t ON t.object_id = c.object_id "
    "JOIN sys.types AS y ON y.user_type_id = c.user_type_id "
    "LEFT JOIN sys.types AS b ON b.user_type_id = c.system_type_id "
    "LEFT JOIN sys.default_constraints AS d ON d.object_id = c.default_object_id "
    "LEFT JOIN sys.computed_columns AS cc "
    "ON cc.object_id = c.object_id AND cc.column_id = c.column_id "
    "WHERE t.is_ms_shipped = 0 ORDER BY c.object_id, c.column_id"
)

INDEXES = (
    "SELECT i.object_id, i.index_id, i.name, i.type, i.is_primary_key, i.is_unique, "
    "i.is_unique_constraint, i.filter_definition, i.is_disabled, c.name AS column_name, "
    "x.is_descending_key, x.is_included_column "
    "FROM sys.indexes AS i JOIN sys.tables AS t ON t.object_id = i.object_id "
    "JOIN sys.index_columns AS x ON x.object_id = i.object_id AND x.index_id = i.index_id "
    "JOIN sys.columns AS c ON c.object_id = x.object_id AND c.column_id = x.column_id "
    "WHERE t.is_ms_shipped = 0 ORDER BY i.object_id, i.index_id, x.key_ordinal, x.index_column_id"
)

FOREIGN_KEYS = (
    "SELECT f.parent_object_id, f.name, s.name AS schema_name, r.name AS table_name, "
    "pc.name AS column_name, rc.name AS target_name, "
    "f.delete_referential_action_desc, f.update_referential_action_desc "
    "FROM sys.foreign_keys AS f "
    "JOIN sys.foreign_key_columns AS k ON k.constraint_object_id = f.object_id "
    "JOIN sys.tables AS r ON r.object_id = f.referenced_object_id "
    "JOIN sys.schemas AS s ON s.schema_id = r.schema_id "
    "JOIN sys.columns AS pc "
    "ON pc.object_id = k.parent_object_id AND pc.column_id = k.parent_column_id "
    "JOIN sys.columns AS rc "
    "ON rc.object_id = k.referenced_object_id AND rc.column_id = k.referenced_column_id "
    "WHERE f.is_disabled = 0 ORDER BY f.parent_object_id, f.name, k.constraint_column_id"
)

# 1: on; 0, 2 and 3: off, or on its way.
SNAPSHOT_STATE = "SELECT snapshot_isolation_state FROM sys.databases WHERE name = DB_NAME()"
SNAPSHOT_ON = 1
SNAPSHOT_ISOLATION = "SET TRANSACTION ISOLATION LEVEL SNAPSHOT"
COMMITTED_ISOLATION = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

SESSION = "SELECT CONVERT(int, @@SPID) AS number"

# A table's columns as they are now; the shape of a chunk is compared with them.
SHAPE = (
    "SELECT c.column_id, c.name, c.system_type_id, c.max_length, c.precision, c.scale "
    "FROM sys.columns AS c JOIN sys.tables AS t ON t.object_id = c.object_id "
    "JOIN sys.schemas AS s ON s.schema_id = t.schema_id "
    "WHERE s.name = ? AND t.name = ? ORDER BY c.column_id"
)

# A name that a session holds until its transaction ends, so that others see whether it is there.
HOLD_NAME = "EXEC sp_getapplock @Resource = ?, @LockMode = 'Exclusive', @LockOwner = 'Transaction'"
# Below 0 if another session holds the name; otherwise this session has it, until it ends.
TAKE_NAME = (
    "DECLARE @outcome int; EXEC @outcome = sp_getapplock @Resource = ?, @LockMode = 'Shared', "
    "@LockOwner = 'Session', @LockTimeout = 0; SELECT @outcome AS outcome"
)


def rows(table: TableName, expressions: Sequence[str], where: str = "") -> str:
    """Return the query for rows of a table. where: condition; empty for all rows."""
    condition = f" WHERE {where}" if where else ""
    return f"SELECT {', '.join(expressions)} FROM {quote(*table)}{condition}"


def lock(table: TableName) -> str:
    """Return the query that keeps writers off a table until the transaction ends."""
    return f"SELECT TOP (0) 1 AS one FROM {quote(*table)} WITH (TABLOCK, HOLDLOCK)"


def end_session(number: int) -> str:
    """Return the statement that ends a session, which needs ALTER ANY CONNECTION."""
    return f"KILL {number}"


def touch(table: TableName) -> str:
    """Return the query that reads a row of a table, with which a snapshot begins."""
    return f"SELECT TOP (1) 1 AS one FROM {quote(*table)}"


def next_key(table: TableName, listed: Sequence[str], key: Sequence[str], where: str) -> str:
    """Return the query for the key that lies some rows behind a condition's first row.

    Its parameter is the number of rows. listed: expressions of the key's values. key: quoted
    names. where: condition; empty for none.
    """
    condition = f" WHERE {where}" if where else ""
    return (
        f"SELECT {', '.join(listed)} FROM {quote(*table)}{condition} "
        f"ORDER BY {', '.join(key)} OFFSET ? ROWS FETCH NEXT 1 ROWS ONLY"
    )
