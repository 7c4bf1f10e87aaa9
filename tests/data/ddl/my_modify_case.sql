-- sources: mysql mariadb
create table t (id int primary key, Foo int);
insert into t values (1, 1);
-- the pipeline is started
alter table t modify FOO int;
insert into t values (2, 2);
