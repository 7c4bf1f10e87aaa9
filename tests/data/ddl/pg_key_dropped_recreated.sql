-- sources: postgres
create table t (id int primary key, x int);
insert into t values (1, 1), (2, 1), (3, 1);
-- the pipeline is started
begin;
update t set x = 1;
update t set x = null where id = 1;
commit;
begin;
delete from t where id = 2;
insert into t values (4, 1), (5, 2);
commit;
alter table t drop constraint t_pkey, replica identity full;
begin;
insert into t values (6, 1), (7, 2), (8, 3);
insert into t values (9, null), (10, 1);
commit;
-- a pause of 1
-- a pause of 1
begin;
drop table t;
create table t (id bigint primary key, x bit(8), v bigint, b char(10));
commit;
insert into t (id) values (1), (2), (3);
update t set x = b'00000101';
insert into t values (4, b'00000101', 1, null), (5, b'00000101', null, null);
