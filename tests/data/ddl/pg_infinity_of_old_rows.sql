-- sources: postgres
create table t (id int primary key, v int);
insert into t values (1, 1), (2, 2);
-- the pipeline is started
-- a pause of 1
alter table t add column d timestamptz default 'infinity', add column n numeric(8,2) default 'NaN';
insert into t values (3, 3, '2024-01-02 03:04:05Z', 1);
-- a pause of 1
update t set v = 5 where id = 3;
