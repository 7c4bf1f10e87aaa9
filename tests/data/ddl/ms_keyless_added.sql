-- sources: sqlserver
create table this.[k] ([id] int not null, [c] int, [at] datetime);
insert into this.[k] ([id], [c], [at]) values (1, -7, '1999-12-31T23:59:00'), (2, 1, null), (2, 1, null);
-- the pipeline is started
insert into this.[k] ([id]) values (5), (6);
delete from this.[k] where [id] = 1;
-- a pause of 1
alter table this.[k] add [b] datetime2(6) not null constraint df_1 default sysutcdatetime();
update this.[k] set [b] = '2020-02-29T12:00:00' where [id] = 2;
delete from this.[k] where [id] = 5;
-- a pause of 2
alter table this.[k] add [e] int null;
update this.[k] set [e] = 1 where [id] = 6;
