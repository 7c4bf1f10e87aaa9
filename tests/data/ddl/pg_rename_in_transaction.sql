-- sources: postgres
create table t (id int primary key, a text, b int, c text);
insert into t values (1, 'x', 1, 'c'), (2, 'y', 2, 'c');
-- the pipeline is started
-- a pause of 1
begin;
update t set b = 10 where id = 1;
alter table t rename column a to a2;
insert into t values (3, 'z', 3, 'c');
commit;
begin;
insert into t values (4, 'w', 4, 'd');
alter table t rename column a2 to tmp;
alter table t rename column c to a2;
alter table t rename column tmp to c;
update t set b = 20 where id = 2;
delete from t where id = 3;
commit;
