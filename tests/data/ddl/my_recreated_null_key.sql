-- sources: mysql mariadb
create table t (id int primary key, v int);
insert into t values (1, 1), (2, null), (3, 1);
-- the pipeline is started
drop table t;
create table t (v int primary key, id int);
insert into t values (5, 7);
