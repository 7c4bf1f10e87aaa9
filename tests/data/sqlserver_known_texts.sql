CREATE DATABASE [test_21345_1]
;;
SET XACT_ABORT ON
;;
SET LOCK_TIMEOUT 60000
;;
SELECT name FROM sys.tables WHERE schema_id = SCHEMA_ID(N'wirekite') AND name IN ('wirekite_progress', 'wirekite_action', 'wirekite_log', 'wirekite_staged', 'wirekite_table', 'wirekite_apart', 'wirekite_merge', 'bulk_table')
;;
BEGIN TRANSACTION
;;
EXEC sp_getapplock @Resource = N'penstock wirekite', @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 30000
;;
SELECT 1 FROM sys.schemas WHERE name = N'wirekite'
;;
CREATE SCHEMA wirekite
;;
create table wirekite.wirekite_progress (
        source       nvarchar(256) COLLATE Latin1_General_100_BIN2 not null,
        target       nvarchar(256) COLLATE Latin1_General_100_BIN2 not null,
        operation    nvarchar(2) COLLATE Latin1_General_100_BIN2 not null,
        transmission nvarchar(1) COLLATE Latin1_General_100_BIN2 not null,
        mark         nvarchar(64) COLLATE Latin1_General_100_BIN2 null,
        table_name   nvarchar(256) COLLATE Latin1_General_100_BIN2 null,
        start_time   datetime2(6) not null,
        finish_time  datetime2(6) null,
        restarts     int default 0 not null,
        primary key (source, target)
    )
;;
create table wirekite.wirekite_action (
        action nvarchar(8) COLLATE Latin1_General_100_BIN2 not null primary key
    )
;;
create table wirekite.wirekite_log (
        only_row         bit not null default 1 primary key check (only_row = 1),
        log_id           nvarchar(255) COLLATE Latin1_General_100_BIN2 not null,
        applied_segment  bigint default -1 not null,
        applied_gsn      bigint default 0 not null,
        applied_trx      bigint default 0 not null,
        applied_position nvarchar(39) COLLATE Latin1_General_100_BIN2 default 0 not null,
        applied_commit   datetime2(6) null
    )
;;
create table wirekite.wirekite_table (
        source_schema nvarchar(128) COLLATE Latin1_General_100_BIN2 not null,
        source_name   nvarchar(128) COLLATE Latin1_General_100_BIN2 not null,
        target_schema nvarchar(128) COLLATE Latin1_General_100_BIN2 not null,
        target_name   nvarchar(128) COLLATE Latin1_General_100_BIN2 not null,
        merge_name    nvarchar(128) COLLATE Latin1_General_100_BIN2 not null unique,
        made          bit not null,
        columns       nvarchar(max) COLLATE Latin1_General_100_BIN2 null,
        primary key (source_schema, source_name)
    )
;;
create table wirekite.wirekite_apart (
        source_schema    nvarchar(128) COLLATE Latin1_General_100_BIN2 not null,
        source_name      nvarchar(128) COLLATE Latin1_General_100_BIN2 not null,
        state            nvarchar(16) COLLATE Latin1_General_100_BIN2 not null,
        copy_id          bigint not null,
        start_position   nvarchar(39) COLLATE Latin1_General_100_BIN2 not null,
        applied_segment  bigint not null,
        applied_gsn      bigint not null,
        applied_trx      bigint not null,
        applied_position nvarchar(39) COLLATE Latin1_General_100_BIN2 not null,
        since            datetime2(6) not null,
        primary key (source_schema, source_name)
    )
;;
create table wirekite.wirekite_merge (
        merge_name nvarchar(128) COLLATE Latin1_General_100_BIN2 not null primary key,
        stamp      bigint not null,
        shape      nvarchar(max) COLLATE Latin1_General_100_BIN2 not null
    )
;;
select action from wirekite.wirekite_action
;;
insert into wirekite.wirekite_action values ('RUN')
;;
COMMIT TRANSACTION
;;
create table wirekite.bulk_table (
        source_schema nvarchar(128) COLLATE Latin1_General_100_BIN2 not null,
        source_name   nvarchar(128) COLLATE Latin1_General_100_BIN2 not null,
        [plan]        nvarchar(64) COLLATE Latin1_General_100_BIN2 not null,
        position      nvarchar(256) COLLATE Latin1_General_100_BIN2 not null,
        row_count     bigint null,
        start_time    datetime2(6) not null,
        finish_time   datetime2(6) null,
        primary key (source_schema, source_name)
    )
;;
SELECT f.name, cs.name, c.name, ps.name, p.name, f.delete_referential_action_desc,
           f.is_disabled
      FROM sys.foreign_keys AS f
      JOIN sys.tables AS c ON c.object_id = f.parent_object_id
      JOIN sys.schemas AS cs ON cs.schema_id = c.schema_id
      JOIN sys.tables AS p ON p.object_id = f.referenced_object_id
      JOIN sys.schemas AS ps ON ps.schema_id = p.schema_id
     ORDER BY cs.name, c.name, f.name
;;
SELECT t.name
      FROM sys.tables AS t
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
     WHERE s.name = @P1
;;
SELECT t.name, c.name, b.name, y.name, c.max_length, c.[precision], c.[scale],
           c.is_nullable, c.is_identity, c.is_computed, c.generated_always_type,
           c.collation_name, d.name
      FROM sys.tables AS t
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
      JOIN sys.columns AS c ON c.object_id = t.object_id
      JOIN sys.types AS y ON y.user_type_id = c.user_type_id
      LEFT JOIN sys.types AS b ON b.user_type_id = c.system_type_id
      LEFT JOIN sys.default_constraints AS d ON d.parent_object_id = c.object_id
                                            AND d.parent_column_id = c.column_id
     WHERE s.name = @P1
     ORDER BY t.name, c.column_id
;;
SELECT t.name, i.name, i.is_primary_key, i.is_unique, i.is_unique_constraint, i.has_filter,
           i.is_disabled, c.name, x.is_included_column
      FROM sys.tables AS t
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
      JOIN sys.indexes AS i ON i.object_id = t.object_id
      JOIN sys.index_columns AS x ON x.object_id = i.object_id AND x.index_id = i.index_id
      JOIN sys.columns AS c ON c.object_id = x.object_id AND c.column_id = x.column_id
     WHERE s.name = @P1
     ORDER BY t.name, i.index_id, x.key_ordinal
;;
SELECT t.name, r.name
      FROM sys.tables AS t
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
      JOIN sys.triggers AS r ON r.parent_id = t.object_id
     WHERE s.name = @P1 AND r.is_disabled = 0
     ORDER BY t.name, r.name
;;
select source_schema, source_name, target_schema, target_name, merge_name, made, columns from wirekite.wirekite_table
;;
SELECT 1 FROM sys.schemas WHERE name = @P1
;;
CREATE TABLE [dbo].[shop] (
    [id] int NOT NULL,
    [code] nvarchar(40) COLLATE Latin1_General_100_BIN2 NULL,
    [price] decimal(10,2) NULL
)
;;
MERGE INTO wirekite.wirekite_table WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS source_schema, @P2 AS source_name, @P3 AS target_schema, @P4 AS target_name, @P5 AS merge_name, @P6 AS made, @P7 AS columns) AS s
   ON (t.source_schema = s.source_schema AND t.source_name = s.source_name)
 WHEN MATCHED THEN UPDATE SET target_schema = s.target_schema, target_name = s.target_name, merge_name = s.merge_name, made = t.made | s.made, columns = s.columns
 WHEN NOT MATCHED THEN INSERT (source_schema, source_name, target_schema, target_name, merge_name, made, columns) VALUES (s.source_schema, s.source_name, s.target_schema, s.target_name, s.merge_name, s.made, s.columns);
;;
MERGE INTO wirekite.bulk_table WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS source_schema, @P2 AS source_name, @P3 AS [plan], @P4 AS position, SYSUTCDATETIME() AS start_time) AS s
   ON (t.source_schema = s.source_schema AND t.source_name = s.source_name)
 WHEN MATCHED THEN UPDATE SET [plan] = s.[plan], position = s.position, start_time = s.start_time, row_count = null, finish_time = null
 WHEN NOT MATCHED THEN INSERT (source_schema, source_name, [plan], position, start_time) VALUES (s.source_schema, s.source_name, s.[plan], s.position, s.start_time);
;;
delete from wirekite.wirekite_progress where operation = 'DL' and table_name = @P1
;;
SELECT TOP (1) 1 FROM [dbo].[sale]
;;
SELECT name FROM sys.tables WHERE schema_id = SCHEMA_ID(N'wirekite') ORDER BY name
;;
select [plan] from wirekite.bulk_table WITH (HOLDLOCK) where source_schema = @P1 and source_name = @P2 and [plan] = @P3 and finish_time is null
;;
select mark from wirekite.wirekite_progress WITH (UPDLOCK, HOLDLOCK) where source = @P1 and target = 'DL' and finish_time is not null
;;
CREATE TABLE [wirekite].[bulk_e26d9cd1dae99fe1_0_487c990a_0] (
    [id] int NULL,
    [code] nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
    [price] decimal(10,2) NULL
)
;;
SELECT @@TRANCOUNT;

DECLARE @Column_Names NVARCHAR(MAX) = NULL;
DECLARE @object_id INT = OBJECT_ID(N'[wirekite].[bulk_e26d9cd1dae99fe1_0_487c990a_0]');
DECLARE @sql NVARCHAR(MAX);
SET @sql = N'SELECT @CN = COALESCE(@CN + N'', '', N'''') + QUOTENAME([name]) FROM sys.all_columns WHERE [object_id] = @ObjId';
IF EXISTS (SELECT TOP 1 * FROM sys.all_columns WHERE [object_id] = OBJECT_ID('sys.all_columns') AND [name] = 'graph_type')
    SET @sql = @sql + N' AND COALESCE([graph_type], 0) NOT IN (1, 3, 4, 6, 7)';
SET @sql = @sql + N' ORDER BY [column_id] ASC';
EXEC sp_executesql @sql, N'@CN NVARCHAR(MAX) OUTPUT, @ObjId INT', @CN = @Column_Names OUTPUT, @ObjId = @object_id;

SELECT @Column_Names = COALESCE(@Column_Names, '*');

SET FMTONLY ON;
EXEC(N'SELECT ' + @Column_Names + N' FROM [wirekite].[bulk_e26d9cd1dae99fe1_0_487c990a_0]');
SET FMTONLY OFF;

EXEC sp_tablecollations_100 N'[wirekite].[bulk_e26d9cd1dae99fe1_0_487c990a_0]';
;;
INSERT BULK [wirekite].[bulk_e26d9cd1dae99fe1_0_487c990a_0] ([id] int, [code] nvarchar(max) COLLATE Latin1_General_100_BIN2, [price] decimal(10, 2)) WITH (KEEP_NULLS, TABLOCK)
;;
EXEC sp_describe_undeclared_parameters
;;
MERGE INTO wirekite.wirekite_progress WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS source, @P2 AS target, @P3 AS operation, @P4 AS mark, @P5 AS table_name, 'F' AS transmission, SYSUTCDATETIME() AS start_time) AS s
   ON (t.source = s.source AND t.target = s.target)
 WHEN MATCHED THEN UPDATE SET restarts = t.restarts + case when t.finish_time is null then 1 else 0 end
 WHEN NOT MATCHED THEN INSERT (source, target, operation, mark, table_name, transmission, start_time) VALUES (s.source, s.target, s.operation, s.mark, s.table_name, s.transmission, s.start_time);
;;
SELECT COUNT_BIG(*) FROM [wirekite].[bulk_e26d9cd1dae99fe1_0_487c990a_0] WITH (TABLOCK, HOLDLOCK)
;;
INSERT INTO [dbo].[shop] ([id], [code], [price])
SELECT m.[id], m.[code], m.[price]
  FROM [wirekite].[bulk_e26d9cd1dae99fe1_0_487c990a_0] AS m
;;
MERGE INTO wirekite.wirekite_progress WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS source, @P2 AS target, @P3 AS operation, @P4 AS mark, @P5 AS table_name, 'F' AS transmission, SYSUTCDATETIME() AS start_time, case when @P6 = 1 then SYSUTCDATETIME() end AS finish_time) AS s
   ON (t.source = s.source AND t.target = s.target)
 WHEN MATCHED THEN UPDATE SET mark = s.mark, operation = s.operation, finish_time = s.finish_time
 WHEN NOT MATCHED THEN INSERT (source, target, operation, mark, table_name, transmission, start_time, finish_time) VALUES (s.source, s.target, s.operation, s.mark, s.table_name, s.transmission, s.start_time, s.finish_time);
;;
DROP TABLE IF EXISTS [wirekite].[bulk_e26d9cd1dae99fe1_0_487c990a_0]
;;
select source, mark from wirekite.wirekite_progress where operation = 'DL' and table_name = @P1 and finish_time is not null
;;
update wirekite.bulk_table set row_count = @P1, finish_time = SYSUTCDATETIME() where source_schema = @P2 and source_name = @P3 and [plan] = @P4
;;
ALTER TABLE [dbo].[shop] ADD CONSTRAINT [pk_shop] PRIMARY KEY ([id])
;;
CREATE UNIQUE INDEX [by_code] ON [dbo].[shop] ([code]) WHERE [code] IS NOT NULL
;;
UPDATE STATISTICS [dbo].[shop]
;;
ALTER TABLE [dbo].[sale] WITH CHECK ADD CONSTRAINT [sale_shop] FOREIGN KEY ([shop]) REFERENCES [dbo].[shop] ([id]) ON DELETE NO ACTION ON UPDATE NO ACTION
;;
SELECT id, code FROM dbo.shop ORDER BY id
;;
SELECT name FROM sys.indexes WHERE object_id = OBJECT_ID(N'dbo.shop') AND index_id > 0
;;
INSERT INTO dbo.sale VALUES (99, 99)
;;
SELECT name FROM sys.tables
;;
select source_schema, source_name, [plan], position, row_count, finish_time from wirekite.bulk_table
;;
select table_name, source, mark from wirekite.wirekite_progress where operation = 'DL' and finish_time is not null
;;
DROP DATABASE IF EXISTS [test_21345_1]
;;
IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION
;;
SELECT id FROM dbo.shop
;;
TRUNCATE TABLE [dbo].[shop]
;;
CREATE TABLE wirekite.[bulk_e26d9cd1dae99fe1_0_ff_0] (id int)
;;
CREATE TABLE wirekite.bulk_other_0 (id int)
;;
INSERT INTO [dbo].[shop] ([id], [code], [price])
SELECT m.[id], m.[code], CAST(m.[price] AS decimal(10,2))
  FROM [wirekite].[bulk_e26d9cd1dae99fe1_0_f16845b6_1] AS m
;;
SELECT id, price FROM dbo.shop ORDER BY id
;;
CREATE TABLE dbo.shop (id bigint NOT NULL, code int)
;;
SELECT name FROM sys.tables WHERE name = N'sale'
;;
CREATE TABLE dbo.shop (id int NOT NULL PRIMARY KEY)
;;
CREATE TABLE dbo.sale (id int, shop int REFERENCES dbo.shop (id))
;;
CREATE TABLE dbo.seen (id int)
;;
CREATE TRIGGER dbo.tr ON dbo.shop AFTER INSERT AS INSERT INTO dbo.seen SELECT id FROM inserted
;;
DELETE FROM dbo.shop WHERE id = 2
;;
DROP INDEX [by_code] ON [dbo].[shop]
;;
CREATE TABLE dbo.mine (id int)
;;
SELECT t.name FROM sys.tables AS t JOIN sys.schemas AS s ON s.schema_id = t.schema_id WHERE s.name = N'dbo'
;;
EXEC sys.sp_cdc_enable_db
;;
CREATE TABLE dbo.keyed (id int NOT NULL PRIMARY KEY, v nvarchar(20) NULL)
;;
CREATE TABLE dbo.heap (a int NULL)
;;
EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'keyed', @role_name = NULL
;;
INSERT INTO dbo.keyed VALUES (0, N'v0')
;;
INSERT INTO dbo.heap VALUES (1)
;;
SELECT snapshot_isolation_state FROM sys.databases WHERE name = DB_NAME()
;;
SELECT s.name AS schema_name, t.name AS table_name, t.object_id, t.is_memory_optimized, t.is_external, t.is_filetable, t.temporal_type, t.modify_date, (SELECT SUM(p.rows) FROM sys.partitions AS p WHERE p.object_id = t.object_id AND p.index_id IN (0, 1)) AS row_count, (SELECT SUM(a.used_pages) FROM sys.partitions AS p JOIN sys.allocation_units AS a ON a.container_id = p.partition_id WHERE p.object_id = t.object_id AND p.index_id IN (0, 1)) AS page_count FROM sys.tables AS t JOIN sys.schemas AS s ON s.schema_id = t.schema_id WHERE t.is_ms_shipped = 0 ORDER BY s.name, t.name
;;
SELECT c.object_id, c.column_id, c.name, b.name AS base_name, y.name AS own_name, c.max_length, c.precision, c.scale, c.is_nullable, c.is_identity, c.collation_name, d.definition AS default_text, cc.definition AS computed_text, cc.is_persisted FROM sys.columns AS c JOIN sys.tables AS t ON t.object_id = c.object_id JOIN sys.types AS y ON y.user_type_id = c.user_type_id LEFT JOIN sys.types AS b ON b.user_type_id = c.system_type_id LEFT JOIN sys.default_constraints AS d ON d.object_id = c.default_object_id LEFT JOIN sys.computed_columns AS cc ON cc.object_id = c.object_id AND cc.column_id = c.column_id WHERE t.is_ms_shipped = 0 ORDER BY c.object_id, c.column_id
;;
SELECT i.object_id, i.index_id, i.name, i.type, i.is_primary_key, i.is_unique, i.is_unique_constraint, i.filter_definition, i.is_disabled, c.name AS column_name, x.is_descending_key, x.is_included_column FROM sys.indexes AS i JOIN sys.tables AS t ON t.object_id = i.object_id JOIN sys.index_columns AS x ON x.object_id = i.object_id AND x.index_id = i.index_id JOIN sys.columns AS c ON c.object_id = x.object_id AND c.column_id = x.column_id WHERE t.is_ms_shipped = 0 ORDER BY i.object_id, i.index_id, x.key_ordinal, x.index_column_id
;;
SELECT f.parent_object_id, f.name, s.name AS schema_name, r.name AS table_name, pc.name AS column_name, rc.name AS target_name, f.delete_referential_action_desc, f.update_referential_action_desc FROM sys.foreign_keys AS f JOIN sys.foreign_key_columns AS k ON k.constraint_object_id = f.object_id JOIN sys.tables AS r ON r.object_id = f.referenced_object_id JOIN sys.schemas AS s ON s.schema_id = r.schema_id JOIN sys.columns AS pc ON pc.object_id = k.parent_object_id AND pc.column_id = k.parent_column_id JOIN sys.columns AS rc ON rc.object_id = k.referenced_object_id AND rc.column_id = k.referenced_column_id WHERE f.is_disabled = 0 ORDER BY f.parent_object_id, f.name, k.constraint_column_id
;;
SELECT sys.fn_cdc_get_max_lsn() AS max_lsn, SYSUTCDATETIME() AS now_utc, DATEPART(tz, SYSDATETIMEOFFSET()) AS zone_minutes
;;
SELECT c.column_id, c.name, c.system_type_id, c.max_length, c.precision, c.scale FROM sys.columns AS c JOIN sys.tables AS t ON t.object_id = c.object_id JOIN sys.schemas AS s ON s.schema_id = t.schema_id WHERE s.name = @P1 AND t.name = @P2 ORDER BY c.column_id
;;
SELECT CONVERT(varchar(41), [id]) AS k0 FROM [dbo].[keyed] ORDER BY [id] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT [id], [v] FROM [dbo].[keyed]
;;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
;;
SELECT TOP (1) session_id, start_time, end_time, tran_count, empty_scan_count, GETDATE() AS now_local FROM sys.dm_cdc_log_scan_sessions WHERE session_id > 0 AND scan_phase = N'Done' ORDER BY session_id DESC
;;
SELECT job_type, maxtrans, retention FROM msdb.dbo.cdc_jobs WHERE database_id = DB_ID()
;;
SELECT TOP (1) [__$start_lsn] FROM cdc.[dbo_keyed_CT] ORDER BY [__$start_lsn] DESC
;;
EXEC sp_getapplock @Resource = @P1, @LockMode = 'Exclusive', @LockOwner = 'Transaction'
;;
SELECT TOP (0) 1 AS one FROM [dbo].[heap] WITH (TABLOCK, HOLDLOCK)
;;
DECLARE @outcome int; EXEC @outcome = sp_getapplock @Resource = @P1, @LockMode = 'Shared', @LockOwner = 'Session', @LockTimeout = 0; SELECT @outcome AS outcome
;;
SELECT COUNT(*) FROM dbo.heap
;;
DROP TABLE dbo.keyed
;;
CREATE TABLE dbo.customer (id int NOT NULL PRIMARY KEY, name nvarchar(40) NOT NULL DEFAULT N'new one', score decimal(12,2) NULL DEFAULT 0, since datetime2(7) NULL DEFAULT sysdatetime(), is_new bit NOT NULL DEFAULT 1)
;;
CREATE TABLE dbo.[order line] (order_id int NOT NULL, line_no smallint NOT NULL, customer_id int NULL, sku varchar(12) NULL, qty int NOT NULL, total AS (qty * 2), PRIMARY KEY (order_id, line_no), FOREIGN KEY (customer_id) REFERENCES dbo.customer (id) ON DELETE CASCADE)
;;
CREATE INDEX by_sku ON dbo.[order line] (sku, qty DESC)
;;
CREATE TABLE dbo.heap (a int NULL, b nvarchar(10) NULL)
;;
CREATE TABLE dbo.stand_in (a int NOT NULL, b int NULL)
;;
CREATE UNIQUE INDEX one_a ON dbo.stand_in (a)
;;
SELECT CONVERT(nvarchar(128), SERVERPROPERTY('ProductVersion')) AS version, CONVERT(int, SERVERPROPERTY('EngineEdition')) AS edition
;;
CREATE TABLE wirekite.own (a int NOT NULL PRIMARY KEY)
;;
CREATE TABLE dbo.keyed (g uniqueidentifier NOT NULL, n int NOT NULL, s nvarchar(20) NOT NULL, PRIMARY KEY (g, n))
;;
INSERT INTO dbo.keyed (g, n, s) VALUES (@P1, @P2, @P3)
;;
SELECT CONVERT(varchar(36), [g]) AS k0, CONVERT(varchar(41), [n]) AS k1 FROM [dbo].[keyed] ORDER BY [g], [n] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT CONVERT(varchar(36), [g]) AS k0, CONVERT(varchar(41), [n]) AS k1 FROM [dbo].[keyed] WHERE ([g] >= CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007') AND (([g] > CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007')) OR ([g] = CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007') AND [n] >= 7))) ORDER BY [g], [n] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT [g], [n] FROM [dbo].[keyed] WHERE ([g] <= CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007') AND (([g] < CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007')) OR ([g] = CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007') AND [n] < 7)))
;;
SELECT [g], [n] FROM [dbo].[keyed] WHERE ([g] >= CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007') AND (([g] > CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007')) OR ([g] = CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007') AND [n] >= 7))) AND ([g] <= CONVERT(uniqueidentifier, '00000000-0000-1B11-2000-00000000000E') AND (([g] < CONVERT(uniqueidentifier, '00000000-0000-1B11-2000-00000000000E')) OR ([g] = CONVERT(uniqueidentifier, '00000000-0000-1B11-2000-00000000000E') AND [n] < 14)))
;;
SELECT [g], [n] FROM [dbo].[keyed] WHERE ([g] >= CONVERT(uniqueidentifier, '00000000-0000-5EBB-F000-000000000031') AND (([g] > CONVERT(uniqueidentifier, '00000000-0000-5EBB-F000-000000000031')) OR ([g] = CONVERT(uniqueidentifier, '00000000-0000-5EBB-F000-000000000031') AND [n] >= 49)))
;;
CREATE TABLE dbo.k (v bigint NOT NULL PRIMARY KEY)
;;
INSERT INTO dbo.k (v) VALUES (-20)
;;
INSERT INTO dbo.k (v) VALUES (0)
;;
SELECT CONVERT(varchar(41), [v]) AS k0 FROM [dbo].[k] WHERE [v] >= -14 ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT CONVERT(varchar(41), [v]) AS k0 FROM [dbo].[k] WHERE [v] >= 4 ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT [v] FROM [dbo].[k] WHERE [v] < -14
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= -14 AND [v] < -8
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= -2 AND [v] < 4
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= 4 AND [v] < 10
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= 16
;;
INSERT INTO dbo.k (v) VALUES (N'it''s 0')
;;
SELECT [v] AS k0 FROM [dbo].[k] ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT [v] AS k0 FROM [dbo].[k] WHERE [v] >= N'it''s 14' COLLATE SQL_Latin1_General_CP1_CI_AS ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT [v] FROM [dbo].[k] WHERE [v] < N'it''s 14' COLLATE SQL_Latin1_General_CP1_CI_AS
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= N'it''s 14' COLLATE SQL_Latin1_General_CP1_CI_AS AND [v] < N'it''s 2' COLLATE SQL_Latin1_General_CP1_CI_AS
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= N'it''s 6' COLLATE SQL_Latin1_General_CP1_CI_AS
;;
SELECT CONVERT(varchar(34), [v], 126) AS k0 FROM [dbo].[k] ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT CONVERT(varchar(34), [v], 126) AS k0 FROM [dbo].[k] WHERE [v] >= CONVERT(datetime2(7), '2026-01-01T00:00:00.0000006', 126) ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT CONVERT(varchar(34), [v], 126) FROM [dbo].[k] WHERE [v] < CONVERT(datetime2(7), '2026-01-01T00:00:00.0000006', 126)
;;
SELECT CONVERT(varchar(34), [v], 126) FROM [dbo].[k] WHERE [v] >= CONVERT(datetime2(7), '2026-01-01T00:00:00.0000006', 126) AND [v] < CONVERT(datetime2(7), '2026-01-01T00:00:00.0000012', 126)
;;
SELECT CONVERT(varchar(34), [v], 126) FROM [dbo].[k] WHERE [v] >= CONVERT(datetime2(7), '2026-01-01T00:00:00.0000036', 126)
;;
SELECT [v] FROM [dbo].[k] WHERE [v] < CONVERT(datetime, '2026-01-01T00:00:06.997000', 126)
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= CONVERT(datetime, '2026-01-01T00:00:06.997000', 126) AND [v] < CONVERT(datetime, '2026-01-01T00:00:12.997000', 126)
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= CONVERT(datetime, '2026-01-01T00:00:36.997000', 126)
;;
SELECT CONVERT(varchar(max), [v], 1) AS k0 FROM [dbo].[k] WHERE [v] >= 0x0006 ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT [v] FROM [dbo].[k] WHERE [v] < 0x0006
;;
SELECT CONVERT(varchar(41), [v], 2) AS k0 FROM [dbo].[k] WHERE [v] >= CONVERT(money, '6.0001') ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT [v] FROM [dbo].[k] WHERE [v] < CONVERT(money, '6.0001')
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= CONVERT(money, '6.0001') AND [v] < CONVERT(money, '12.0001')
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= CONVERT(money, '36.0001')
;;
CREATE TABLE dbo.floats (v float NOT NULL PRIMARY KEY)
;;
INSERT INTO dbo.customer (id, name, score, since) VALUES (1, N'Zoë', 1.50, '2026-03-04T05:06:07.1234567'), (2, N'tab	here', NULL, NULL)
;;
SELECT [id], [name], [score], CONVERT(varchar(34), [since], 126) AS [since], [is_new] FROM [dbo].[customer] ORDER BY [id]
;;
ALTER TABLE dbo.customer ADD more int NULL
;;
ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON
;;
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
;;
INSERT INTO dbo.heap (a) VALUES (1)
;;
CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, name nvarchar(20) NULL, body nvarchar(max) NULL, twice AS (id * 2))
;;
EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N't', @role_name = NULL, @supports_net_changes = 0
;;
SELECT d.name, d.database_id, d.is_cdc_enabled, CONVERT(nvarchar(128), SERVERPROPERTY('ServerName')) AS server_name, CONVERT(int, SERVERPROPERTY('EngineEdition')) AS engine_edition FROM sys.databases AS d WHERE d.name = DB_NAME()
;;
SELECT ct.object_id, ct.source_object_id, ct.capture_instance, ct.create_date, ct.start_lsn, sys.fn_cdc_get_min_lsn(ct.capture_instance) AS min_lsn, s.name AS schema_name, t.name AS table_name, (SELECT TOP (1) h.ddl_lsn FROM cdc.ddl_history AS h WHERE h.object_id = ct.object_id ORDER BY h.ddl_lsn DESC) AS ddl_lsn FROM cdc.change_tables AS ct LEFT JOIN sys.tables AS t ON t.object_id = ct.source_object_id LEFT JOIN sys.schemas AS s ON s.schema_id = t.schema_id ORDER BY ct.source_object_id, ct.start_lsn, ct.create_date, ct.object_id
;;
SELECT cc.object_id, cc.column_ordinal, cc.column_name, cc.column_id, cc.is_computed, ty.name AS type_name, c.max_length, c.precision, c.scale, sc.name AS source_name FROM cdc.captured_columns AS cc JOIN cdc.change_tables AS ct ON ct.object_id = cc.object_id JOIN sys.columns AS c ON c.object_id = cc.object_id AND c.name = cc.column_name JOIN sys.types AS ty ON ty.user_type_id = c.user_type_id LEFT JOIN sys.columns AS sc ON sc.object_id = ct.source_object_id AND sc.column_id = cc.column_id ORDER BY cc.object_id, cc.column_ordinal
;;
SELECT c.object_id FROM sys.columns AS c JOIN cdc.change_tables AS ct ON ct.object_id = c.object_id WHERE c.name = N'__$command_id'
;;
SELECT TOP (@P1) start_lsn, tran_end_time, tran_id FROM cdc.lsn_time_mapping WHERE start_lsn > CAST(@P2 AS binary(10)) AND start_lsn <= CAST(@P3 AS binary(10)) AND tran_id <> 0x00 ORDER BY start_lsn
;;
INSERT INTO dbo.t (id, name, body) VALUES (1, N'a', N'long')
;;
UPDATE dbo.t SET name = N'b' WHERE id = 1
;;
UPDATE dbo.t SET id = 2 WHERE id = 1
;;
INSERT INTO dbo.t (id, name) VALUES (3, N'☃')
;;
UPDATE dbo.t SET body = NULL WHERE id = 2
;;
DELETE FROM dbo.t WHERE id = 2
;;
SELECT [__$start_lsn], [__$command_id], [__$seqval], [__$operation], [__$update_mask], [id], [name], [body] FROM [cdc].[dbo_t_CT] WHERE [__$start_lsn] >= CAST(@P1 AS binary(10)) AND [__$start_lsn] <= CAST(@P2 AS binary(10)) ORDER BY [__$start_lsn], [__$command_id], [__$seqval], [__$operation] OPTION (RECOMPILE)
;;
INSERT INTO dbo.t (id) VALUES (0)
;;
SELECT start_lsn FROM cdc.lsn_time_mapping ORDER BY start_lsn
;;
SELECT [__$start_lsn] FROM cdc.[dbo_t_CT] ORDER BY [__$start_lsn]
;;
CREATE TABLE dbo.u (id int NOT NULL PRIMARY KEY, n int NULL)
;;
CREATE TABLE dbo.v (id int NOT NULL PRIMARY KEY, n int NULL)
;;
INSERT INTO dbo.u (id) VALUES (0)
;;
INSERT INTO dbo.v (id) VALUES (1)
;;
INSERT INTO dbo.t (id, name) VALUES (0, N'n0'), (1, N'n1'), (2, N'n2'), (3, N'n3'), (4, N'n4'), (5, N'n5'), (6, N'n6'), (7, N'n7'), (8, N'n8'), (9, N'n9'), (10, N'n10'), (11, N'n11'), (12, N'n12'), (13, N'n13'), (14, N'n14'), (15, N'n15'), (16, N'n16'), (17, N'n17'), (18, N'n18'), (19, N'n19'), (20, N'n20'), (21, N'n21'), (22, N'n22'), (23, N'n23'), (24, N'n24'), (25, N'n25'), (26, N'n26'), (27, N'n27'), (28, N'n28'), (29, N'n29'), (30, N'n30'), (31, N'n31'), (32, N'n32'), (33, N'n33'), (34, N'n34'), (35, N'n35'), (36, N'n36'), (37, N'n37'), (38, N'n38'), (39, N'n39'), (40, N'n40'), (41, N'n41'), (42, N'n42'), (43, N'n43'), (44, N'n44'), (45, N'n45'), (46, N'n46'), (47, N'n47'), (48, N'n48'), (49, N'n49'), (50, N'n50'), (51, N'n51'), (52, N'n52'), (53, N'n53'), (54, N'n54'), (55, N'n55'), (56, N'n56'), (57, N'n57'), (58, N'n58'), (59, N'n59'), (60, N'n60'), (61, N'n61'), (62, N'n62'), (63, N'n63'), (64, N'n64'), (65, N'n65'), (66, N'n66'), (67, N'n67'), (68, N'n68'), (69, N'n69'), (70, N'n70'), (71, N'n71'), (72, N'n72'), (73, N'n73'), (74, N'n74'), (75, N'n75'), (76, N'n76'), (77, N'n77'), (78, N'n78'), (79, N'n79'), (80, N'n80'), (81, N'n81'), (82, N'n82'), (83, N'n83'), (84, N'n84'), (85, N'n85'), (86, N'n86'), (87, N'n87'), (88, N'n88'), (89, N'n89'), (90, N'n90'), (91, N'n91'), (92, N'n92'), (93, N'n93'), (94, N'n94'), (95, N'n95'), (96, N'n96'), (97, N'n97'), (98, N'n98'), (99, N'n99'), (100, N'n100'), (101, N'n101'), (102, N'n102'), (103, N'n103'), (104, N'n104'), (105, N'n105'), (106, N'n106'), (107, N'n107'), (108, N'n108'), (109, N'n109'), (110, N'n110'), (111, N'n111'), (112, N'n112'), (113, N'n113'), (114, N'n114'), (115, N'n115'), (116, N'n116'), (117, N'n117'), (118, N'n118'), (119, N'n119'), (120, N'n120'), (121, N'n121'), (122, N'n122'), (123, N'n123'), (124, N'n124'), (125, N'n125'), (126, N'n126'), (127, N'n127'), (128, N'n128'), (129, N'n129'), (130, N'n130'), (131, N'n131'), (132, N'n132'), (133, N'n133'), (134, N'n134'), (135, N'n135'), (136, N'n136'), (137, N'n137'), (138, N'n138'), (139, N'n139'), (140, N'n140'), (141, N'n141'), (142, N'n142'), (143, N'n143'), (144, N'n144'), (145, N'n145'), (146, N'n146'), (147, N'n147'), (148, N'n148'), (149, N'n149'), (150, N'n150'), (151, N'n151'), (152, N'n152'), (153, N'n153'), (154, N'n154'), (155, N'n155'), (156, N'n156'), (157, N'n157'), (158, N'n158'), (159, N'n159'), (160, N'n160'), (161, N'n161'), (162, N'n162'), (163, N'n163'), (164, N'n164'), (165, N'n165'), (166, N'n166'), (167, N'n167'), (168, N'n168'), (169, N'n169'), (170, N'n170'), (171, N'n171'), (172, N'n172'), (173, N'n173'), (174, N'n174'), (175, N'n175'), (176, N'n176'), (177, N'n177'), (178, N'n178'), (179, N'n179'), (180, N'n180'), (181, N'n181'), (182, N'n182'), (183, N'n183'), (184, N'n184'), (185, N'n185'), (186, N'n186'), (187, N'n187'), (188, N'n188'), (189, N'n189'), (190, N'n190'), (191, N'n191'), (192, N'n192'), (193, N'n193'), (194, N'n194'), (195, N'n195'), (196, N'n196'), (197, N'n197'), (198, N'n198'), (199, N'n199'), (200, N'n200'), (201, N'n201'), (202, N'n202'), (203, N'n203'), (204, N'n204'), (205, N'n205'), (206, N'n206'), (207, N'n207'), (208, N'n208'), (209, N'n209'), (210, N'n210'), (211, N'n211'), (212, N'n212'), (213, N'n213'), (214, N'n214'), (215, N'n215'), (216, N'n216'), (217, N'n217'), (218, N'n218'), (219, N'n219'), (220, N'n220'), (221, N'n221'), (222, N'n222'), (223, N'n223'), (224, N'n224'), (225, N'n225'), (226, N'n226'), (227, N'n227'), (228, N'n228'), (229, N'n229'), (230, N'n230'), (231, N'n231'), (232, N'n232'), (233, N'n233'), (234, N'n234'), (235, N'n235'), (236, N'n236'), (237, N'n237'), (238, N'n238'), (239, N'n239'), (240, N'n240'), (241, N'n241'), (242, N'n242'), (243, N'n243'), (244, N'n244'), (245, N'n245'), (246, N'n246'), (247, N'n247'), (248, N'n248'), (249, N'n249'), (250, N'n250'), (251, N'n251'), (252, N'n252'), (253, N'n253'), (254, N'n254'), (255, N'n255'), (256, N'n256'), (257, N'n257'), (258, N'n258'), (259, N'n259'), (260, N'n260'), (261, N'n261'), (262, N'n262'), (263, N'n263'), (264, N'n264'), (265, N'n265'), (266, N'n266'), (267, N'n267'), (268, N'n268'), (269, N'n269'), (270, N'n270'), (271, N'n271'), (272, N'n272'), (273, N'n273'), (274, N'n274'), (275, N'n275'), (276, N'n276'), (277, N'n277'), (278, N'n278'), (279, N'n279'), (280, N'n280'), (281, N'n281'), (282, N'n282'), (283, N'n283'), (284, N'n284'), (285, N'n285'), (286, N'n286'), (287, N'n287'), (288, N'n288'), (289, N'n289'), (290, N'n290'), (291, N'n291'), (292, N'n292'), (293, N'n293'), (294, N'n294'), (295, N'n295'), (296, N'n296'), (297, N'n297'), (298, N'n298'), (299, N'n299'), (300, N'n300'), (301, N'n301'), (302, N'n302'), (303, N'n303'), (304, N'n304'), (305, N'n305'), (306, N'n306'), (307, N'n307'), (308, N'n308'), (309, N'n309'), (310, N'n310'), (311, N'n311'), (312, N'n312'), (313, N'n313'), (314, N'n314'), (315, N'n315'), (316, N'n316'), (317, N'n317'), (318, N'n318'), (319, N'n319'), (320, N'n320'), (321, N'n321'), (322, N'n322'), (323, N'n323'), (324, N'n324'), (325, N'n325'), (326, N'n326'), (327, N'n327'), (328, N'n328'), (329, N'n329'), (330, N'n330'), (331, N'n331'), (332, N'n332'), (333, N'n333'), (334, N'n334'), (335, N'n335'), (336, N'n336'), (337, N'n337'), (338, N'n338'), (339, N'n339'), (340, N'n340'), (341, N'n341'), (342, N'n342'), (343, N'n343'), (344, N'n344'), (345, N'n345'), (346, N'n346'), (347, N'n347'), (348, N'n348'), (349, N'n349'), (350, N'n350'), (351, N'n351'), (352, N'n352'), (353, N'n353'), (354, N'n354'), (355, N'n355'), (356, N'n356'), (357, N'n357'), (358, N'n358'), (359, N'n359'), (360, N'n360'), (361, N'n361'), (362, N'n362'), (363, N'n363'), (364, N'n364'), (365, N'n365'), (366, N'n366'), (367, N'n367'), (368, N'n368'), (369, N'n369'), (370, N'n370'), (371, N'n371'), (372, N'n372'), (373, N'n373'), (374, N'n374'), (375, N'n375'), (376, N'n376'), (377, N'n377'), (378, N'n378'), (379, N'n379'), (380, N'n380'), (381, N'n381'), (382, N'n382'), (383, N'n383'), (384, N'n384'), (385, N'n385'), (386, N'n386'), (387, N'n387'), (388, N'n388'), (389, N'n389'), (390, N'n390'), (391, N'n391'), (392, N'n392'), (393, N'n393'), (394, N'n394'), (395, N'n395'), (396, N'n396'), (397, N'n397'), (398, N'n398'), (399, N'n399'), (400, N'n400'), (401, N'n401'), (402, N'n402'), (403, N'n403'), (404, N'n404'), (405, N'n405'), (406, N'n406'), (407, N'n407'), (408, N'n408'), (409, N'n409'), (410, N'n410'), (411, N'n411'), (412, N'n412'), (413, N'n413'), (414, N'n414'), (415, N'n415'), (416, N'n416'), (417, N'n417'), (418, N'n418'), (419, N'n419'), (420, N'n420'), (421, N'n421'), (422, N'n422'), (423, N'n423'), (424, N'n424'), (425, N'n425'), (426, N'n426'), (427, N'n427'), (428, N'n428'), (429, N'n429'), (430, N'n430'), (431, N'n431'), (432, N'n432'), (433, N'n433'), (434, N'n434'), (435, N'n435'), (436, N'n436'), (437, N'n437'), (438, N'n438'), (439, N'n439'), (440, N'n440'), (441, N'n441'), (442, N'n442'), (443, N'n443'), (444, N'n444'), (445, N'n445'), (446, N'n446'), (447, N'n447'), (448, N'n448'), (449, N'n449'), (450, N'n450'), (451, N'n451'), (452, N'n452'), (453, N'n453'), (454, N'n454'), (455, N'n455'), (456, N'n456'), (457, N'n457'), (458, N'n458'), (459, N'n459'), (460, N'n460'), (461, N'n461'), (462, N'n462'), (463, N'n463'), (464, N'n464'), (465, N'n465'), (466, N'n466'), (467, N'n467'), (468, N'n468'), (469, N'n469'), (470, N'n470'), (471, N'n471'), (472, N'n472'), (473, N'n473'), (474, N'n474'), (475, N'n475'), (476, N'n476'), (477, N'n477'), (478, N'n478'), (479, N'n479'), (480, N'n480'), (481, N'n481'), (482, N'n482'), (483, N'n483'), (484, N'n484'), (485, N'n485'), (486, N'n486'), (487, N'n487'), (488, N'n488'), (489, N'n489'), (490, N'n490'), (491, N'n491'), (492, N'n492'), (493, N'n493'), (494, N'n494'), (495, N'n495'), (496, N'n496'), (497, N'n497'), (498, N'n498'), (499, N'n499')
;;
UPDATE dbo.t SET name = N'x'
;;
