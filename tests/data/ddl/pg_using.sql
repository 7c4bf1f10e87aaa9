-- sources: postgres
create table t (id int primary key, a text);
insert into t values (1, '1'), (2, '2');
-- the pipeline is started
alter table t alter column a type int using a::int + 10;
insert into t values (3, 3);
