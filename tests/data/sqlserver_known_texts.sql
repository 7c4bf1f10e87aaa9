ALTER TABLE [dbo].[child] NOCHECK CONSTRAINT [fk_child]
;;
ALTER TABLE [dbo].[child] WITH CHECK CHECK CONSTRAINT [fk_child]
;;
ALTER TABLE [dbo].[purchase_line] WITH CHECK ADD CONSTRAINT [purchase_line_purchase_id_fkey] FOREIGN KEY ([purchase_id]) REFERENCES [dbo].[purchase] ([id]) ON DELETE CASCADE ON UPDATE NO ACTION
;;
ALTER TABLE [dbo].[sale] WITH CHECK ADD CONSTRAINT [sale_shop] FOREIGN KEY ([shop]) REFERENCES [dbo].[shop] ([id]) ON DELETE NO ACTION ON UPDATE NO ACTION
;;
ALTER TABLE [dbo].[shop] ADD CONSTRAINT [pk_shop] PRIMARY KEY ([id])
;;
ALTER TABLE [dbo].[t] ADD [more] int NOT NULL CONSTRAINT [penstock_t_more] DEFAULT (CAST(N'7' AS int)) WITH VALUES
;;
ALTER TABLE [dbo].[t] ADD [more] int NULL
;;
ALTER TABLE [dbo].[t] ADD [more] int NULL CONSTRAINT [penstock_t_more] DEFAULT (CAST(N'7' AS int)) WITH VALUES
;;
ALTER TABLE [dbo].[t] ALTER COLUMN [key] int NOT NULL
;;
ALTER TABLE [dbo].[t] ALTER COLUMN [n] bigint NULL
;;
ALTER TABLE [dbo].[t] DISABLE TRIGGER [audit]
;;
ALTER TABLE [dbo].[t] DROP COLUMN [n]
;;
ALTER TABLE [dbo].[t] ENABLE TRIGGER [audit]
;;
ALTER TABLE [t0].[Item] ADD CONSTRAINT [df_Item_a] DEFAULT (N'a') FOR [a]
;;
ALTER TABLE [t0].[Item] ADD CONSTRAINT [df_Item_c2] DEFAULT (7) FOR [c2]
;;
ALTER TABLE [t0].[n] ADD CONSTRAINT [df_n_c1] DEFAULT (SYSDATETIMEOFFSET()) FOR [c1]
;;
ALTER TABLE [t2].[t] ADD [id] bigint NOT NULL
;;
ALTER TABLE [t2].[t] DROP CONSTRAINT [df_t_Foo]
;;
BEGIN TRANSACTION
;;
COMMIT TRANSACTION
;;
CREATE INDEX [d] ON [dbo].[t] ([n] DESC, [id]) INCLUDE ([name])
;;
CREATE SCHEMA [fence_copy]
;;
CREATE SCHEMA wirekite
;;
CREATE TABLE [dbo].[customer] (
    [id] bigint IDENTITY(1,1) NOT NULL,
    [email] nvarchar(450) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [name] nvarchar(160) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [born_on] date NULL,
    [balance] decimal(12,2) NOT NULL,
    [active] bit NOT NULL,
    [tags] nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [preferences] nvarchar(max) COLLATE Latin1_General_100_BIN2 NULL,
    [token] uniqueidentifier NOT NULL,
    [last_address] nvarchar(86) COLLATE Latin1_General_100_BIN2 NULL,
    [created_at] datetimeoffset(6) NOT NULL,
    [points] int NOT NULL
)
;;
CREATE UNIQUE INDEX [by_code] ON [dbo].[shop] ([code]) WHERE [code] IS NOT NULL
;;
CREATE UNIQUE INDEX [u] ON [dbo].[t] ([n]) WHERE n IS NOT NULL
;;
DECLARE @outcome int; EXEC @outcome = sp_getapplock @Resource = @P1, @LockMode = 'Shared', @LockOwner = 'Session', @LockTimeout = 0; SELECT @outcome AS outcome
;;
DELETE FROM [dbo].[parent] WHERE ([id] = 1) OR ([id] = 3)
;;
DELETE FROM [dbo].[t];
;;
DELETE t
  FROM [dbo].[beside] AS t
  JOIN [wirekite].[beside_wkm] AS m ON t.[id] = m.[id]
;;
DELETE t
  FROM [dbo].[named] AS t
  JOIN [wirekite].[named_wkm] AS m ON t.[k] = CAST(m.[k] AS nvarchar(40)) COLLATE Latin1_General_100_BIN2 AND DATALENGTH(t.[k]) = DATALENGTH(m.[k])
 WHERE m.[wk$n] < 0
;;
DELETE t
  FROM [dbo].[t] AS t
 WHERE NOT EXISTS (SELECT 1 FROM [wirekite].[t_wkm] AS m WHERE m.[wk$n] > 0 AND t.[id] = m.[id])
;;
DROP INDEX [by_code] ON [dbo].[shop]
;;
DROP SCHEMA wirekite;
;;
DROP TABLE IF EXISTS [wirekite].[bulk_8951bcd38b7a65fa_1_2075da5a_0]
;;
DROP TABLE [wirekite].[t_wkm];
;;
EXEC sp_describe_undeclared_parameters
;;
EXEC sp_getapplock @Resource = @P1, @LockMode = 'Exclusive', @LockOwner = 'Transaction'
;;
EXEC sp_getapplock @Resource = N'penstock wirekite', @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 30000
;;
EXEC sp_rename N'[dbo].[t].[name]', N'title', N'COLUMN'
;;
EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'late', @role_name = NULL, @supports_net_changes = 0;
;;
IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION
;;
INSERT BULK [wirekite].[bulk_8951bcd38b7a65fa_1_2075da5a_0] ([id] int, [a] nvarchar(max) COLLATE Latin1_General_100_BIN2, [b] int, [c2] int) WITH (KEEP_NULLS, TABLOCK)
;;
INSERT INTO [dbo].[bag] ([a], [b])
SELECT m.[a], m.[b]
  FROM [wirekite].[bag_wkm] AS m
 CROSS JOIN (VALUES (0), (1)) AS b1(x)
 CROSS JOIN (VALUES (0), (1)) AS b2(x)
 WHERE m.[wk$n] > 0 AND m.[wk$n] & 4 = 4
;;
INSERT INTO [dbo].[every3] ([id], [c0], [c1], [c2], [c3], [c4], [c5])
SELECT m.[id], m.[c0], m.[c1], m.[c2], hierarchyid::Parse(m.[c3]), CASE WHEN SUBSTRING(m.[c4], 9, 1) IN ('2', '3') THEN geometry::STGeomFromWKB(CONVERT(varbinary(max), STUFF(STUFF(m.[c4], 11, 8, ''), 9, 1, '0'), 2), CONVERT(int, CONVERT(binary(4), SUBSTRING(m.[c4], 17, 2) + SUBSTRING(m.[c4], 15, 2) + SUBSTRING(m.[c4], 13, 2) + SUBSTRING(m.[c4], 11, 2), 2))) ELSE geometry::STGeomFromWKB(CONVERT(varbinary(max), m.[c4], 2), 0) END, CASE WHEN SUBSTRING(m.[c5], 9, 1) IN ('2', '3') THEN geography::STGeomFromWKB(CONVERT(varbinary(max), STUFF(STUFF(m.[c5], 11, 8, ''), 9, 1, '0'), 2), CONVERT(int, CONVERT(binary(4), SUBSTRING(m.[c5], 17, 2) + SUBSTRING(m.[c5], 15, 2) + SUBSTRING(m.[c5], 13, 2) + SUBSTRING(m.[c5], 11, 2), 2))) ELSE geography::STGeomFromWKB(CONVERT(varbinary(max), m.[c5], 2), 0) END
  FROM [wirekite].[bulk_f6255156667d098f_1_6cde7c8b_0] AS m
;;
INSERT INTO [dbo].[named] ([k], [v])
SELECT m.[k], m.[v]
  FROM [wirekite].[named_wkm] AS m
 WHERE m.[wk$n] > 0 AND NOT EXISTS (SELECT 1 FROM [dbo].[named] AS t WHERE t.[k] = CAST(m.[k] AS nvarchar(40)) COLLATE Latin1_General_100_BIN2 AND DATALENGTH(t.[k]) = DATALENGTH(m.[k]))
;;
INSERT INTO [dbo].[shop] ([id], [code], [price])
SELECT m.[id], m.[code], CAST(m.[price] AS decimal(10,2))
  FROM [wirekite].[bulk_e26d9cd1dae99fe1_0_4777ad38_1] AS m
;;
INSERT INTO [dbo].[t] ([id], [name], [n])
SELECT m.[id], m.[name], m.[n]
  FROM [wirekite].[t_wkm] AS m
 WHERE m.[wk$n] > 0 AND NOT (m.[wk$absent] IS NOT NULL AND m.[id] = m.[wk$key1]) AND NOT EXISTS (SELECT 1 FROM [dbo].[t] AS t WHERE t.[id] = m.[id])
;;
KILL 464
;;
MERGE INTO wirekite.bulk_table WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS source_schema, @P2 AS source_name, @P3 AS [plan], @P4 AS position, SYSUTCDATETIME() AS start_time) AS s
   ON (t.source_schema = s.source_schema AND t.source_name = s.source_name)
 WHEN MATCHED THEN UPDATE SET [plan] = s.[plan], position = s.position, start_time = s.start_time, row_count = null, finish_time = null
 WHEN NOT MATCHED THEN INSERT (source_schema, source_name, [plan], position, start_time) VALUES (s.source_schema, s.source_name, s.[plan], s.position, s.start_time);
;;
MERGE INTO wirekite.wirekite_apart WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS source_schema, @P2 AS source_name, @P3 AS state, @P4 AS copy_id, @P5 AS start_position, @P6 AS applied_segment, @P7 AS applied_gsn, @P8 AS applied_trx, @P9 AS applied_position, SYSUTCDATETIME() AS since) AS s
   ON (t.source_schema = s.source_schema AND t.source_name = s.source_name)
 WHEN MATCHED THEN UPDATE SET state = s.state, copy_id = s.copy_id, start_position = s.start_position, applied_segment = s.applied_segment, applied_gsn = s.applied_gsn, applied_trx = s.applied_trx, applied_position = s.applied_position, since = s.since
 WHEN NOT MATCHED THEN INSERT (source_schema, source_name, state, copy_id, start_position, applied_segment, applied_gsn, applied_trx, applied_position, since) VALUES (s.source_schema, s.source_name, s.state, s.copy_id, s.start_position, s.applied_segment, s.applied_gsn, s.applied_trx, s.applied_position, s.since);
;;
MERGE INTO wirekite.wirekite_log WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT 1 AS only_row, @P1 AS log_id) AS s
   ON (t.only_row = s.only_row)
 WHEN NOT MATCHED THEN INSERT (only_row, log_id) VALUES (s.only_row, s.log_id);
;;
MERGE INTO wirekite.wirekite_merge WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS merge_name, @P2 AS stamp, @P3 AS shape) AS s
   ON (t.merge_name = s.merge_name)
 WHEN MATCHED THEN UPDATE SET stamp = s.stamp, shape = s.shape
 WHEN NOT MATCHED THEN INSERT (merge_name, stamp, shape) VALUES (s.merge_name, s.stamp, s.shape);
;;
MERGE INTO wirekite.wirekite_progress WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS source, @P2 AS target, @P3 AS operation, @P4 AS mark, @P5 AS table_name, 'F' AS transmission, SYSUTCDATETIME() AS start_time) AS s
   ON (t.source = s.source AND t.target = s.target)
 WHEN MATCHED THEN UPDATE SET restarts = t.restarts + case when t.finish_time is null then 1 else 0 end
 WHEN NOT MATCHED THEN INSERT (source, target, operation, mark, table_name, transmission, start_time) VALUES (s.source, s.target, s.operation, s.mark, s.table_name, s.transmission, s.start_time);
;;
MERGE INTO wirekite.wirekite_progress WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS source, @P2 AS target, @P3 AS operation, @P4 AS mark, @P5 AS table_name, 'F' AS transmission, SYSUTCDATETIME() AS start_time, case when @P6 = 1 then SYSUTCDATETIME() end AS finish_time) AS s
   ON (t.source = s.source AND t.target = s.target)
 WHEN MATCHED THEN UPDATE SET mark = s.mark, operation = s.operation, finish_time = s.finish_time
 WHEN NOT MATCHED THEN INSERT (source, target, operation, mark, table_name, transmission, start_time, finish_time) VALUES (s.source, s.target, s.operation, s.mark, s.table_name, s.transmission, s.start_time, s.finish_time);
;;
MERGE INTO wirekite.wirekite_table WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS source_schema, @P2 AS source_name, @P3 AS target_schema, @P4 AS target_name, @P5 AS merge_name, @P6 AS made, @P7 AS columns) AS s
   ON (t.source_schema = s.source_schema AND t.source_name = s.source_name)
 WHEN MATCHED THEN UPDATE SET target_schema = s.target_schema, target_name = s.target_name, merge_name = s.merge_name, made = t.made | s.made, columns = s.columns
 WHEN NOT MATCHED THEN INSERT (source_schema, source_name, target_schema, target_name, merge_name, made, columns) VALUES (s.source_schema, s.source_name, s.target_schema, s.target_name, s.merge_name, s.made, s.columns);
;;
MERGE INTO wirekite.wirekite_table WITH (UPDLOCK, HOLDLOCK) AS t
USING (SELECT @P1 AS source_schema, @P2 AS source_name, @P3 AS target_schema, @P4 AS target_name, @P5 AS merge_name, @P6 AS made, @P7 AS columns) AS s
   ON (t.source_schema = s.source_schema AND t.source_name = s.source_name) OR (t.merge_name = s.merge_name)
 WHEN NOT MATCHED THEN INSERT (source_schema, source_name, target_schema, target_name, merge_name, made, columns) VALUES (s.source_schema, s.source_name, s.target_schema, s.target_name, s.merge_name, s.made, s.columns);
;;
SELECT 0, COUNT_BIG(*), COUNT_BIG(CASE WHEN [wk$stamp] = 3198378925674178883 THEN 1 END) FROM [wirekite].[t_wkm] WITH (TABLOCK, HOLDLOCK)
;;
SELECT 0, COUNT_BIG(*), COUNT_BIG(CASE WHEN [wk$stamp] = 859460082229783123 THEN 1 END) FROM [wirekite].[Item_wkm] WITH (TABLOCK, HOLDLOCK) UNION ALL SELECT 1, COUNT_BIG(*), COUNT_BIG(CASE WHEN [wk$stamp] = 2235415044585498408 THEN 1 END) FROM [wirekite].[f_wkm] WITH (TABLOCK, HOLDLOCK)
;;
SELECT 1 FROM sys.schemas WHERE name = @P1
;;
SELECT @@TRANCOUNT;

DECLARE @Column_Names NVARCHAR(MAX) = NULL;
DECLARE @object_id INT = OBJECT_ID(N'[wirekite].[bulk_8951bcd38b7a65fa_1_2075da5a_0]');
DECLARE @sql NVARCHAR(MAX);
SET @sql = N'SELECT @CN = COALESCE(@CN + N'', '', N'''') + QUOTENAME([name]) FROM sys.all_columns WHERE [object_id] = @ObjId';
IF EXISTS (SELECT TOP 1 * FROM sys.all_columns WHERE [object_id] = OBJECT_ID('sys.all_columns') AND [name] = 'graph_type')
    SET @sql = @sql + N' AND COALESCE([graph_type], 0) NOT IN (1, 3, 4, 6, 7)';
SET @sql = @sql + N' ORDER BY [column_id] ASC';
EXEC sp_executesql @sql, N'@CN NVARCHAR(MAX) OUTPUT, @ObjId INT', @CN = @Column_Names OUTPUT, @ObjId = @object_id;

SELECT @Column_Names = COALESCE(@Column_Names, '*');

SET FMTONLY ON;
EXEC(N'SELECT ' + @Column_Names + N' FROM [wirekite].[bulk_8951bcd38b7a65fa_1_2075da5a_0]');
SET FMTONLY OFF;

EXEC sp_tablecollations_100 N'[wirekite].[bulk_8951bcd38b7a65fa_1_2075da5a_0]';
;;
SELECT COALESCE(SUM(CASE WHEN m.[wk$n] < 0 THEN -m.[wk$n] ELSE 0 END), 0), COALESCE(SUM(CASE WHEN m.[wk$n] > 0 THEN m.[wk$n] ELSE 0 END), 0), COALESCE(MAX(m.[wk$n]), 0) FROM [wirekite].[bag_wkm] AS m
;;
SELECT CONVERT(int, @@SPID) AS number
;;
SELECT CONVERT(int, value_in_use) FROM sys.configurations WHERE name = @P1
;;
SELECT CONVERT(nvarchar(128), SERVERPROPERTY('ProductVersion')) AS version, CONVERT(nvarchar(128), SERVERPROPERTY('Edition')) AS edition, CONVERT(int, SERVERPROPERTY('EngineEdition')) AS engine_edition, DB_NAME() AS database_name, SUSER_SNAME() AS login_name, USER_NAME() AS user_name
;;
SELECT CONVERT(nvarchar(36), service_broker_guid) AS guid FROM sys.databases WHERE name = DB_NAME()
;;
SELECT CONVERT(nvarchar(60), DATABASEPROPERTYEX(DB_NAME(), 'Updateability')) AS updateability
;;
SELECT CONVERT(nvarchar(60), SQL_VARIANT_PROPERTY([v], 'BaseType')) + ':' + CASE CONVERT(nvarchar(60), SQL_VARIANT_PROPERTY([v], 'BaseType')) WHEN 'money' THEN CONVERT(nvarchar(max), CONVERT(money, [v]), 2) WHEN 'smallmoney' THEN CONVERT(nvarchar(max), CONVERT(smallmoney, [v]), 2) WHEN 'float' THEN CONVERT(nvarchar(max), CONVERT(float, [v]), 3) WHEN 'real' THEN CONVERT(nvarchar(max), CONVERT(real, [v]), 3) WHEN 'date' THEN CONVERT(nvarchar(max), CONVERT(date, [v]), 23) WHEN 'time' THEN CONVERT(nvarchar(max), CONVERT(time, [v]), 121) WHEN 'datetime' THEN CONVERT(nvarchar(max), CONVERT(datetime, [v]), 126) WHEN 'smalldatetime' THEN CONVERT(nvarchar(max), CONVERT(smalldatetime, [v]), 126) WHEN 'datetime2' THEN CONVERT(nvarchar(max), CONVERT(datetime2, [v]), 126) WHEN 'datetimeoffset' THEN CONVERT(nvarchar(max), CONVERT(datetimeoffset, [v]), 126) WHEN 'binary' THEN CONVERT(nvarchar(max), CONVERT(varbinary(8000), [v]), 1) WHEN 'varbinary' THEN CONVERT(nvarchar(max), CONVERT(varbinary(8000), [v]), 1) ELSE CONVERT(nvarchar(max), [v]) END AS [v] FROM [dbo].[t39] ORDER BY [id]
;;
SELECT CONVERT(varchar(11), [v].STSrid) + ':' + CONVERT(varchar(max), [v].AsBinaryZM(), 2) AS [v] FROM [dbo].[t41] ORDER BY [id]
;;
SELECT CONVERT(varchar(25), last_commit_lsn) AS lsn FROM sys.dm_hadr_database_replica_states WHERE database_id = DB_ID() AND is_local = 1
;;
SELECT CONVERT(varchar(34), [v], 126) FROM [dbo].[k] WHERE [v] >= CONVERT(datetime2(7), '2026-01-01T00:00:00.0000006', 126) AND [v] < CONVERT(datetime2(7), '2026-01-01T00:00:00.0000012', 126)
;;
SELECT CONVERT(varchar(36), [g]) AS k0, CONVERT(varchar(41), [n]) AS k1 FROM [dbo].[keyed] WHERE ([g] >= CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007') AND (([g] > CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007')) OR ([g] = CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007') AND [n] >= 7))) ORDER BY [g], [n] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT CONVERT(varchar(41), [purchase_id]) AS k0, CONVERT(varchar(41), [line]) AS k1 FROM [dbo].[purchase_line] WHERE ([purchase_id] >= 19135 AND (([purchase_id] > 19135) OR ([purchase_id] = 19135 AND [line] >= 1))) ORDER BY [purchase_id], [line] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT CONVERT(varchar(41), [v]) AS k0 FROM [dbo].[k] WHERE [v] >= -14 ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT CONVERT(varchar(max), [v], 1) AS k0 FROM [dbo].[k] WHERE [v] >= 0x0006 ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT COUNT(*) FROM sys.tables WHERE object_id = @P1
;;
SELECT COUNT_BIG(*), COALESCE(SUM(CASE WHEN m.[wk$absent] IS NOT NULL AND m.[sku] = m.[wk$key1] AND DATALENGTH(m.[sku]) = DATALENGTH(m.[wk$key1]) THEN 1 ELSE 0 END), 0) FROM [wirekite].[product_wkm] AS m WHERE m.[wk$absent] IS NOT NULL
;;
SELECT COUNT_BIG(CASE WHEN m.[v] IS NULL AND (m.[wk$absent] IS NULL OR CAST(SUBSTRING(m.[wk$absent], 1, 1) AS int) & 2 = 0) THEN 1 END) FROM [wirekite].[strict_wkm] AS m WHERE m.[wk$n] > 0
;;
SELECT DB_NAME() AS name
;;
SELECT DISTINCT CONVERT(int, l.request_session_id) AS session_id FROM sys.dm_tran_locks AS l JOIN sys.dm_exec_sessions AS s ON s.session_id = l.request_session_id WHERE l.resource_type = N'OBJECT' AND l.request_status = N'GRANT' AND l.resource_associated_entity_id = OBJECT_ID(@P1, N'U') AND l.request_session_id <> @@SPID AND s.login_name = SUSER_SNAME()
;;
SELECT HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'CREATE TABLE') AS creates, HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'CREATE SCHEMA') AS makes_schemas
;;
SELECT MAX([Current LSN]) AS lsn FROM sys.fn_dblog(NULL, NULL) WHERE Operation = 'LOP_COMMIT_XACT'
;;
SELECT OBJECT_ID(@P1, N'U')
;;
SELECT TOP (0) * FROM [dbo].[bag]
;;
SELECT TOP (1) 1 AS one FROM [dbo].[u] AS t WHERE (t.[more] IS NOT NULL OR t.[n] IS NOT NULL)
;;
SELECT TOP (1) 1 AS one FROM [h1].[t] AS t WHERE (t.[q"uote] IS NOT NULL) AND NOT EXISTS (SELECT 1 AS one FROM [cdc].[h1_i17330_CT] AS c WHERE c.[id] = t.[id] AND c.[__$operation] IN (2, 4) AND c.[__$start_lsn] >= CAST(@P1 AS binary(10)))
;;
SELECT TOP (1) 1 FROM [dbo].[shop]
;;
SELECT TOP (1) DATEDIFF(minute, tran_end_time, GETDATE()) AS age_minutes FROM cdc.lsn_time_mapping WHERE start_lsn > CAST(@P1 AS binary(10)) ORDER BY start_lsn
;;
SELECT TOP (1) latency, DATEDIFF(second, end_time, GETDATE()) AS age_s FROM sys.dm_cdc_log_scan_sessions WHERE session_id > 0 ORDER BY session_id DESC
;;
SELECT TOP (1) session_id, start_time, end_time, tran_count, empty_scan_count, GETDATE() AS now_local FROM sys.dm_cdc_log_scan_sessions WHERE session_id > 0 AND scan_phase = N'Done' ORDER BY session_id DESC
;;
SELECT TOP (5) error_number, error_message FROM sys.dm_cdc_errors WHERE entry_time > DATEADD(day, -1, GETDATE()) ORDER BY entry_time DESC
;;
SELECT TOP (5) source, mark, start_time, finish_time
    FROM wirekite.wirekite_progress
    WHERE operation = 'CE'
    ORDER BY start_time DESC
;;
SELECT TOP (@P1) start_lsn, tran_end_time, tran_id FROM cdc.lsn_time_mapping WHERE start_lsn > CAST(@P2 AS binary(10)) AND start_lsn <= CAST(@P3 AS binary(10)) AND tran_id <> 0x00 ORDER BY start_lsn
;;
SELECT [__$start_lsn], [__$command_id], [__$seqval], [__$operation], [__$update_mask], [id], [sp ace], CONVERT(varchar(34), [order], 126) AS [order], [a'p] FROM [cdc].[h0_i17232_CT] WHERE [__$start_lsn] >= CAST(@P1 AS binary(10)) AND [__$start_lsn] <= CAST(@P2 AS binary(10)) ORDER BY [__$start_lsn], [__$command_id], [__$seqval], [__$operation] OPTION (RECOMPILE)
;;
SELECT [g], [n] FROM [dbo].[keyed] WHERE ([g] >= CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007') AND (([g] > CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007')) OR ([g] = CONVERT(uniqueidentifier, '00000000-0000-0D88-9000-000000000007') AND [n] >= 7))) AND ([g] <= CONVERT(uniqueidentifier, '00000000-0000-1B11-2000-00000000000E') AND (([g] < CONVERT(uniqueidentifier, '00000000-0000-1B11-2000-00000000000E')) OR ([g] = CONVERT(uniqueidentifier, '00000000-0000-1B11-2000-00000000000E') AND [n] < 14)))
;;
SELECT [purchase_id], [line], [sku], [quantity], [unit_price], [weight] FROM [dbo].[purchase_line] WHERE ([purchase_id] <= 19135 AND (([purchase_id] < 19135) OR ([purchase_id] = 19135 AND [line] < 1)))
;;
SELECT [v] AS [__key0], [w] AS [__key1], [f] AS [__key2], [b] AS [__key3], CONVERT(varchar(34), [d], 126) AS [__key4], [v] AS v0, [w] AS v1, CONVERT(varchar(40), [f], 3) AS v2, CONVERT(varchar(max), [b], 1) AS v3, CONVERT(varchar(34), [d], 126) AS v4, DATALENGTH([v]) AS n0, DATALENGTH([w]) AS n1, 0 AS n2, DATALENGTH([b]) AS n3, 0 AS n4 FROM [dbo].[bag]
;;
SELECT [v] AS k0 FROM [dbo].[k] WHERE [v] >= 'a14' COLLATE SQL_Latin1_General_CP1_CI_AS ORDER BY [v] OFFSET @P1 ROWS FETCH NEXT 1 ROWS ONLY
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= 'a14' COLLATE SQL_Latin1_General_CP1_CI_AS AND [v] < 'a2' COLLATE SQL_Latin1_General_CP1_CI_AS
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= -14 AND [v] < -8
;;
SELECT [v] FROM [dbo].[k] WHERE [v] >= -2 AND [v] < 4
;;
SELECT [v].ToString() AS [v] FROM [dbo].[t40] ORDER BY [id]
;;
SELECT c.column_id, c.name, c.system_type_id, c.max_length, c.precision, c.scale FROM sys.columns AS c JOIN sys.tables AS t ON t.object_id = c.object_id JOIN sys.schemas AS s ON s.schema_id = t.schema_id WHERE s.name = @P1 AND t.name = @P2 ORDER BY c.column_id
;;
SELECT c.object_id FROM sys.columns AS c JOIN cdc.change_tables AS ct ON ct.object_id = c.object_id WHERE c.name = N'__$command_id'
;;
SELECT c.object_id, c.column_id, c.name, b.name AS base_name, y.name AS own_name, c.max_length, c.precision, c.scale, c.is_nullable, c.is_identity, c.collation_name, d.definition AS default_text, cc.definition AS computed_text, cc.is_persisted FROM sys.columns AS c JOIN sys.tables AS t ON t.object_id = c.object_id JOIN sys.types AS y ON y.user_type_id = c.user_type_id LEFT JOIN sys.types AS b ON b.user_type_id = c.system_type_id LEFT JOIN sys.default_constraints AS d ON d.object_id = c.default_object_id LEFT JOIN sys.computed_columns AS cc ON cc.object_id = c.object_id AND cc.column_id = c.column_id WHERE t.is_ms_shipped = 0 ORDER BY c.object_id, c.column_id
;;
SELECT c.object_id, c.name, c.collation_name FROM sys.columns AS c JOIN sys.types AS ty ON ty.user_type_id = c.user_type_id WHERE c.collation_name IS NOT NULL AND ty.name IN (N'char', N'varchar', N'text')
;;
SELECT cc.object_id, cc.column_ordinal, cc.column_name, cc.column_id, cc.is_computed, ty.name AS type_name, c.max_length, c.precision, c.scale, sc.name AS source_name FROM cdc.captured_columns AS cc JOIN cdc.change_tables AS ct ON ct.object_id = cc.object_id JOIN sys.columns AS c ON c.object_id = cc.object_id AND c.name = cc.column_name JOIN sys.types AS ty ON ty.user_type_id = c.user_type_id LEFT JOIN sys.columns AS sc ON sc.object_id = ct.source_object_id AND sc.column_id = cc.column_id ORDER BY cc.object_id, cc.column_ordinal
;;
SELECT ct.object_id, ct.source_object_id, ct.capture_instance, ct.create_date, ct.start_lsn, sys.fn_cdc_get_min_lsn(ct.capture_instance) AS min_lsn, s.name AS schema_name, t.name AS table_name, (SELECT TOP (1) h.ddl_lsn FROM cdc.ddl_history AS h WHERE h.object_id = ct.object_id ORDER BY h.ddl_lsn DESC) AS ddl_lsn FROM cdc.change_tables AS ct LEFT JOIN sys.tables AS t ON t.object_id = ct.source_object_id LEFT JOIN sys.schemas AS s ON s.schema_id = t.schema_id ORDER BY ct.source_object_id, ct.start_lsn, ct.create_date, ct.object_id
;;
SELECT d.log_reuse_wait_desc, (SELECT used_log_space_in_percent FROM sys.dm_db_log_space_usage) AS used_percent FROM sys.databases AS d WHERE d.name = DB_NAME()
;;
SELECT d.name, d.database_id, d.is_cdc_enabled, CONVERT(nvarchar(128), SERVERPROPERTY('ServerName')) AS server_name, CONVERT(int, SERVERPROPERTY('EngineEdition')) AS engine_edition FROM sys.databases AS d WHERE d.name = DB_NAME()
;;
SELECT delayed_durability_desc FROM sys.databases WHERE name = DB_NAME()
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
SELECT f.parent_object_id, f.name, s.name AS schema_name, r.name AS table_name, pc.name AS column_name, rc.name AS target_name, f.delete_referential_action_desc, f.update_referential_action_desc FROM sys.foreign_keys AS f JOIN sys.foreign_key_columns AS k ON k.constraint_object_id = f.object_id JOIN sys.tables AS r ON r.object_id = f.referenced_object_id JOIN sys.schemas AS s ON s.schema_id = r.schema_id JOIN sys.columns AS pc ON pc.object_id = k.parent_object_id AND pc.column_id = k.parent_column_id JOIN sys.columns AS rc ON rc.object_id = k.referenced_object_id AND rc.column_id = k.referenced_column_id WHERE f.is_disabled = 0 ORDER BY f.parent_object_id, f.name, k.constraint_column_id
;;
SELECT h.source_object_id, h.object_id, h.required_column_update, h.ddl_command, h.ddl_lsn FROM cdc.ddl_history AS h JOIN cdc.change_tables AS ct ON ct.object_id = h.object_id WHERE h.ddl_lsn > CAST(@P1 AS binary(10)) AND h.ddl_lsn <= CAST(@P2 AS binary(10)) ORDER BY h.ddl_lsn
;;
SELECT i.object_id, i.index_id, i.name, i.type, i.is_primary_key, i.is_unique, i.is_unique_constraint, i.filter_definition, i.is_disabled, c.name AS column_name, x.is_descending_key, x.is_included_column FROM sys.indexes AS i JOIN sys.tables AS t ON t.object_id = i.object_id JOIN sys.index_columns AS x ON x.object_id = i.object_id AND x.index_id = i.index_id JOIN sys.columns AS c ON c.object_id = x.object_id AND c.column_id = x.column_id WHERE t.is_ms_shipped = 0 ORDER BY i.object_id, i.index_id, x.key_ordinal, x.index_column_id
;;
SELECT job_type, maxtrans, retention FROM msdb.dbo.cdc_jobs WHERE database_id = DB_ID()
;;
SELECT m.oldest, m.newest, w.tran_end_time, w.tran_id FROM (SELECT MIN(start_lsn) AS oldest, MAX(start_lsn) AS newest FROM cdc.lsn_time_mapping) AS m LEFT JOIN cdc.lsn_time_mapping AS w ON w.start_lsn = CAST(@P1 AS binary(10))
;;
SELECT merge_name, shape FROM wirekite.wirekite_merge
;;
SELECT name FROM sys.tables WHERE name = N'sale'
;;
SELECT name FROM sys.tables WHERE schema_id = SCHEMA_ID(N'wirekite') AND name IN ('wirekite_progress', 'wirekite_action', 'wirekite_log', 'wirekite_staged', 'wirekite_table', 'wirekite_apart', 'wirekite_merge', 'bulk_table')
;;
SELECT name FROM sys.tables WHERE schema_id = SCHEMA_ID(N'wirekite') ORDER BY name
;;
SELECT object_id FROM sys.indexes WHERE type = 5
;;
SELECT object_id, name FROM sys.columns WHERE encryption_type IS NOT NULL OR is_column_set = 1
;;
SELECT s.name AS schema_name, t.name AS table_name, t.object_id, t.is_memory_optimized, t.is_external, t.is_filetable, t.temporal_type, t.modify_date, (SELECT SUM(p.rows) FROM sys.partitions AS p WHERE p.object_id = t.object_id AND p.index_id IN (0, 1)) AS row_count, (SELECT SUM(a.used_pages) FROM sys.partitions AS p JOIN sys.allocation_units AS a ON a.container_id = p.partition_id WHERE p.object_id = t.object_id AND p.index_id IN (0, 1)) AS page_count FROM sys.tables AS t JOIN sys.schemas AS s ON s.schema_id = t.schema_id WHERE t.is_ms_shipped = 0 ORDER BY s.name, t.name
;;
SELECT s.name, t.name, f.name, f.is_disabled
      FROM sys.foreign_keys AS f
      JOIN sys.tables AS t ON t.object_id = f.parent_object_id
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
     WHERE f.referenced_object_id = OBJECT_ID(@P1)
     ORDER BY 1, 2, 3
;;
SELECT servicename, status FROM sys.dm_server_services
;;
SELECT snapshot_isolation_state, is_read_committed_snapshot_on, collation_name FROM sys.databases WHERE name = DB_NAME()
;;
SELECT sys.fn_cdc_get_max_lsn() AS max_lsn, SYSUTCDATETIME() AS now_utc, DATEPART(tz, SYSDATETIMEOFFSET()) AS zone_minutes
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
SELECT t.name, i.name, i.is_primary_key, i.is_unique, i.is_unique_constraint,
           i.filter_definition, i.is_disabled, c.name, x.is_included_column, x.is_descending_key,
           i.type
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
SET IDENTITY_INSERT [dbo].[beside] OFF
;;
SET IDENTITY_INSERT [dbo].[beside] ON
;;
SET LOCK_TIMEOUT 5000
;;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
;;
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
;;
SET XACT_ABORT ON
;;
TRUNCATE TABLE [t0].[n]
;;
UPDATE STATISTICS [t2].[k9]
;;
UPDATE [dbo].[t] SET [key] = CAST([id] AS int)
;;
UPDATE m SET [name] = CASE WHEN CAST(SUBSTRING(m.[wk$absent], 1, 1) AS int) & 2 = 2 THEN t.[name] ELSE m.[name] END
  FROM [wirekite].[t_wkm] AS m
  JOIN [dbo].[t] AS t ON t.[id] = m.[wk$key1]
 WHERE m.[wk$absent] IS NOT NULL AND NOT (m.[wk$absent] IS NOT NULL AND m.[id] = m.[wk$key1])
;;
UPDATE t SET [name] = m.[name], [price] = m.[price], [weight_kg] = m.[weight_kg], [size_mm] = m.[size_mm], [readings] = m.[readings], [description] = CASE WHEN CAST(SUBSTRING(m.[wk$absent], 1, 1) AS int) & 64 = 64 THEN t.[description] ELSE m.[description] END, [picture] = m.[picture]
  FROM [dbo].[product] AS t
  JOIN [wirekite].[product_wkm] AS m ON t.[sku] = CAST(m.[sku] AS nvarchar(450)) COLLATE Latin1_General_100_BIN2 AND DATALENGTH(t.[sku]) = DATALENGTH(m.[sku])
 WHERE m.[wk$absent] IS NOT NULL AND m.[sku] = m.[wk$key1] AND DATALENGTH(m.[sku]) = DATALENGTH(m.[wk$key1])
;;
UPDATE t SET [name] = m.[name], [price] = m.[price], [weight_kg] = m.[weight_kg], [size_mm] = m.[size_mm], [readings] = m.[readings], [description] = m.[description], [picture] = m.[picture]
  FROM [dbo].[product] AS t
  JOIN [wirekite].[product_wkm] AS m ON t.[sku] = CAST(m.[sku] AS nvarchar(450)) COLLATE Latin1_General_100_BIN2 AND DATALENGTH(t.[sku]) = DATALENGTH(m.[sku])
 WHERE m.[wk$n] = 1 AND NOT (m.[wk$absent] IS NOT NULL AND m.[sku] = m.[wk$key1] AND DATALENGTH(m.[sku]) = DATALENGTH(m.[wk$key1]))
;;
UPDATE wirekite.wirekite_log WITH (UPDLOCK, HOLDLOCK)
       SET applied_segment = @P1, applied_gsn = @P2, applied_trx = @P3, applied_position = @P4,
           applied_commit = @P5
     WHERE log_id = @P6 AND applied_segment = @P7 AND applied_gsn = @P8 AND applied_position = @P9
;;
WITH copies AS (SELECT d.[a], d.[b], ROW_NUMBER() OVER (PARTITION BY d.[a], d.[b] COLLATE Latin1_General_100_BIN2, DATALENGTH(CAST(d.[b] COLLATE Latin1_General_100_BIN2 AS nvarchar(max))) ORDER BY (SELECT NULL)) AS [wk$number] FROM [dbo].[bag] AS d)
DELETE FROM copies WHERE EXISTS (SELECT 1 FROM [wirekite].[bag_wkm] AS m WHERE m.[wk$n] < 0 AND copies.[wk$number] <= -m.[wk$n] AND EXISTS (SELECT copies.[a], copies.[b] COLLATE Latin1_General_100_BIN2, DATALENGTH(CAST(copies.[b] COLLATE Latin1_General_100_BIN2 AS nvarchar(max))) INTERSECT SELECT CAST(m.[a] AS int), CAST(m.[b] AS nvarchar(20)) COLLATE Latin1_General_100_BIN2, DATALENGTH(CAST(CAST(m.[b] AS nvarchar(20)) COLLATE Latin1_General_100_BIN2 AS nvarchar(max)))))
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
create table wirekite.wirekite_action (
        action nvarchar(8) COLLATE Latin1_General_100_BIN2 not null primary key
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
create table wirekite.wirekite_merge (
        merge_name nvarchar(128) COLLATE Latin1_General_100_BIN2 not null primary key,
        stamp      bigint not null,
        shape      nvarchar(max) COLLATE Latin1_General_100_BIN2 not null
    )
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
insert into wirekite.wirekite_action values ('RUN')
;;
select [plan] from wirekite.bulk_table WITH (HOLDLOCK) where source_schema = @P1 and source_name = @P2 and [plan] = @P3 and finish_time is null
;;
select action from wirekite.wirekite_action WITH (UPDLOCK, HOLDLOCK)
;;
select applied_segment, applied_gsn, applied_trx, applied_position, applied_commit from wirekite.wirekite_log
;;
select coalesce(sum(restarts), 0) from wirekite.wirekite_progress
;;
select log_id from wirekite.wirekite_log WITH (UPDLOCK, HOLDLOCK)
;;
select mark from wirekite.wirekite_progress WITH (UPDLOCK, HOLDLOCK) where source = @P1 and target = 'DL' and finish_time is not null
;;
select source, mark from wirekite.wirekite_progress where operation = 'DL' and table_name = @P1 and finish_time is not null
;;
select source_schema, source_name, [plan], position, row_count, finish_time from wirekite.bulk_table
;;
select source_schema, source_name, state, copy_id, start_position, applied_segment, applied_gsn, applied_trx, applied_position from wirekite.wirekite_apart
;;
select source_schema, source_name, target_schema, target_name, merge_name, made, columns from wirekite.wirekite_table
;;
select table_name, source, mark from wirekite.wirekite_progress where operation = 'DL' and finish_time is not null
;;
select target from wirekite.wirekite_progress where operation = 'CE' and source = @P1 and finish_time is not null
;;
update wirekite.bulk_table set row_count = @P1, finish_time = SYSUTCDATETIME() where source_schema = @P2 and source_name = @P3 and [plan] = @P4
;;
update wirekite.wirekite_action set action = @P1
;;
