-- sources: postgres
create table t (id int primary key, n int);
create table k (n int);
alter table k replica identity full;
insert into t values (1, 1);
insert into k values (1);
-- the pipeline is started
begin;
insert into t values (2, 2);
update t set id = 5 where id = 1;
alter table t add column c text default 'x', add column b bit(8) default b'01000001', add column d int default 7;
insert into t (id, c) values (3, null);
update t set c = null where id = 5;
commit;
begin;
insert into k values (2), (2);
alter table k add column c text default 'x';
insert into k values (3, null);
commit;
