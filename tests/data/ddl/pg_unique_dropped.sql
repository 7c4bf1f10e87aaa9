-- sources: postgres
create table t (id int primary key, u int constraint u1 unique);
insert into t values (1, 1);
-- the pipeline is started
alter table t drop constraint u1;
insert into t values (2, 1);
