-- sources: postgres
create table t (id int primary key, v int);
create table u (id int primary key, v int);
insert into t values (1, 1);
-- the pipeline is started
insert into t values (2, 2);
drop table t;
insert into u values (3, 3);
-- a pause of 2
create table t (nr bigint primary key, w varchar(9));
insert into t values (5, 'x');
