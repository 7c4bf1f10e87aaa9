-- sources: postgres
create table t (id int primary key, a int);
insert into t values (1, 1);
-- the pipeline is started
alter table t rename column id to b;
insert into t values (2, 2);
