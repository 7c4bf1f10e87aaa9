-- sources: postgres
create table t (id bigint not null, c int, a text);
alter table t replica identity full;
insert into t values (1, 7, 'x');
-- the pipeline is started
insert into t values (2, null, 'y');
-- a pause of 2
begin;
update t set c = 8 where id = 2;
alter table t add primary key (id, c), alter column id type int;
commit;
insert into t values (3, 9, 'z');
