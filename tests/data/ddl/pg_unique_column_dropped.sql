-- sources: postgres
create table t (id int primary key, c varchar(20), n int, constraint u1 unique (c, n));
insert into t values (1, 'a', 7), (2, 'b', 8);
-- the pipeline is started
alter table t drop column c;
insert into t values (3, 8);
