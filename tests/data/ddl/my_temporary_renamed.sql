-- sources: mariadb
create table t (id int primary key);
insert into t values (1);
-- the pipeline is started
create temporary table t (x int);
alter table t rename to t_other;
drop temporary table t_other;
insert into t values (2);
