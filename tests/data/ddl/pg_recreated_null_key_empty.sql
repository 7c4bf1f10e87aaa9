-- sources: postgres
create table t (id int primary key, v int);
insert into t values (1, 1), (2, null);
-- the pipeline is started
drop table t;
create table t (v int primary key, id int);
