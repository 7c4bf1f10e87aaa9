-- sources: mysql mariadb
create table t (id int primary key);
insert into t values (1);
-- the pipeline is started
alter table t add column a year default 70, add column b year default 0, add column c time default 10203, add column d datetime default '2024-01-02 03:04:05.6';
insert into t (id) values (2);
