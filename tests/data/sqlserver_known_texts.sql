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
