-- sources: mysql mariadb
create table t (id int primary key, a int default 7);
insert into t values (1, 10);
-- the pipeline is started
insert into t values (2, 20);
alter table t rename column a to b;
insert into t values (3, 30);
