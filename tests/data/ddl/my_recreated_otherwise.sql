-- sources: mysql mariadb
create table t (id int primary key, v int);
insert into t values (1, 1);
-- the pipeline is started
drop table t;
create table t (nr bigint primary key, w varchar(9));
insert into t values (5, 'x');
