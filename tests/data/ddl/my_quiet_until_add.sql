-- sources: mysql mariadb
create table t (id int primary key);
insert into t values (1);
-- the pipeline is started
-- a pause of 2
alter table t add column c int default 5;
insert into t values (2, 6);
