-- sources: postgres
create table t (id int primary key, v int[], w int);
insert into t values (1, '{1}', 1), (2, '{2}', 2);
-- the pipeline is started
-- a pause of 1
begin;
drop table t;
create table t (nr int primary key, v jsonb, w text);
insert into t values (1, '{}', 'x');
commit;
alter table t add column x int default 5;
insert into t values (2, '[]', 'y', 7);
