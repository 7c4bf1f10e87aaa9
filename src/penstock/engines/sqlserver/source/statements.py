"""Statements by which the source's change tables are read: every text that is sent.

Follows the reference's sections 3 to 6. All are single statements that commit by themselves, so
that on a readable secondary each sees what was replayed until then (S5). Change tables are read
directly, not by functions, which do not return __$command_id; the checks of the functions are made
by `loss.py`. Parameters are log sequence numbers, as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.codec.sqlserver.columns import SourceColumn, select_expression
from penstock.engines.sqlserver.connect import quote

# The newest captured commit, the clock in UTC, and the zone in minutes east of UTC.
NEWEST = (
    "SELECT sys.fn_cdc_get_max_lsn() AS max_lsn, SYSUTCDATETIME() AS now_utc, "
    "DATEPART(tz, SYSDATETIMEOFFSET()) AS zone_minutes"
)

# Transactions after a commit: LSN, local time of the end, id. Rows with tran_id 0 only move the
# clock. The first parameter is the largest number of rows.
TRANSACTIONS = (
    "SELECT TOP (?) start_lsn, tran_end_time, tran_id FROM cdc.lsn_time_mapping "
    "WHERE start_lsn > CAST(? AS binary(10)) AND start_lsn <= CAST(? AS binary(10)) "
    "AND tran_id <> 0x00 ORDER BY start_lsn"
)

# All capture instances, with what shows that one was lost, created again or altered.
INSTANCES = (
    "SELECT ct.object_id, ct.source_object_id, ct.capture_instance, ct.create_date, ct.start_lsn, "
    "sys.fn_cdc_get_min_lsn(ct.capture_instance) AS min_lsn, s.name AS schema_name, "
    "t.name AS table_name, (SELECT TOP (1) h.ddl_lsn FROM cdc.ddl_history AS h "
    "WHERE h.object_id = ct.object_id ORDER BY h.ddl_lsn DESC) AS ddl_lsn "
    "FROM cdc.change_tables AS ct "
    "LEFT JOIN sys.tables AS t ON t.object_id = ct.source_object_id "
    "LEFT JOIN sys.schemas AS s ON s.schema_id = t.schema_id "
    "ORDER BY ct.source_object_id, ct.start_lsn, ct.create_date, ct.object_id"
)

# Columns of all change tables as they are now; source_name is NULL for a column that was dropped.
COLUMNS = (
    "SELECT cc.object_id, cc.column_ordinal, cc.column_name, cc.column_id, cc.is_computed, "
    "ty.name AS type_name, c.max_length, c.precision, c.scale, sc.name AS source_name "
    "FROM cdc.captured_columns AS cc "
    "JOIN cdc.change_tables AS ct ON ct.object_id = cc.object_id "
    "JOIN sys.columns AS c ON c.object_id = cc.object_id AND c.name = cc.column_name "
    "JOIN sys.types AS ty ON ty.user_type_id = c.user_type_id "
    "LEFT JOIN sys.columns AS sc "
    "ON sc.object_id = ct.source_object_id AND sc.column_id = cc.column_id "
    "ORDER BY cc.object_id, cc.column_ordinal"
)

# Change tables of old builds have no __$command_id.
WITH_COMMAND = (
    "SELECT c.object_id FROM sys.columns AS c "
    "JOIN cdc.change_tables AS ct ON ct.object_id = c.object_id WHERE c.name = N'__$command_id'"
)

# Statements that altered a captured table. Rows of instances that are gone are left out (S8).
DDL_HISTORY = (
    "SELECT h.source_object_id, h.object_id, h.required_column_update, h.ddl_command, h.ddl_lsn "
    "FROM cdc.ddl_history AS h JOIN cdc.change_tables AS ct ON ct.object_id = h.object_id "
    "WHERE h.ddl_lsn > CAST(? AS binary(10)) AND h.ddl_lsn <= CAST(? AS binary(10)) "
    "ORDER BY h.ddl_lsn"
)

TABLE_EXISTS = "SELECT COUNT(*) FROM sys.tables WHERE object_id = ?"

# Identity of the source.
DATABASE = (
    "SELECT d.name, d.database_id, d.is_cdc_enabled, "
    "CONVERT(nvarchar(128), SERVERPROPERTY('ServerName')) AS server_name, "
    "CONVERT(int, SERVERPROPERTY('EngineEdition')) AS engine_edition "
    "FROM sys.databases AS d WHERE d.name = DB_NAME()"
)

# What a database keeps for life, also in a backup and on the other replicas of a group.
GUID = (
    "SELECT CONVERT(nvarchar(36), service_broker_guid) AS guid FROM sys.databases "
    "WHERE name = DB_NAME()"
)

# The oldest and the newest commit that is known, and one commit that was known before.
KNOWN_COMMIT = (
    "SELECT m.oldest, m.newest, w.tran_end_time, w.tran_id FROM "
    "(SELECT MIN(start_lsn) AS oldest, MAX(start_lsn) AS newest FROM cdc.lsn_time_mapping) AS m "
    "LEFT JOIN cdc.lsn_time_mapping AS w ON w.start_lsn = CAST(? AS binary(10))"
)

# READ_ONLY on a readable secondary.
UPDATEABILITY = (
    "SELECT CONVERT(nvarchar(60), DATABASEPROPERTYEX(DB_NAME(), 'Updateability')) AS updateability"
)

READ_ONLY = "READ_ONLY"

# Position of the last commit in this database's log: availability group, then the log itself.
HADR_COMMIT = (
    "SELECT CONVERT(varchar(25), last_commit_lsn) AS lsn "
    "FROM sys.dm_hadr_database_replica_states WHERE database_id = DB_ID() AND is_local = 1"
)
LOG_COMMIT = (
    "SELECT MAX([Current LSN]) AS lsn FROM sys.fn_dblog(NULL, NULL) "
    "WHERE Operation = 'LOP_COMMIT_XACT'"
)

# The newest finished scan of the log by the capture job, and the server's clock (S6).
LAST_SCAN = (
    "SELECT TOP (1) session_id, start_time, end_time, tran_count, empty_scan_count, "
    "GETDATE() AS now_local FROM sys.dm_cdc_log_scan_sessions "
    "WHERE session_id > 0 AND scan_phase = N'Done' ORDER BY session_id DESC"
)
# Jobs of this database: transactions of one scan (capture), minutes of retention (clean-up).
JOBS = "SELECT job_type, maxtrans, retention FROM msdb.dbo.cdc_jobs WHERE database_id = DB_ID()"
CAPTURE_JOB, CLEAN_UP_JOB = "capture", "cleanup"
SERVICES = "SELECT servicename, status FROM sys.dm_server_services"
AGENT_NAME, AGENT_RUNS = "SQL Server Agent (", 4


def agent_states(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    """Return the states of the Agent's services, of the rows of SERVICES."""
    return [int(status) for name, status in rows if str(name).startswith(AGENT_NAME)]


def change_table(instance: str) -> str:
    """Return the name of an instance's change table, as SQL."""
    return quote("cdc", f"{instance}_CT")


def changes_of(instance: str, columns: Sequence[SourceColumn], *, has_command: bool) -> str:
    """Return the query of an instance's changes, in the order in which they were made.

    Its parameters are the first and the last commit LSN. has_command: whether the change table has
    the column __$command_id.
    """
    command = "[__$command_id]" if has_command else "CAST(0 AS int) AS [__$command_id]"
    shown = "".join(f", {select_expression(column)}" for column in columns)
    order = "[__$start_lsn], " + ("[__$command_id], " if has_command else "")
    return (
        f"SELECT [__$start_lsn], {command}, [__$seqval], [__$operation], [__$update_mask]{shown} "
        f"FROM {change_table(instance)} "
        "WHERE [__$start_lsn] >= CAST(? AS binary(10)) "
        "AND [__$start_lsn] <= CAST(? AS binary(10)) "
        f"ORDER BY {order}[__$seqval], [__$operation] OPTION (RECOMPILE)"
    )
