-- sources: mysql mariadb
create table t (id int primary key, a int, b int);
insert into t values (1, 1, 2);
-- the pipeline is started
insert into t values (2, 3, 4);
alter table t rename column a to tmp, rename column b to a;
alter table t rename column tmp to b;
insert into t values (3, 5, 6);
-- a pause of 1
alter table t drop column a;
alter table t rename column b to a;
alter table t add column b int default 8;
insert into t (id, a) values (4, 7);
