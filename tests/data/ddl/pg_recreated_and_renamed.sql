-- sources: postgres
create table t (id int primary key, v int);
create table u (id int primary key, v int);
insert into t values (1, 1), (2, 2);
insert into u values (1, 1), (2, 2);
-- the pipeline is started
-- a pause of 1
begin;
drop table t;
create table t (id int primary key, w interval default '1 day 2:00');
commit;
alter table t rename to t2;
insert into t2 values (5);
-- a pause of 1
drop table u;
create table u (id int primary key, w text);
alter table u rename to u2;
create table u (id int primary key, x text);
insert into u values (7, 'seven');
insert into u2 values (8, 'eight');
-- a pause of 2
alter table t2 add column b int[];
insert into t2 values (6, '1 hour', '{1}');
