-- sources: postgres mysql mariadb
create table t (id int primary key, a int, b varchar(20));
insert into t values (1, 10, 'one'), (2, 20, 'two');
-- the pipeline is started
alter table t rename column a to c;
alter table t add column a varchar(20);
insert into t values (3, 30, 'three', 'x');
-- a pause of 1
alter table t rename column b to d;
alter table t rename column a to b;
alter table t add column a int;
insert into t values (4, 40, 'four', 'y', 400);
update t set b = 'z' where id = 1;
