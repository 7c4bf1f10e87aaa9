-- sources: mysql mariadb
create table n (id int primary key, b timestamp null, c datetime null);
insert into n values (1, '2020-02-29 12:00:00', null), (2, null, null);
-- the pipeline is started
insert into n values (3, null, null);
set sql_mode = 'STRICT_ALL_TABLES';
alter table n modify column b timestamp not null;
insert into n values (4, '2020-02-29 12:00:00', null);
