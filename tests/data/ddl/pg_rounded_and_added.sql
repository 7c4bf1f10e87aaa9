-- sources: postgres
create table t (id int primary key, a numeric);
insert into t values (1, 1.23456), (2, 22.5);
-- the pipeline is started
alter table t alter column a type numeric(10,2), add column b int;
insert into t values (3, 3.789, 3);
