SELECT CURRENT_SCN FROM V$DATABASE
;;
ALTER SYSTEM ARCHIVE LOG CURRENT
;;
BEGIN rdsadmin.rdsadmin_util.switch_logfile; END;
;;
SELECT DBID, NAME, RESETLOGS_CHANGE#, RESETLOGS_TIME, LOG_MODE, SUPPLEMENTAL_LOG_DATA_MIN, SUPPLEMENTAL_LOG_DATA_ALL, FORCE_LOGGING, CDB, DATABASE_ROLE, OPEN_MODE FROM V$DATABASE
;;
SELECT INCARNATION#, RESETLOGS_CHANGE#, RESETLOGS_TIME FROM V$DATABASE_INCARNATION WHERE STATUS = 'CURRENT'
;;
SELECT GROUP#, THREAD#, SEQUENCE#, BYTES, ARCHIVED, STATUS, FIRST_CHANGE#, NEXT_CHANGE# FROM V$LOG
;;
SELECT GROUP#, STATUS, TYPE, MEMBER FROM V$LOGFILE
;;
SELECT NAME, DEST_ID, THREAD#, SEQUENCE#, RESETLOGS_CHANGE#, RESETLOGS_TIME, FIRST_CHANGE#, NEXT_CHANGE#, BLOCKS, BLOCK_SIZE, DICTIONARY_BEGIN, DICTIONARY_END FROM V$ARCHIVED_LOG WHERE NAME IS NOT NULL AND ARCHIVED = 'YES' AND DELETED = 'NO' AND STATUS = 'A' AND STANDBY_DEST = 'NO' AND NEXT_CHANGE# > :low
;;
SELECT DEST_ID, DEST_NAME, STATUS, TYPE FROM V$ARCHIVE_DEST_STATUS
;;
SELECT THREAD#, STATUS, ENABLED, ENABLE_CHANGE#, CHECKPOINT_CHANGE#, LAST_REDO_CHANGE# FROM V$THREAD
;;
SELECT XIDUSN, XIDSLOT, XIDSQN, START_SCN FROM GV$TRANSACTION
;;
SELECT XIDUSN, XIDSLOT, XIDSQN, START_SCN FROM V$TRANSACTION
;;
SELECT FILE#, UNRECOVERABLE_CHANGE# FROM V$DATAFILE
;;
SELECT NAME, VALUE FROM V$PARAMETER WHERE NAME = :name
;;
SELECT VERSION FROM V$INSTANCE
;;
SELECT PRIVILEGE FROM SESSION_PRIVS
;;
SELECT PARAMETER, VALUE FROM NLS_SESSION_PARAMETERS
;;
SELECT PARAMETER, VALUE FROM NLS_DATABASE_PARAMETERS
;;
SELECT SYS_CONTEXT('USERENV', 'CON_NAME') FROM DUAL
;;
SELECT TABLESPACE_NAME, FORCE_LOGGING FROM DBA_TABLESPACES
;;
BEGIN DBMS_LOGMNR.ADD_LOGFILE(LOGFILENAME => :name, OPTIONS => DBMS_LOGMNR.NEW); END;
;;
BEGIN DBMS_LOGMNR.ADD_LOGFILE(LOGFILENAME => :name, OPTIONS => DBMS_LOGMNR.ADDFILE); END;
;;
BEGIN DBMS_LOGMNR.START_LOGMNR(STARTSCN => :low, ENDSCN => :high, OPTIONS => DBMS_LOGMNR.DICT_FROM_ONLINE_CATALOG + DBMS_LOGMNR.NO_ROWID_IN_STMT + DBMS_LOGMNR.NO_SQL_DELIMITER); END;
;;
BEGIN DBMS_LOGMNR.END_LOGMNR; END;
;;
SELECT SCN, XIDUSN, XIDSLT, XIDSQN, PXIDUSN, PXIDSLT, PXIDSQN, OPERATION_CODE, ROLLBACK, SEG_OWNER, TABLE_NAME, ROW_ID, RS_ID, SSN, CSF, THREAD#, DATA_OBJ#, DATA_OBJV#, DATA_OBJD#, STATUS, INFO, TIMESTAMP, SRC_CON_NAME, SQL_REDO FROM V$LOGMNR_CONTENTS WHERE OPERATION_CODE IN (6, 7, 34, 36) OR (SRC_CON_NAME = :pdb AND OPERATION_CODE IN (0, 1, 2, 3, 5, 9, 10, 11, 28, 29, 68, 70, 71, 91, 92, 93, 255))
;;
SELECT SCN, XIDUSN, XIDSLT, XIDSQN, PXIDUSN, PXIDSLT, PXIDSQN, OPERATION_CODE, ROLLBACK, SEG_OWNER, TABLE_NAME, ROW_ID, RS_ID, SSN, CSF, THREAD#, DATA_OBJ#, DATA_OBJV#, DATA_OBJD#, STATUS, INFO, TIMESTAMP, SRC_CON_NAME, SQL_REDO FROM V$LOGMNR_CONTENTS WHERE OPERATION_CODE IN (6, 7, 34, 36) OR (SRC_CON_NAME = :pdb AND OPERATION_CODE IN (0, 1, 2, 3, 5) AND (TABLE_NAME LIKE 'OBJ#%' OR SEG_OWNER = 'UNKNOWN' OR (SEG_OWNER, TABLE_NAME) IN (('SHOP', 'A'), ('SHOP', 'B'))))
;;
SELECT OWNER, TABLE_NAME, COLUMN_NAME, DATA_TYPE, DATA_LENGTH, DATA_PRECISION, DATA_SCALE, NULLABLE, COLUMN_ID, HIDDEN_COLUMN, VIRTUAL_COLUMN, CHAR_LENGTH, CHAR_USED FROM ALL_TAB_COLS WHERE OWNER = :owner AND TABLE_NAME = :name ORDER BY INTERNAL_COLUMN_ID
;;
SELECT C.CONSTRAINT_NAME, C.CONSTRAINT_TYPE, K.COLUMN_NAME, K.POSITION FROM ALL_CONSTRAINTS C JOIN ALL_CONS_COLUMNS K ON C.OWNER = K.OWNER AND C.CONSTRAINT_NAME = K.CONSTRAINT_NAME WHERE C.OWNER = :owner AND C.TABLE_NAME = :name AND C.CONSTRAINT_TYPE IN ('P', 'U') ORDER BY C.CONSTRAINT_NAME, K.POSITION
;;
SELECT LOG_GROUP_NAME, LOG_GROUP_TYPE FROM ALL_LOG_GROUPS WHERE OWNER = :owner AND TABLE_NAME = :name
;;
SELECT OBJECT_NAME, SUBOBJECT_NAME, OBJECT_ID, DATA_OBJECT_ID FROM ALL_OBJECTS WHERE OWNER = :owner AND OBJECT_NAME = :name
;;
SELECT OWNER, TABLE_NAME, LOGGING, TEMPORARY, IOT_TYPE, PARTITIONED FROM ALL_TABLES WHERE OWNER = :owner
;;
SELECT RELATIVE_FNO, BLOCK_ID, BLOCKS, PARTITION_NAME FROM DBA_EXTENTS WHERE OWNER = :owner AND SEGMENT_NAME = :name ORDER BY EXTENT_ID
;;
SELECT "ID", "NAME" FROM "SHOP"."T" AS OF SCN :scn
;;
SELECT "ID", "NAME", ROWID FROM "SHOP"."T" AS OF SCN :scn WHERE ROWID BETWEEN CHARTOROWID(:low) AND CHARTOROWID(:high)
;;
SELECT "ID", "NAME" FROM "SHOP"."T" AS OF SCN :scn WHERE ROWID = :row_id
;;
SELECT "ID", "NAME" FROM "SHOP"."T" AS OF SCN :scn WHERE "ID" = :key
;;
SELECT "ID", "NAME" FROM "SHOP"."T"
;;
SELECT COUNT(*) FROM "SHOP"."T"
;;
ALTER SESSION SET NLS_DATE_FORMAT = 'YYYY-MM-DD HH24:MI:SS'
;;
ALTER SESSION SET NLS_TIMESTAMP_FORMAT = 'YYYY-MM-DD HH24:MI:SS.FF9'
;;
ALTER SESSION SET NLS_TIMESTAMP_TZ_FORMAT = 'YYYY-MM-DD HH24:MI:SS.FF9 TZH:TZM'
;;
ALTER SESSION SET NLS_NUMERIC_CHARACTERS = '.,'
;;
ALTER SESSION SET TIME_ZONE = '00:00'
;;
ALTER SESSION SET CONTAINER = SHOPPDB
;;
ALTER SESSION SET CONTAINER = CDB$ROOT
;;
INSERT INTO "SHOP"."T" ("ID", "NAME") VALUES (:1, :2)
;;
UPDATE "SHOP"."T" SET "NAME" = :name WHERE "ID" = :key
;;
DELETE FROM "SHOP"."T" WHERE "ID" = :key
;;
DELETE FROM "SHOP"."T" T WHERE EXISTS (SELECT 1 FROM "SHOP"."T_WKM" M WHERE M."ID" = T."ID" AND M."OP" = 'd')
;;
MERGE INTO "SHOP"."T" T USING "SHOP"."T_WKM" M ON (T."ID" = M."ID") WHEN MATCHED THEN UPDATE SET T."NAME" = M."NAME" DELETE WHERE M."OP" = 'd' WHEN NOT MATCHED THEN INSERT ("ID", "NAME") VALUES (M."ID", M."NAME") WHERE M."OP" <> 'd'
;;
SELECT "ID" FROM "SHOP"."T" WHERE "ID" = :key FOR UPDATE
;;
CREATE TABLE "SHOP"."T" ("ID" NUMBER(10) NOT NULL, "NAME" VARCHAR2(40), PRIMARY KEY ("ID"))
;;
TRUNCATE TABLE "SHOP"."T"
;;
DROP TABLE "SHOP"."T" PURGE
;;
SAVEPOINT batch
;;
ROLLBACK TO SAVEPOINT batch
;;
COMMIT
;;
ROLLBACK
;;
LOCK TABLE "SHOP"."T" IN EXCLUSIVE MODE
;;
ALTER SESSION SET NLS_CALENDAR = 'GREGORIAN' NLS_DATE_FORMAT = 'SYYYY-MM-DD HH24:MI:SS' NLS_TIMESTAMP_FORMAT = 'SYYYY-MM-DD HH24:MI:SS.FF9' NLS_TIMESTAMP_TZ_FORMAT = 'SYYYY-MM-DD HH24:MI:SS.FF9 TZH:TZM' NLS_NUMERIC_CHARACTERS = '.,' NLS_SORT = 'BINARY' NLS_COMP = 'BINARY' TIME_ZONE = '00:00'
;;
SELECT TO_CHAR(DATE '2026-02-28'), TO_CHAR(TIMESTAMP '2026-02-28 13:45:59.123456789'), TO_CHAR(TIMESTAMP '2026-02-28 13:45:59.123456789 +05:30'), TO_CHAR(1.5), SESSIONTIMEZONE FROM DUAL
;;
ALTER SESSION SET CONTAINER = "CDB$ROOT"
;;
SELECT DBID, NAME, RESETLOGS_CHANGE#, RESETLOGS_TIME, FORCE_LOGGING FROM V$DATABASE
;;
SELECT TO_CHAR(SYSTIMESTAMP, 'YYYY-MM-DD HH24:MI:SS.FF6 TZH:TZM') FROM DUAL
;;
SELECT NAME, DEST_ID, THREAD#, SEQUENCE#, RESETLOGS_CHANGE#, RESETLOGS_TIME, FIRST_CHANGE#, NEXT_CHANGE# FROM V$ARCHIVED_LOG WHERE NAME IS NOT NULL AND ARCHIVED = 'YES' AND DELETED = 'NO' AND STATUS = 'A' AND STANDBY_DEST = 'NO' AND NEXT_CHANGE# > :low
;;
SELECT COLUMN_NAME, DATA_TYPE, DATA_LENGTH, DATA_PRECISION, DATA_SCALE, CHAR_LENGTH, CHAR_USED FROM ALL_TAB_COLS WHERE OWNER = :owner AND TABLE_NAME = :name ORDER BY INTERNAL_COLUMN_ID
;;
SELECT OBJECT_NAME, OBJECT_ID FROM ALL_OBJECTS WHERE OWNER = :owner AND OBJECT_TYPE LIKE 'TABLE%'
;;
SELECT SCN, XID, PXID, OPERATION_CODE, ROLLBACK, CSF, STATUS, THREAD#, SEG_OWNER, TABLE_NAME, ROW_ID, RS_ID, DATA_OBJ#, DATA_OBJV#, INFO, TIMESTAMP, SQL_REDO FROM V$LOGMNR_CONTENTS WHERE OPERATION_CODE IN (6, 7, 34, 36) OR STATUS = 1343 OR (SRC_CON_NAME = 'SHOPPDB' AND (OPERATION_CODE = 5 OR (OPERATION_CODE IN (0, 1, 2, 3, 9, 10, 11, 28, 29, 68, 70, 71, 91, 92, 93, 255) AND (TABLE_NAME LIKE 'OBJ#%' OR SEG_OWNER = 'UNKNOWN' OR (SEG_OWNER, TABLE_NAME) IN (('SHOP', 'A'), ('SHOP', 'B')) OR DATA_OBJ# IN (90001, 90002)))))
;;
SELECT SCN, XID, PXID, OPERATION_CODE, ROLLBACK, CSF, STATUS, THREAD#, SEG_OWNER, TABLE_NAME, ROW_ID, RS_ID, DATA_OBJ#, DATA_OBJV#, INFO, TIMESTAMP, SQL_REDO FROM V$LOGMNR_CONTENTS WHERE OPERATION_CODE IN (6, 7, 34, 36) OR STATUS = 1343 OR (SRC_CON_NAME = 'SHOPPDB' AND (OPERATION_CODE = 5 OR (OPERATION_CODE IN (1, 2, 3, 9, 10, 11, 28, 29, 68, 70, 71, 91, 92, 93, 255) AND (TABLE_NAME LIKE 'OBJ#%' OR SEG_OWNER = 'UNKNOWN' OR (SEG_OWNER, TABLE_NAME) IN (('SHOP', 'A'), ('SHOP', 'B'))))))
;;
SELECT SCN, XID, PXID, OPERATION_CODE, ROLLBACK, CSF, STATUS, THREAD#, SEG_OWNER, TABLE_NAME, ROW_ID, RS_ID, DATA_OBJ#, DATA_OBJV#, INFO, TIMESTAMP, SQL_REDO FROM V$LOGMNR_CONTENTS WHERE OPERATION_CODE IN (6, 7, 34, 36) OR STATUS = 1343 OR (OPERATION_CODE = 5 OR (OPERATION_CODE IN (1, 2, 3, 9, 10, 11, 28, 29, 68, 70, 71, 91, 92, 93, 255) AND (TABLE_NAME LIKE 'OBJ#%' OR SEG_OWNER = 'UNKNOWN' OR (SEG_OWNER, TABLE_NAME) IN (('SHOP', 'A'), ('SHOP', 'B')) OR DATA_OBJ# IN (90001))))
;;
SELECT SCN, XID, PXID, OPERATION_CODE, ROLLBACK, CSF, STATUS, THREAD#, SEG_OWNER, TABLE_NAME, ROW_ID, RS_ID, DATA_OBJ#, DATA_OBJV#, INFO, TIMESTAMP, SQL_REDO FROM V$LOGMNR_CONTENTS WHERE OPERATION_CODE IN (6, 7, 34, 36) OR STATUS = 1343 OR (SRC_CON_NAME = 'SHOPPDB' AND (OPERATION_CODE = 5 OR (OPERATION_CODE IN (1, 2, 3, 9, 10, 11, 28, 29, 68, 70, 71, 91, 92, 93, 255) AND (TABLE_NAME LIKE 'OBJ#%' OR SEG_OWNER = 'UNKNOWN'))))
;;
SELECT SCN, XID, PXID, OPERATION_CODE, ROLLBACK, CSF, STATUS, THREAD#, SEG_OWNER, TABLE_NAME, ROW_ID, RS_ID, DATA_OBJ#, DATA_OBJV#, INFO, TIMESTAMP, SQL_REDO FROM V$LOGMNR_CONTENTS WHERE OPERATION_CODE IN (6, 7, 34, 36) OR STATUS = 1343 OR (OPERATION_CODE = 5 OR (OPERATION_CODE IN (1, 2, 3, 9, 10, 11, 28, 29, 68, 70, 71, 91, 92, 93, 255) AND (TABLE_NAME LIKE 'OBJ#%' OR SEG_OWNER = 'UNKNOWN')))
;;
SELECT OWNER, MVIEW_NAME, 'view' FROM ALL_MVIEWS UNION ALL SELECT OWNER, TABLE_NAME, 'external' FROM ALL_EXTERNAL_TABLES UNION ALL SELECT OWNER, QUEUE_TABLE, 'queue' FROM ALL_QUEUE_TABLES UNION ALL SELECT T.OWNER, T.TABLE_NAME, 'object' FROM ALL_OBJECT_TABLES T JOIN ALL_USERS U ON U.USERNAME = T.OWNER WHERE U.ORACLE_MAINTAINED = 'N'
;;
SELECT T.OWNER, T.TABLE_NAME, O.OBJECT_ID, T.TEMPORARY, T.IOT_TYPE, T.NESTED, T.SECONDARY, T.PARTITIONED, T.NUM_ROWS, T.BLOCKS FROM ALL_TABLES T JOIN ALL_USERS U ON U.USERNAME = T.OWNER JOIN ALL_OBJECTS O ON O.OWNER = T.OWNER AND O.OBJECT_NAME = T.TABLE_NAME WHERE U.ORACLE_MAINTAINED = 'N' AND O.OBJECT_TYPE = 'TABLE' ORDER BY T.OWNER, T.TABLE_NAME
;;
SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, DATA_LENGTH, DATA_PRECISION, DATA_SCALE, NULLABLE, INTERNAL_COLUMN_ID, CHAR_LENGTH, CHAR_USED, HIDDEN_COLUMN, VIRTUAL_COLUMN, USER_GENERATED, IDENTITY_COLUMN, DATA_DEFAULT FROM ALL_TAB_COLS WHERE OWNER = :owner ORDER BY TABLE_NAME, INTERNAL_COLUMN_ID
;;
SELECT C.TABLE_NAME, C.CONSTRAINT_NAME, C.CONSTRAINT_TYPE, C.STATUS, C.VALIDATED, C.R_OWNER, C.R_CONSTRAINT_NAME, C.DELETE_RULE, K.COLUMN_NAME FROM ALL_CONSTRAINTS C JOIN ALL_CONS_COLUMNS K ON K.OWNER = C.OWNER AND K.CONSTRAINT_NAME = C.CONSTRAINT_NAME WHERE C.OWNER = :owner AND C.CONSTRAINT_TYPE IN ('P', 'U', 'R') ORDER BY C.TABLE_NAME, C.CONSTRAINT_NAME, K.POSITION
;;
SELECT I.TABLE_NAME, I.INDEX_NAME, I.UNIQUENESS, C.COLUMN_NAME, C.DESCEND FROM ALL_INDEXES I JOIN ALL_IND_COLUMNS C ON C.INDEX_OWNER = I.OWNER AND C.INDEX_NAME = I.INDEX_NAME WHERE I.TABLE_OWNER = :owner AND I.INDEX_TYPE IN ('NORMAL', 'FUNCTION-BASED NORMAL') AND I.STATUS <> 'UNUSABLE' ORDER BY I.TABLE_NAME, I.INDEX_NAME, C.COLUMN_POSITION
;;
SELECT ROWIDTOCHAR(DBMS_ROWID.ROWID_CREATE(1, O.DATA_OBJECT_ID, E.RELATIVE_FNO, E.BLOCK_ID, 0)), E.BLOCKS FROM DBA_EXTENTS E JOIN ALL_OBJECTS O ON O.OWNER = E.OWNER AND O.OBJECT_NAME = E.SEGMENT_NAME AND NVL(O.SUBOBJECT_NAME, ' ') = NVL(E.PARTITION_NAME, ' ') WHERE E.OWNER = :owner AND E.SEGMENT_NAME = :name AND E.SEGMENT_TYPE LIKE 'TABLE%' AND O.OBJECT_TYPE LIKE 'TABLE%' AND O.DATA_OBJECT_ID IS NOT NULL ORDER BY O.DATA_OBJECT_ID, E.RELATIVE_FNO, E.BLOCK_ID
;;
SELECT "ID" FROM "SHOP"."T" AS OF SCN 8800002 WHERE ROWID < CHARTOROWID('AAAV+RAAHAAAACrAAA')
;;
SELECT "ID" FROM "SHOP"."T" AS OF SCN 8800002 WHERE ROWID >= CHARTOROWID('AAAV+RAAHAAAACrAAA') AND ROWID < CHARTOROWID('AAAV+RAAHAAAACzAAA')
;;
SELECT "ID" FROM "SHOP"."T" AS OF SCN 8800002 WHERE ROWID >= CHARTOROWID('AAAV+RAAHAAAAC7AAA')
;;
SELECT TO_CHAR("ID", 'TM9') FROM "SHOP"."T" AS OF SCN 8800002 ORDER BY "ID" OFFSET :skipped ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT TO_CHAR("ID", 'TM9') FROM "SHOP"."T" AS OF SCN 8800002 WHERE "ID" >= 101 ORDER BY "ID" OFFSET :skipped ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT "ID" FROM "SHOP"."T" AS OF SCN 8800002 WHERE "ID" < 101
;;
SELECT "ID" FROM "SHOP"."T" AS OF SCN 8800002 WHERE "ID" >= 101 AND "ID" < 201
;;
SELECT "ID" FROM "SHOP"."T" AS OF SCN 8800002 WHERE "ID" >= 901
;;
SELECT INTERNAL_COLUMN_ID, COLUMN_NAME, DATA_TYPE, DATA_LENGTH, DATA_PRECISION, DATA_SCALE FROM ALL_TAB_COLS WHERE OWNER = :owner AND TABLE_NAME = :name ORDER BY INTERNAL_COLUMN_ID
;;
SELECT OBJECT_ID, DATA_OBJECT_ID FROM ALL_OBJECTS WHERE OWNER = :owner AND OBJECT_NAME = :name AND OBJECT_TYPE LIKE 'TABLE%' ORDER BY OBJECT_ID
;;
SELECT "ID", "NAME", "PRICE", TO_CHAR("N", 'TM9'), "DOC", CASE WHEN "DOC" IS NULL THEN 0 ELSE 1 END, TO_CHAR("AT", 'SYYYY-MM-DD HH24:MI:SS') FROM "SHOP"."T" AS OF SCN 8800002
;;
SELECT "ID", TO_CHAR("N", 'TM9') FROM "SHOP"."T" AS OF SCN 8800002
;;
SELECT "ID", "NAME" FROM "SHOP"."T" AS OF SCN 8800002
;;
SELECT DBID, RESETLOGS_CHANGE# FROM V$DATABASE
;;
SELECT "ID", "DOC", CASE WHEN "DOC" IS NULL THEN 0 ELSE 1 END FROM "SHOP"."T" AS OF SCN 8800002
;;
ALTER SESSION SET DDL_LOCK_TIMEOUT = 10
;;
SELECT LOWER(table_name) FROM all_tables WHERE owner = 'WIREKITE' AND LOWER(table_name) IN ('wirekite_progress', 'wirekite_action', 'wirekite_log', 'wirekite_staged', 'wirekite_table', 'wirekite_apart', 'wirekite_merge', 'bulk_table')
;;
SELECT 1 FROM all_users WHERE username = 'WIREKITE'
;;
CREATE USER wirekite NO AUTHENTICATION QUOTA UNLIMITED ON USERS
;;
create table wirekite.wirekite_progress (
        source       varchar2(256 char) not null,
        target       varchar2(256 char) not null,
        operation    varchar2(2 char) not null,
        transmission varchar2(1 char) not null,
        mark         varchar2(64 char) null,
        table_name   varchar2(256 char) null,
        start_time   timestamp(6) not null,
        finish_time  timestamp(6) null,
        restarts     int default 0 not null,
        primary key (source, target)
    )
;;
create table wirekite.wirekite_action (
        action varchar2(8 char) not null primary key
    )
;;
create table wirekite.wirekite_log (
        only_row         number(1) default 1 primary key check (only_row = 1),
        log_id           varchar2(255 char) not null,
        applied_segment  number(19) default -1 not null,
        applied_gsn      number(19) default 0 not null,
        applied_trx      number(19) default 0 not null,
        applied_position varchar2(39 char) default 0 not null,
        applied_commit   timestamp(6) null
    )
;;
create table wirekite.wirekite_table (
        source_schema varchar2(128 byte) not null,
        source_name   varchar2(128 byte) not null,
        target_schema varchar2(128 byte) not null,
        target_name   varchar2(128 byte) not null,
        merge_name    varchar2(128 byte) not null unique,
        made          number(1) not null,
        columns       clob null,
        primary key (source_schema, source_name)
    )
;;
create table wirekite.wirekite_apart (
        source_schema    varchar2(128 byte) not null,
        source_name      varchar2(128 byte) not null,
        state            varchar2(16 char) not null,
        copy_id          number(19) not null,
        start_position   varchar2(39 char) not null,
        applied_segment  number(19) not null,
        applied_gsn      number(19) not null,
        applied_trx      number(19) not null,
        applied_position varchar2(39 char) not null,
        since            timestamp(6) not null,
        primary key (source_schema, source_name)
    )
;;
create table wirekite.wirekite_merge (
        merge_name varchar2(128 byte) not null primary key,
        stamp      number(19) not null,
        shape      clob not null
    )
;;
select action from wirekite.wirekite_action
;;
insert into wirekite.wirekite_action values ('RUN')
;;
MERGE INTO wirekite.wirekite_log t
USING (SELECT 1 AS only_row, :b1 AS log_id FROM dual) s
   ON ((t.only_row = s.only_row))
 WHEN NOT MATCHED THEN INSERT (only_row, log_id) VALUES (s.only_row, s.log_id)
;;
select log_id from wirekite.wirekite_log for update wait 10
;;
select applied_segment, applied_gsn, applied_trx, applied_position, applied_commit from wirekite.wirekite_log
;;
select source_schema, source_name, target_schema, target_name, merge_name, made, columns from wirekite.wirekite_table
;;
MERGE INTO wirekite.wirekite_table t
USING (SELECT :b1 AS source_schema, :b2 AS source_name, :b3 AS target_schema, :b4 AS target_name, :b5 AS merge_name, :b6 AS made, :b7 AS columns FROM dual) s
   ON ((t.source_schema = s.source_schema AND t.source_name = s.source_name) OR (t.merge_name = s.merge_name))
 WHEN NOT MATCHED THEN INSERT (source_schema, source_name, target_schema, target_name, merge_name, made, columns) VALUES (s.source_schema, s.source_name, s.target_schema, s.target_name, s.merge_name, s.made, s.columns)
;;
SELECT table_name FROM all_tables WHERE owner = 'WIREKITE' ORDER BY table_name
;;
SELECT merge_name, shape FROM wirekite.wirekite_merge
;;
DROP TABLE "WIREKITE"."t_wkm" CASCADE CONSTRAINTS PURGE
;;
MERGE INTO wirekite.wirekite_merge t
USING (SELECT :b1 AS merge_name, :b2 AS stamp, :b3 AS shape FROM dual) s
   ON ((t.merge_name = s.merge_name))
 WHEN MATCHED THEN UPDATE SET t.stamp = s.stamp, t.shape = s.shape
 WHEN NOT MATCHED THEN INSERT (merge_name, stamp, shape) VALUES (s.merge_name, s.stamp, s.shape)
;;
CREATE TABLE "WIREKITE"."t_wkm" (
    "wk$n" NUMBER(19) NULL,
    "wk$absent" VARCHAR2(1000 BYTE) NULL,
    "wk$key1" NUMBER(10) NULL,
    "id" NUMBER(10) NULL,
    "name" CLOB NULL,
    "n" NUMBER(10) NULL,
    "wk$stamp" NUMBER(19) NULL
)
;;
MERGE INTO wirekite.wirekite_progress t
USING (SELECT :b1 AS source, :b2 AS target, :b3 AS operation, :b4 AS mark, :b5 AS table_name, 'F' AS transmission, SYS_EXTRACT_UTC(SYSTIMESTAMP) AS start_time FROM dual) s
   ON ((t.source = s.source AND t.target = s.target))
 WHEN MATCHED THEN UPDATE SET t.restarts = t.restarts + case when t.finish_time is null then 1 else 0 end
 WHEN NOT MATCHED THEN INSERT (source, target, operation, mark, table_name, transmission, start_time) VALUES (s.source, s.target, s.operation, s.mark, s.table_name, s.transmission, s.start_time)
;;
SELECT table_name FROM all_tables WHERE owner = :owner
;;
SELECT table_name, column_name, data_type, data_length, data_precision, data_scale, nullable,
           char_length, char_used, virtual_column, identity_column
      FROM all_tab_cols
     WHERE owner = :owner AND hidden_column = 'NO'
     ORDER BY table_name, internal_column_id
;;
SELECT c.table_name, c.constraint_name, c.constraint_type, c.status, c.index_name,
           k.column_name
      FROM all_constraints c
      JOIN all_cons_columns k ON k.owner = c.owner AND k.constraint_name = c.constraint_name
     WHERE c.owner = :owner AND c.constraint_type IN ('P', 'U')
     ORDER BY c.table_name, c.constraint_name, k.position
;;
SELECT i.table_name, i.owner, i.index_name, i.uniqueness, i.index_type, k.column_name, k.descend
      FROM all_indexes i
      JOIN all_ind_columns k ON k.index_owner = i.owner AND k.index_name = i.index_name
     WHERE i.table_owner = :owner
     ORDER BY i.table_name, i.index_name, k.column_position
;;
SELECT table_name, owner, trigger_name
      FROM all_triggers
     WHERE table_owner = :owner AND status = 'ENABLED'
     ORDER BY table_name, owner, trigger_name
;;
SELECT f.constraint_name, f.owner, f.table_name, p.owner, p.table_name, f.delete_rule,
           f.status, f.deferrable
      FROM all_constraints f
      JOIN all_constraints p ON p.owner = f.r_owner AND p.constraint_name = f.r_constraint_name
     WHERE f.constraint_type = 'R' AND (f.owner = :owner OR p.owner = :owner)
     ORDER BY f.owner, f.table_name, f.constraint_name
;;
select applied_segment, applied_gsn, applied_trx, applied_position, applied_commit from wirekite.wirekite_log for update wait 10
;;
SELECT 1 FROM "SHOP"."t" WHERE ROWNUM = 1
;;
MERGE INTO wirekite.wirekite_table t
USING (SELECT :b1 AS source_schema, :b2 AS source_name, :b3 AS target_schema, :b4 AS target_name, :b5 AS merge_name, :b6 AS made, :b7 AS columns FROM dual) s
   ON ((t.source_schema = s.source_schema AND t.source_name = s.source_name))
 WHEN MATCHED THEN UPDATE SET t.target_schema = s.target_schema, t.target_name = s.target_name, t.merge_name = s.merge_name, t.made = GREATEST(t.made, s.made), t.columns = s.columns
 WHEN NOT MATCHED THEN INSERT (source_schema, source_name, target_schema, target_name, merge_name, made, columns) VALUES (s.source_schema, s.source_name, s.target_schema, s.target_name, s.merge_name, s.made, s.columns)
;;
SELECT applied_segment, applied_gsn, applied_position FROM wirekite.wirekite_log
     WHERE log_id = :b1 FOR UPDATE WAIT 10
;;
UPDATE wirekite.wirekite_log
       SET applied_segment = :b1, applied_gsn = :b2, applied_trx = :b3, applied_position = :b4,
           applied_commit = TO_TIMESTAMP(:b5, 'SYYYY-MM-DD HH24:MI:SS.FF')
     WHERE log_id = :b6
;;
LOCK TABLE "WIREKITE"."t_wkm" IN EXCLUSIVE MODE WAIT 10
;;
SELECT 0 AS place, COUNT(*) AS held, COUNT(CASE WHEN "wk$stamp" = 2178322332376035101 THEN 1 END) AS stamped FROM "WIREKITE"."t_wkm"
;;
MERGE INTO "SHOP"."t" t
USING (SELECT m.* FROM "WIREKITE"."t_wkm" m WHERE m."wk$n" > 0) m
   ON (t."id" = m."id")
 WHEN MATCHED THEN UPDATE SET t."name" = TO_CHAR(m."name"), t."n" = m."n"
 WHEN NOT MATCHED THEN INSERT ("id", "name", "n") VALUES (m."id", TO_CHAR(m."name"), m."n")
;;
MERGE INTO wirekite.wirekite_progress t
USING (SELECT :b1 AS source, :b2 AS target, :b3 AS operation, :b4 AS mark, :b5 AS table_name, 'F' AS transmission, SYS_EXTRACT_UTC(SYSTIMESTAMP) AS start_time, case when :b6 = 1 then SYS_EXTRACT_UTC(SYSTIMESTAMP) end AS finish_time FROM dual) s
   ON ((t.source = s.source AND t.target = s.target))
 WHEN MATCHED THEN UPDATE SET t.mark = s.mark, t.operation = s.operation, t.finish_time = s.finish_time
 WHEN NOT MATCHED THEN INSERT (source, target, operation, mark, table_name, transmission, start_time, finish_time) VALUES (s.source, s.target, s.operation, s.mark, s.table_name, s.transmission, s.start_time, s.finish_time)
;;
DELETE FROM "SHOP"."t" t
 WHERE EXISTS (SELECT 1 FROM "WIREKITE"."t_wkm" m WHERE m."wk$n" < 0 AND t."id" = m."id")
;;
SELECT COUNT(*), COUNT(t.ROWID), COUNT(CASE WHEN m."id" = m."wk$key1" THEN NULL ELSE 1 END)
  FROM "WIREKITE"."t_wkm" m
  LEFT JOIN "SHOP"."t" t ON t."id" = m."wk$key1"
 WHERE m."wk$absent" IS NOT NULL
;;
MERGE INTO "WIREKITE"."t_wkm" m
USING "SHOP"."t" t
   ON (t."id" = m."wk$key1" AND m."wk$absent" IS NOT NULL AND NOT (m."id" = m."wk$key1"))
 WHEN MATCHED THEN UPDATE SET m."name" = CASE WHEN SUBSTR(m."wk$absent", 2, 1) = '1' THEN t."name" ELSE m."name" END
;;
MERGE INTO "SHOP"."t" t
USING (SELECT m.* FROM "WIREKITE"."t_wkm" m WHERE m."wk$n" > 0) m
   ON (t."id" = m."id")
 WHEN MATCHED THEN UPDATE SET t."name" = CASE WHEN SUBSTR(m."wk$absent", 2, 1) = '1' AND m."id" = m."wk$key1" THEN t."name" ELSE TO_CHAR(m."name") END, t."n" = m."n"
 WHEN NOT MATCHED THEN INSERT ("id", "name", "n") VALUES (m."id", TO_CHAR(m."name"), m."n")
;;
CREATE TABLE "WIREKITE"."bag_wkm" (
    "wk$n" NUMBER(19) NULL,
    "v" NUMBER(10) NULL,
    "wk$stamp" NUMBER(19) NULL
)
;;
SELECT COALESCE(SUM(CASE WHEN m."wk$n" < 0 THEN -m."wk$n" ELSE 0 END), 0), COALESCE(SUM(CASE WHEN m."wk$n" > 0 THEN m."wk$n" ELSE 0 END), 0), COALESCE(MAX(m."wk$n"), 0) FROM "WIREKITE"."bag_wkm" m
;;
INSERT INTO "SHOP"."bag" ("v")
SELECT m."v"
  FROM "WIREKITE"."bag_wkm" m
 WHERE m."wk$n" > 0 AND BITAND(m."wk$n", 1) = 1
;;
INSERT INTO "SHOP"."bag" ("v")
SELECT m."v"
  FROM "WIREKITE"."bag_wkm" m
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b1
 WHERE m."wk$n" > 0 AND BITAND(m."wk$n", 2) = 2
;;
DELETE FROM "SHOP"."bag"
 WHERE ROWID IN (
    SELECT c.place FROM (
        SELECT t.ROWID AS place, m."wk$n" AS copies,
               ROW_NUMBER() OVER (PARTITION BY m.ROWID ORDER BY t.ROWID) AS copy
          FROM "WIREKITE"."bag_wkm" m
          JOIN "SHOP"."bag" t ON DECODE(t."v", m."v", 1, 0) = 1
         WHERE m."wk$n" < 0) c
     WHERE c.copy <= -c.copies)
;;
SELECT 0 AS place, COUNT(*) AS held, COUNT(CASE WHEN "wk$stamp" = 4050468923152894218 THEN 1 END) AS stamped FROM "WIREKITE"."bag_wkm" UNION ALL SELECT 1 AS place, COUNT(*) AS held, COUNT(CASE WHEN "wk$stamp" = 4159586480277942898 THEN 1 END) AS stamped FROM "WIREKITE"."t_wkm"
;;
DELETE FROM "SHOP"."t"
;;
ALTER TABLE "SHOP"."t" ADD ("more" NUMBER(10) NULL)
;;
MERGE INTO wirekite.wirekite_apart t
USING (SELECT :b1 AS source_schema, :b2 AS source_name, :b3 AS state, :b4 AS copy_id, :b5 AS start_position, :b6 AS applied_segment, :b7 AS applied_gsn, :b8 AS applied_trx, :b9 AS applied_position, SYS_EXTRACT_UTC(SYSTIMESTAMP) AS since FROM dual) s
   ON ((t.source_schema = s.source_schema AND t.source_name = s.source_name))
 WHEN MATCHED THEN UPDATE SET t.state = s.state, t.copy_id = s.copy_id, t.start_position = s.start_position, t.applied_segment = s.applied_segment, t.applied_gsn = s.applied_gsn, t.applied_trx = s.applied_trx, t.applied_position = s.applied_position, t.since = s.since
 WHEN NOT MATCHED THEN INSERT (source_schema, source_name, state, copy_id, start_position, applied_segment, applied_gsn, applied_trx, applied_position, since) VALUES (s.source_schema, s.source_name, s.state, s.copy_id, s.start_position, s.applied_segment, s.applied_gsn, s.applied_trx, s.applied_position, s.since)
;;
select source_schema, source_name, state, copy_id, start_position, applied_segment, applied_gsn, applied_trx, applied_position from wirekite.wirekite_apart
;;
SELECT OPEN_MODE FROM V$PDBS WHERE NAME = :name
;;
SELECT MIN(LAST_REDO_CHANGE#) FROM V$THREAD WHERE STATUS = 'OPEN'
;;
SELECT TO_CHAR(SCN_TO_TIMESTAMP(:scn), 'YYYY-MM-DD HH24:MI:SS.FF6') FROM DUAL
;;
SELECT SUM(BLOCKS * BLOCK_SIZE), TO_CHAR(MIN(FIRST_TIME), 'YYYY-MM-DD HH24:MI:SS') FROM V$ARCHIVED_LOG WHERE NAME IS NOT NULL AND DELETED = 'NO' AND STATUS = 'A' AND STANDBY_DEST = 'NO'
;;
SELECT SUPPLEMENTAL_LOG_DATA_PK FROM V$DATABASE
;;
SELECT OWNER, TABLE_NAME, LOG_GROUP_TYPE FROM ALL_LOG_GROUPS WHERE LOG_GROUP_TYPE IN ('ALL COLUMN LOGGING', 'PRIMARY KEY LOGGING')
;;
SELECT VALUE FROM V$PARAMETER WHERE NAME = :name
;;
SELECT VALUE FROM NLS_DATABASE_PARAMETERS WHERE PARAMETER = 'NLS_CHARACTERSET'
;;
SELECT COUNT(*) FROM V$LOG_HISTORY WHERE FIRST_TIME > SYSDATE - 1
;;
SELECT GROUP#, THREAD#, BYTES FROM V$LOG
;;
SELECT THREAD#, STATUS, ENABLED FROM V$THREAD
;;
SELECT COUNT(*) FROM V$ARCHIVED_LOG
;;
SELECT SCN FROM V$LOGMNR_CONTENTS WHERE OPERATION_CODE = 7
;;
SELECT 1 FROM "SHOP"."T" WHERE 1 = 0
;;
SELECT 1 FROM "SHOP"."T" AS OF SCN 8800009 WHERE 1 = 0
;;
SELECT COUNT(*) FROM DBA_EXTENTS WHERE OWNER = :owner AND SEGMENT_NAME = :name
;;
SELECT OWNER, TABLE_NAME FROM ALL_TAB_COLS WHERE IDENTITY_COLUMN = 'YES'
;;
SELECT COUNT(*) FROM ALL_USERS WHERE USERNAME = 'RDSADMIN'
;;
SELECT OWNER, TABLE_NAME FROM ALL_TABLES WHERE LOGGING = 'NO'
;;
SELECT COUNT(*) FROM ALL_USERS WHERE USERNAME = :name
;;
ALTER SESSION SET ROW ARCHIVAL VISIBILITY = ALL
;;
SELECT OBJECT_OWNER, OBJECT_NAME FROM ALL_POLICIES WHERE ENABLE = 'YES'
;;
SELECT OBJECT_OWNER, OBJECT_NAME FROM REDACTION_POLICIES
;;
SELECT IOT_TYPE FROM ALL_TABLES WHERE OWNER = :owner AND TABLE_NAME = :name
;;
BEGIN DBMS_APPLICATION_INFO.SET_MODULE(:module, NULL); END;
;;
SELECT inst_id, sid, serial# FROM gv$session WHERE module = :module AND username = SYS_CONTEXT('USERENV', 'SESSION_USER') AND status <> 'KILLED'
;;
ALTER SYSTEM KILL SESSION '12,345,@1' IMMEDIATE
;;
SELECT COUNT(*) FROM "SHOP"."T" VERSIONS BETWEEN SCN 1 AND 2 WHERE VERSIONS_STARTSCN > 1 AND ROWNUM = 1
;;
select target from wirekite.wirekite_progress where operation = 'CE' and source = :b1 and finish_time is not null
;;
select source_schema, source_name, plan, position, row_count, finish_time from wirekite.bulk_table
;;
create table wirekite.bulk_table (
        source_schema varchar2(128 byte) not null,
        source_name   varchar2(128 byte) not null,
        plan        varchar2(64 char) not null,
        position      varchar2(256 char) not null,
        row_count     number(19) null,
        start_time    timestamp(6) not null,
        finish_time   timestamp(6) null,
        primary key (source_schema, source_name)
    )
;;
SELECT 1 FROM all_users WHERE username = :name
;;
CREATE USER "COPY" NO AUTHENTICATION QUOTA UNLIMITED ON USERS
;;
CREATE TABLE "COPY"."bag" (
    "a" NUMBER(10,0) NULL,
    "v" VARCHAR2(40 CHAR) NULL
)
;;
CREATE TABLE "COPY"."item" (
    "id" NUMBER(10,0) NOT NULL,
    "nn" NUMBER(10,0) NULL,
    "body" CLOB NULL,
    "more" NUMBER(10,0) NULL
)
;;
MERGE INTO wirekite.bulk_table t
USING (SELECT :b1 AS source_schema, :b2 AS source_name, :b3 AS plan, :b4 AS position, SYS_EXTRACT_UTC(SYSTIMESTAMP) AS start_time FROM dual) s
   ON ((t.source_schema = s.source_schema AND t.source_name = s.source_name))
 WHEN MATCHED THEN UPDATE SET t.plan = s.plan, t.position = s.position, t.start_time = s.start_time, t.row_count = null, t.finish_time = null
 WHEN NOT MATCHED THEN INSERT (source_schema, source_name, plan, position, start_time) VALUES (s.source_schema, s.source_name, s.plan, s.position, s.start_time)
;;
delete from wirekite.wirekite_progress where operation = 'DL' and table_name = :b1
;;
select table_name, source, mark from wirekite.wirekite_progress where operation = 'DL' and finish_time is not null
;;
select plan from wirekite.bulk_table where source_schema = :b1 and source_name = :b2 and plan = :b3 and finish_time is null for update wait 10
;;
select mark from wirekite.wirekite_progress where source = :b1 and target = 'DL' and finish_time is not null for update wait 10
;;
SELECT "id", "nn", "body", CASE WHEN "body" IS NULL THEN 0 ELSE 1 END, "more" FROM "SHOP"."item" AS OF SCN 8800060
;;
select source, mark from wirekite.wirekite_progress where operation = 'DL' and table_name = :b1 and finish_time is not null
;;
update wirekite.bulk_table set row_count = :b1, finish_time = SYS_EXTRACT_UTC(SYSTIMESTAMP) where source_schema = :b2 and source_name = :b3 and plan = :b4
;;
ALTER TABLE "COPY"."item" ADD CONSTRAINT "item_pk" PRIMARY KEY ("id")
;;
CREATE TABLE "WIREKITE"."bag_wkm" (
    "wk$n" NUMBER(19) NULL,
    "a" NUMBER(19) NULL,
    "v" VARCHAR2(4000 BYTE) NULL,
    "wk$stamp" NUMBER(19) NULL
)
;;
ALTER TABLE "SHOP"."LATE" ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS
;;
select log_id from wirekite.wirekite_log
;;
select coalesce(sum(restarts), 0) from wirekite.wirekite_progress
;;
SELECT source, mark, start_time, finish_time
    FROM wirekite.wirekite_progress
    WHERE operation = 'CE'
    ORDER BY start_time DESC
    FETCH FIRST 5 ROWS ONLY
;;
CREATE TABLE "C##PENSTOCK"."orders" (
    "id" NUMBER(10) NOT NULL,
    "note" VARCHAR2(20 CHAR) NULL,
    "big" CLOB NULL
)
;;
SELECT table_name, column_name, data_default
      FROM all_tab_cols
     WHERE owner = :owner AND hidden_column = 'NO' AND nullable = 'N'
;;
CREATE TABLE "SHOP"."item" (
    "id" NUMBER(10) NOT NULL,
    "n" NUMBER(10) NULL,
    "name" VARCHAR2(40 CHAR) NULL,
    "body" CLOB NULL
)
;;
CREATE TABLE "WIREKITE"."item_wkm" (
    "wk$n" NUMBER(19) NULL,
    "wk$absent" VARCHAR2(1000 BYTE) NULL,
    "wk$key1" NUMBER(10) NULL,
    "id" NUMBER(10) NULL,
    "n" NUMBER(10) NULL,
    "name" VARCHAR2(4000 BYTE) NULL,
    "body" CLOB NULL,
    "wk$stamp" NUMBER(19) NULL
)
;;
MERGE INTO "SHOP"."item" t
USING (SELECT m.* FROM "WIREKITE"."item_wkm" m WHERE m."wk$n" > 0) m
   ON (t."id" = m."id")
 WHEN MATCHED THEN UPDATE SET t."n" = m."n", t."name" = m."name", t."body" = m."body"
 WHEN NOT MATCHED THEN INSERT ("id", "n", "name", "body") VALUES (m."id", m."n", m."name", m."body")
;;
INSERT INTO "SHOP"."bag" ("a", "v")
SELECT m."a", m."v"
  FROM "WIREKITE"."bag_wkmb" m
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b1
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b2
 WHERE m."wk$n" > 0 AND BITAND(m."wk$n", 4) = 4
;;
INSERT INTO "SHOP"."bag" ("a", "v")
SELECT m."a", m."v"
  FROM "WIREKITE"."bag_wkmb" m
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b1
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b2
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b3
 WHERE m."wk$n" > 0 AND BITAND(m."wk$n", 8) = 8
;;
INSERT INTO "SHOP"."bag" ("a", "v")
SELECT m."a", m."v"
  FROM "WIREKITE"."bag_wkmb" m
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b1
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b2
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b3
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b4
 WHERE m."wk$n" > 0 AND BITAND(m."wk$n", 16) = 16
;;
INSERT INTO "SHOP"."bag" ("a", "v")
SELECT m."a", m."v"
  FROM "WIREKITE"."bag_wkmb" m
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b1
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b2
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b3
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b4
 CROSS JOIN (SELECT 0 AS x FROM dual UNION ALL SELECT 1 FROM dual) b5
 WHERE m."wk$n" > 0 AND BITAND(m."wk$n", 32) = 32
;;
CREATE TABLE "WIREKITE"."DIRECT_0A1B2C3D_0_4E5F6A_0" (
    "C1" NUMBER(10) NULL,
    "C2" VARCHAR2(4000 BYTE) NULL,
    "C3" NUMBER(10,2) NULL
)
;;
INSERT INTO "SHOP"."shop" ("id", "code", "price")
SELECT h."C1", h."C2", h."C3"
  FROM "WIREKITE"."DIRECT_0A1B2C3D_0_4E5F6A_0" h
;;
