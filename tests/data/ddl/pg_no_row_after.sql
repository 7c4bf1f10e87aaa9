-- sources: postgres
create table t (id int primary key, a int);
create table other (id int primary key);
insert into t values (1, 1);
-- the pipeline is started
-- a pause of 1
alter table t add column b int not null default 5;
alter table t rename column a to c;
insert into other values (1);
