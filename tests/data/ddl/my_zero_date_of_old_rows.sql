-- sources: mysql mariadb
create table t (id int primary key, v int);
insert into t values (1, 1), (2, 2);
-- the pipeline is started
-- a pause of 1
set sql_mode = '';
alter table t add column d datetime not null default '0000-00-00 00:00:00', add column l time default '100:00:00';
insert into t values (3, 3, '2024-01-02 03:04:05', '01:02:03');
-- a pause of 1
update t set v = 5 where id = 3;
