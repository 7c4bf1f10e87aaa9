-- sources: postgres
create table t (id int primary key, a int);
insert into t values (1, 1);
-- the pipeline is started
insert into t values (2, 2);
alter table t rename column a to a2;
update t set a2 = 3 where id = 1;
