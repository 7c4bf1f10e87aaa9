"""Assumptions of penstock about SQL Server: a sentence each, and the code that relies on it."""

from __future__ import annotations

from certify.assumptions import table_of

_ROWS = "codec/sqlserver, engines/sqlserver/source/change_rows.py"
_MERGING = "engines/sqlserver/source/merging.py"
_INSTANCES = "engines/sqlserver/source/instances.py"
_READER = "engines/sqlserver/source/reader.py"
_BEGINNING = "engines/sqlserver/source/beginning.py"
_CHUNKS = "engines/sqlserver/reading/chunks.py"
_TARGET = "engines/sqlserver/target/layout.py"
_APPLY = "engines/sqlserver/target/apply.py"
_CONNECT = "engines/sqlserver/connect.py"
_CHECKS = "engines/sqlserver/checks"
_CAUGHT_UP = "engines/sqlserver/source/caught_up.py"
_BULK = "engines/sqlserver/target/bulk.py"


ASSUMPTIONS = table_of(
    ("operations", "an insert is operation 2, a delete 1, an update 3 and then 4", _ROWS),
    ("end-lsn", "__$end_lsn is always NULL", _ROWS),
    ("one-commit", "all rows of a transaction have one __$start_lsn, in all tables", _MERGING),
    ("command-order", "statements of a transaction have ascending __$command_id", _MERGING),
    ("row-order", "rows of one statement have one __$command_id and different __$seqval", _MERGING),
    ("commit-order", "a transaction that commits later has a greater __$start_lsn", _MERGING),
    ("full-mask", "the update mask of inserts and deletes has the bits of all columns", _ROWS),
    ("update-pair", "3 and 4 of an update have one start_lsn, command_id, seqval and mask", _ROWS),
    ("changed-mask", "the mask of an update has the changed columns", _ROWS),
    ("same-values", "an update to equal values leaves no row, or an equal 3 and 4", _ROWS),
    ("key-update", "an update of a key is a delete before an insert, in our order", _ROWS),
    ("replay", "rows applied in our order give the table's rows", _MERGING),
    ("rolled-back", "work that was rolled back leaves no row", _ROWS),
    ("savepoint", "work rolled back to a savepoint leaves no row, the rest does", _ROWS),
    ("equal-rows", "equal rows of a table without a key are separate rows", _ROWS),
    ("last-byte", "the last byte of the mask has the columns 1 to 8", _ROWS),
    ("ordinals", "bit n of the mask is the column with column_ordinal n + 1", _ROWS),
    ("computed-null", "a computed column is NULL in the change table", _ROWS),
    ("large-unchanged", "an unchanged max column has its bit clear and is NULL in 3", _ROWS),
    ("large-changed", "a changed max column has its value in 4 with its bit set", _ROWS),
    ("large-to-null", "a max column set to NULL is NULL in 4 with its bit set", _ROWS),
    ("old-large", "text, ntext and image are NULL in operations 1 and 3", _ROWS),
    ("captured-values", "change tables have the values of the table, for every type", _ROWS),
    ("datetime-ticks", "datetime rounds to 0, 3 or 7 milliseconds", "codec/sqlserver/types.py"),
    ("time-mapping", "each commit is in cdc.lsn_time_mapping, its tran_id is not 0", _READER),
    ("local-time", "tran_end_time is the server's local time", _READER),
    ("max-lsn", "fn_cdc_get_max_lsn() is NULL or the newest captured commit", _READER),
    ("no-commits", "fn_cdc_get_max_lsn() is NULL as long as nothing was captured", _BEGINNING),
    ("silent-times", "tran_id 0 in cdc.lsn_time_mapping is of no change", _READER),
    ("increment", "fn_cdc_increment_lsn adds one to the ten bytes", _READER),
    ("unknown-instance", "an unknown instance's lowest LSN is ten zero bytes", _INSTANCES),
    ("range-error", "a range outside of the change table is error 313", _CONNECT),
    ("min-lsn", "fn_cdc_get_min_lsn of an instance is its start_lsn", _INSTANCES),
    ("clean-up", "a clean-up moves start_lsn to its mark and removes earlier rows", _INSTANCES),
    ("gating-role", "who is not in the gating role gets ten zero bytes", _INSTANCES),
    ("add-column", "a new column is in ddl_history and not in the change table", _INSTANCES),
    ("drop-column", "a dropped column stays in the change table and is NULL", _INSTANCES),
    ("alter-column", "a new type reaches the change table: required_column_update", _INSTANCES),
    ("second-instance", "a second instance has the new column, the first goes on", _INSTANCES),
    ("third-refused", "a third instance of a table is error 22962", _CHECKS),
    ("truncate-refused", "TRUNCATE TABLE of a captured table is error 4711", "docs/sqlserver.md"),
    ("rename-refused", "renaming a captured column is error 4928", "docs/sqlserver.md"),
    ("table-renamed", "a renamed table keeps its instance by object id", _INSTANCES),
    ("recreated", "an instance created again has another object id or date", _INSTANCES),
    ("columnstore-refused", "a clustered columnstore table is error 35353", _CHECKS),
    ("scans", "a finished scan of the log is in sys.dm_cdc_log_scan_sessions", _CAUGHT_UP),
    ("jobs", "msdb.dbo.cdc_jobs has maxtrans and retention of both jobs", _CAUGHT_UP),
    ("log-commit", "the newest commit in fn_dblog is not before max_lsn", _BEGINNING),
    ("error-continues", "a failed statement does not end its transaction", _APPLY),
    ("xact-abort", "with XACT_ABORT an error rolls the whole transaction back", _APPLY),
    ("parameters", "2,100 parameters are too many, 2,000 are not", _CONNECT),
    ("long-keys", "a clustered key of over 900 bytes is error 1946", _TARGET),
    ("blanks-and-case", "'a' and 'A' are one key in a CI collation, 'a' and 'a ' in all", _TARGET),
    ("case-update", "an update of a key to other letters of it keeps one row", _ROWS),
    ("guid-order", "the last six bytes of a uniqueidentifier decide its order", _CHUNKS),
    ("identity", "identity values are captured like others, with gaps after a rollback", _ROWS),
    ("bulk-copy", "rows of a bulk copy are captured as inserts", _BULK),
    ("bulk-session", "a bulk copy commits outside of the session's transaction", _BULK),
    ("snapshot", "a snapshot sees no later commit", _CHUNKS),
    ("snapshot-conflict", "updating a row that changed after the snapshot is error 3960", _CONNECT),
    ("merge-rows", "MERGE is captured as inserts, updates and deletes", _ROWS),
    ("lock-timeout", "waiting for a lock too long is error 1222", _CONNECT),
    ("deadlock", "a deadlock's victim gets error 1205", _CONNECT),
)  # fmt: skip
