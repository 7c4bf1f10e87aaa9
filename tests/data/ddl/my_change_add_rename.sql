-- sources: mysql mariadb
create table t (id int primary key, c2 int);
insert into t values (1, 1);
-- the pipeline is started
alter table t change column c2 v bigint, add column c2 int default 3;
alter table t rename column c2 to k;
insert into t values (2, 2, 2);
