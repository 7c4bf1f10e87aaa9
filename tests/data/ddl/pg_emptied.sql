-- sources: postgres
create table t (id int primary key, a int);
insert into t values (1, 1);
-- the pipeline is started
truncate t;
alter table t add column b int;
alter table t rename column a to c;
