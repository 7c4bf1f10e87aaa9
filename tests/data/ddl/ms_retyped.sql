-- sources: sqlserver
create table this.[t] ([id] int not null primary key, [n] decimal(14,4), [m] datetime2(6), [v] nvarchar(20));
insert into this.[t] ([id], [n], [m], [v]) values (1, 1.2345, '2024-01-02T03:04:05.678901', N'é'), (2, -3.5, null, 'b');
-- the pipeline is started
update this.[t] set [v] = 'c' where [id] = 2;
-- a pause of 1
alter table this.[t] alter column [n] int null;
alter table this.[t] alter column [m] datetime2(3) null;
insert into this.[t] ([id], [n], [m], [v]) values (3, 5, '2024-01-02T03:04:05.678', 'x');
-- a pause of 1
alter table this.[t] alter column [v] nvarchar(40) null;
insert into this.[t] ([id], [n], [m], [v]) values (4, 6, null, 'wider than twenty characters');
alter table this.[t] drop column [n];
alter table this.[t] add [n] int null;
update this.[t] set [n] = 2 where [id] = 2;
