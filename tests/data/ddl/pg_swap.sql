-- sources: postgres
create table t (id int primary key, a int, b int);
insert into t values (1, 1, 2);
-- the pipeline is started
begin;
alter table t rename column a to tmp;
alter table t rename column b to a;
alter table t rename column tmp to b;
commit;
insert into t (id, a, b) values (2, 3, 4);
