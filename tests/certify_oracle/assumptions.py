"""Assumptions of penstock about Oracle: a sentence each, and the code that relies on it."""

from __future__ import annotations

from certify.assumptions import table_of

_ROWS = "codec/oracle/mined_rows.py, engines/oracle/source/assembly.py"
_TEXT = "codec/oracle/statements.py"
_VALUES = "codec/oracle/literals.py, codec/oracle/values.py"
_UNDO = "engines/oracle/source/undo.py"
_LOBS = "engines/oracle/source/lobs.py"
_LOGS = "engines/oracle/source/log_choice.py"
_MINING = "engines/oracle/source/mining.py"
_BEGINNING = "engines/oracle/beginning.py"
_CHUNKS = "engines/oracle/reading/chunks.py"
_TARGET = "engines/oracle/target"
_CONNECT = "engines/oracle/connect.py"

ASSUMPTIONS = table_of(
    ("codes", "an insert is operation code 1, a delete 2, an update 3", _ROWS),
    ("ends", "a transaction has START (6) first and COMMIT (7) last", _ROWS),
    ("one-commit", "the COMMIT row's SCN is not before the SCN of any of its changes", _ROWS),
    ("scanned", "every SQL_REDO of a change is a statement of the known form", _TEXT),
    ("set-changed", "an update's SET has the changed columns only", _TEXT),
    ("where-all", "with ALL columns logged, WHERE has every column that is not large", _TEXT),
    ("where-key", "with the key logged, WHERE has the key and the changed columns", _TEXT),
    ("no-where", "without supplemental logging, STATUS is 3 or there is no WHERE", _ROWS),
    ("rolled-back", "a rolled back transaction ends with operation code 36 and no COMMIT", _ROWS),
    ("undo-rows", "an undo row has ROLLBACK 1, the row id of its change and its opposite", _UNDO),
    ("undo-newest", "of one row id, the newest change is undone first", _UNDO),
    ("failed-undone", "a failed statement's rows are undone in the same transaction", _UNDO),
    ("array-address", "rows of one array DELETE may share RS_ID and SSN", _ROWS),
    ("fetch-order", "rows of one transaction are fetched in the order of its changes", _ROWS),
    ("key-update", "an update of a key is one UPDATE row with the old key in WHERE", _TEXT),
    ("row-movement", "a row that moves to another partition is a DELETE and an INSERT", _ROWS),
    ("quotes", "a quote in a value is doubled", _TEXT),
    ("numbers", "numbers are exact and quoted, without a zero before the point", _VALUES),
    ("times", "times have the form of the session's settings", _VALUES),
    ("national", "national characters are UNISTR calls", _VALUES),
    ("raw", "RAW is HEXTORAW of all bytes", _VALUES),
    ("null", "NULL is NULL in SET and values, and IS NULL in WHERE", _TEXT),
    ("extremes", "38 digits, small fractions and negative scales are exact", _VALUES),
    ("years", "years 1 and 9999 have four digits", _VALUES),
    ("floats", "a binary float is a decimal text that penstock's codec reads", _VALUES),
    ("nested", "an outer savepoint undoes what was done since it, inner ones included", _UNDO),
    ("array-insert", "rows of one array INSERT have addresses or sub-numbers of their own", _ROWS),
    ("temporary", "a temporary table's rows are in no statement", _ROWS),
    ("renamed", "a renamed table has its rows under the new name, with the same DATA_OBJ#", _ROWS),
    ("commit-order", "COMMIT rows come in the order of their SCNs", _ROWS),
    ("empty", "an empty text is NULL", _TARGET),
    ("pieces", "a statement over 4000 bytes comes in rows with CSF 1, to be join_pieces", _TEXT),
    ("lob-insert", "an inserted large object is EMPTY_CLOB() or its value, then more rows", _LOBS),
    ("lob-unlogged", "an unchanged large object is in no row of an update", _LOBS),
    ("lob-as-of", "a large object can be read as of the SCN of its commit", _LOBS),
    ("truncate", "TRUNCATE is operation code 5 and gives another DATA_OBJD#", _ROWS),
    ("ddl", "a DDL statement is operation code 5, in a transaction of its own", _ROWS),
    ("version", "a new column raises DATA_OBJV# in later rows", _ROWS),
    ("older-redo", "redo from before a DDL has `COL n` or the previous names", _ROWS),
    ("direct", "a direct-path insert has operation code 1, whatever OPERATION says", _ROWS),
    ("open-scn", "GV$TRANSACTION has the START_SCN of an open transaction", _BEGINNING),
    ("late-commit", "a transaction that was open at a switch commits with a later SCN", _BEGINNING),
    ("window-whole", "a window up to the lowest SCN that all threads have written has every commit "
     "up to it; none appears there later", _MINING),
    ("as-of", "AS OF SCN reads what was committed then", _CHUNKS),
    ("as-of-errors", "an SCN of the future is error 8181", _CHUNKS),
    ("row-id-range", "ROWID ranges of DBA_EXTENTS have all rows, each once", _CHUNKS),
    ("duplicate-log", "adding a log twice is error 1289", _LOGS),
    ("sequences", "SEQUENCE# of a thread's logs has no gap", _LOGS),
    ("current-online", "the CURRENT log is in V$LOG with a huge NEXT_CHANGE#", _LOGS),
    ("bad-range", "an end before the begin is error 1281", _MINING),
    ("no-session", "END_LOGMNR without a session is error 1307", _MINING),
    ("merge-key", "MERGE cannot update a column of its ON condition: error 38104", _TARGET),
    ("merge-stable", "MERGE from two rows of one key is error 30926", _TARGET),
    ("ddl-commits", "a DDL statement commits the open transaction", _TARGET),
    ("create-user", "a user without a login can own tables, and has room for their rows", _TARGET),
    ("deferred", "a deferred foreign key is checked at COMMIT: errors 2091 and 2291", _TARGET),
    ("locked-row", "FOR UPDATE NOWAIT of a locked row is error 54, WAIT 1 is 30006", _TARGET),
    ("too-long", "a text that is too long is error 12899, a number 1438", _TARGET),
    ("bound-date", "a datetime is bound as DATE: the fraction of a second is lost", _CONNECT),
)  # fmt: skip
