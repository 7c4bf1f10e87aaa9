-- sources: mysql mariadb
create table t (id int primary key);
insert into t values (1);
-- the pipeline is started
set time_zone = '+05:00';
alter table t add column c timestamp not null default '2024-01-02 03:04:05';
insert into t (id) values (2);
