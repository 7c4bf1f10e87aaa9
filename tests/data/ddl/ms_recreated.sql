-- sources: sqlserver
create table this.[t] ([id] int not null primary key, [v] varchar(20));
insert into this.[t] ([id], [v]) values (1, 'a'), (2, 'b');
-- the pipeline is started
update this.[t] set [id] = 3 where [id] = 1;
-- a pause of 1
drop table this.[t];
create table this.[t] ([nr] bigint not null primary key, [w] nvarchar(max));
insert into this.[t] ([nr], [w]) values (1, 'new');
-- a pause of 2
insert into this.[t] ([nr], [w]) values (2, 'later');
