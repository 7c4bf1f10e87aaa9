-- sources: mysql mariadb
create table t (id int primary key, v int, y year, b binary(4));
insert into t values (1, 1, 2000, 'x');
-- the pipeline is started
alter table t add x int;
insert into t values (2, 2, 2001, 'y', 1);
alter table t drop v;
insert into t values (3, 2002, 'z', 2);
