-- sources: postgres mysql mariadb
create table t (id int primary key, v int);
create table b (id int primary key);
insert into t values (1, 1), (2, 2);
-- the pipeline is started
-- a pause of 1
insert into t values (3, 3);
alter table t rename to r2;
insert into b values (1);
truncate table r2;
insert into b values (2);
-- a pause of 2
insert into b values (3);
