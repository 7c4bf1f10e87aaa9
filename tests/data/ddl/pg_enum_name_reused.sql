-- sources: postgres
create type mood as enum ('sad', 'ok');
create table t (id int primary key, c3 real, c5 mood);
insert into t values (1, 1.5, 'ok');
-- the pipeline is started
alter table t drop column c5;
alter table t rename column c3 to c5;
insert into t values (2, 2.5);
