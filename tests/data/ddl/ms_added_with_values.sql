-- sources: sqlserver
create table this.[t] ([id] int not null primary key, [v] varchar(20), [n] decimal(14,4));
insert into this.[t] ([id], [v], [n]) values (1, 'a', 1.2345), (2, 'b', null), (3, null, -3.5);
-- the pipeline is started
update this.[t] set [v] = 'c' where [id] = 2;
-- a pause of 1
alter table this.[t] add [d] int not null constraint df_1 default 7;
insert into this.[t] ([id], [v], [d]) values (4, 'd', 8);
-- a pause of 1
alter table this.[t] add [m] datetime2(6) not null constraint df_2 default sysutcdatetime();
update this.[t] set [d] = 9 where [id] = 1;
-- a pause of 2
alter table this.[t] add [w] uniqueidentifier null constraint df_3 default newid() with values;
