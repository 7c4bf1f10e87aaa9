-- sources: mysql mariadb
create table t (id int primary key, u int, unique key u1 (u));
insert into t values (1, 1);
-- the pipeline is started
alter table t drop index u1;
insert into t values (2, 1);
