-- sources: mysql mariadb
create table t (id int primary key, c int);
insert into t values (1, 1), (2, 2);
-- the pipeline is started
alter table t drop column c, add column c int;
insert into t values (3, 3);
-- a pause of 1
alter table t drop column c, add column c int default 9;
insert into t values (4, 4);
