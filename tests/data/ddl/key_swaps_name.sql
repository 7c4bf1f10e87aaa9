-- sources: postgres mysql mariadb
create table t (id int primary key, a int, b varchar(20));
insert into t values (1, 10, 'one'), (2, 20, 'two'), (3, 30, 'three');
-- the pipeline is started
alter table t rename column id to tmp;
alter table t rename column a to id;
alter table t rename column tmp to a;
update t set b = 'later' where a = 2;
delete from t where a = 3;
insert into t values (4, 40, 'four');
-- a pause of 1
update t set a = 5 where a = 4;
